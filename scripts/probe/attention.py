"""Section 5: every vector of tests/data/attention through torch's own attention ops, forward and backward.

A unit is a case: its inputs from the documented generator (checked against their digests), its outputs by SHA-256
beside the file's. A case of another architecture is NA on this card.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy
import torch

from .context import ROOT, Context
from .source import is_stray

SECONDS = 40
FOLDER = ROOT / "tests/data/attention"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "half": torch.float16}


def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(p for p in FOLDER.glob("*.json") if not is_stray(p.name)):
        for case in json.loads(path.read_text()).get("cases", []):
            found[f"{path.stem}/{case['name']}"] = case
    return found


def units(ctx: Context) -> list[str]:
    names = list(cases())
    if not ctx.dry:
        return names
    found = cases()
    plain = [n for n in names if n.startswith("flash/fa90_") and not found[n].get("dropout_p")]
    return [*plain[:3], *(n for n in names if found[n]["arch"] == "sm_80")][:4]


def generated(seed: int, n: int) -> numpy.ndarray:
    """float32 of the documented generator (the files' text)."""
    with numpy.errstate(over="ignore"):
        base = numpy.uint64(seed * 0x2545F4914F6CDD1D % (1 << 64))
        i = numpy.arange(n, dtype=numpy.uint64)
        words = []
        for k in (0, 1):
            x = base + (numpy.uint64(2) * i + numpy.uint64(k + 1)) * numpy.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
            words.append(x ^ (x >> numpy.uint64(31)))
        sums = sum(((words[0] >> numpy.uint64(16 * j)) & numpy.uint64(0xFFFF)).astype(numpy.int64) for j in range(4))
        value = (sums - 131070) * 65536 + (words[1] & numpy.uint64(0xFFFF)).astype(numpy.int64)
    return (value.astype(numpy.float64) * 2.0**-31).astype(numpy.float32)


def may_split(case: dict[str, Any]) -> bool:
    """FlashAttention's forward splits the keys by the card's processors where there are several blocks of them: which
    kernel torch takes is then the card's choice, and not the case's. [src flash_api.cpp@v2.13.0: set_params_splitkv]"""
    width = case["head_dim"]
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    return bool(case["kernel"] != "memory-efficient" and case["keys"] > block)


def has_order(case: dict[str, Any]) -> bool:
    """The backward pass's sums have one; else they are atomic."""
    return bool(case.get("key_blocks_backward", 1) <= 2 or case.get("deterministic"))


def unreachable(case: dict[str, Any], major: int, minor: int) -> str:
    """Why torch's op on a card of that compute capability does not say what the case says; empty where it does."""
    if "generated" not in case or not {"q", "k", "v"} <= set(case["generated"]):
        return "its inputs are stored in another form"
    own = {7: "sm_75", 8: "sm_80" if minor == 0 else "sm_86", 9: "sm_90"}.get(major, f"sm_{major}{minor}")
    if case["arch"] != own:
        return f"executed for {case['arch']}, whose tensor cores are not this card's ({own})"
    if case.get("dropout_p") or case.get("dropout_p_bits") or case.get("bias"):
        return "dropout at a given Philox position, or a bias, is not reachable through the op"
    return "" if names(case) else "no output of the case comes out of the op"


def names(case: dict[str, Any]) -> set[str]:
    """The outputs that the op must give."""
    backward = {"dq", "dk", "dv"} if "dout" in case["generated"] and has_order(case) else set()
    return ({"out", "lse"} | backward) & set(case.get("arrays", {}))


def sha(t: torch.Tensor) -> str:
    flat = t.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def run(ctx: Context, unit: str) -> dict[str, Any]:
    case = cases()[unit]
    why = unreachable(case, *((9, 0) if ctx.dry else torch.cuda.get_device_capability()))
    if why:
        return {"na": why}
    dtype = DTYPES[case["dtype"]]
    inputs = {}
    for name in ("q", "k", "v", "dout"):
        if name not in case["generated"]:
            continue
        row = case["generated"][name]
        t = torch.from_numpy(generated(row["seed"], int(numpy.prod(row["shape"])))).view(row["shape"]).to(dtype)
        if sha(t) != row["sha256"]:
            raise ValueError(f"{unit}: the generator's {name} is not the file's")
        inputs[name] = t.to(ctx.device)
    if not has_order(case):
        inputs.pop("dout", None)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(bool(case.get("deterministic")))
    try:
        outputs = through_torch(case, inputs)
    finally:
        torch.use_deterministic_algorithms(before)
    result: dict[str, Any] = {"outputs": {}, "equal": True}
    for name, t in outputs.items():
        want = case.get("arrays", {}).get(name, {}).get("sha256")
        if want is None:
            continue
        digest = sha(t)
        result["outputs"][name] = {"sha256": digest, "equal": digest == want}
        result["equal"] &= digest == want
    return result if result["outputs"] else {"na": "no output of the case comes out of the op"}


def through_torch(case: dict[str, Any], x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    scale = struct.unpack("<f", struct.pack("<I", case["scale_bits"]))[0]
    q, k, v = (x[n].transpose(1, 2) for n in "qkv")
    causal = bool(case["causal"])
    if case["kernel"] == "memory-efficient":
        out, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
        found = {"out": out.transpose(1, 2), "lse": lse}
        if "dout" in x:
            grads = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
                x["dout"].transpose(1, 2),
                q,
                k,
                v,
                None,
                out,
                lse,
                seed,
                offset,
                0.0,
                [True, True, True, False],
                causal,
                scale=scale,
            )
            found |= {f"d{n}": g.transpose(1, 2) for n, g in zip("qkv", grads, strict=False)}
        return found
    out, lse, cq, ck, mq, mk, seed, offset, _ = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, causal, False, scale=scale
    )
    found = {"out": out.transpose(1, 2), "lse": lse}
    if "dout" in x:
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            x["dout"].transpose(1, 2), q, k, v, out, lse, cq, ck, mq, mk, 0.0, causal, seed, offset, scale=scale
        )
        found |= {f"d{n}": g.transpose(1, 2) for n, g in zip("qkv", grads, strict=False)}
    return found
