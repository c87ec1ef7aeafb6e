"""Section 3: every vector of tests/data/witness through torch's own ops.

A unit is a file. Digests of the outputs, whether they are the file's, and the first differences where they are not. The
whole output is kept then (up to 256 KiB), so that the vector can be replaced by what the card says.
"""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
import re
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F

from .context import ROOT, Context, bits, first_differences
from .source import is_stray

SECONDS = 60
FOLDER = ROOT / "tests/data/witness"
aten = torch.ops.aten
T = torch.Tensor
Arrays = dict[str, T]
KINDS = {"U32": "<u4", "U16": "<u2", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}


def unzstd(data: bytes) -> bytes:
    """By the zstd that step_oracle._record has loaded."""
    from step_oracle.environment import _loaded

    library = _loaded("libzstd.so")
    if library is None:
        raise OSError("libzstd is not in this process")
    library.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    library.ZSTD_decompress.restype = ctypes.c_size_t
    size = library.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
    if size > 1 << 30:
        raise ValueError("not a zstd frame with its size")
    out = ctypes.create_string_buffer(size)
    got = library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    if got != size:
        raise ValueError("a damaged zstd frame")
    return out.raw


def load(name: str) -> tuple[dict[str, Any], Arrays]:
    raw = unzstd((FOLDER / f"{name}.safetensors.zst").read_bytes())
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    meta = json.loads(header.pop("__metadata__")["meta"])
    arrays = {}
    for key, row in header.items():
        begin, end = row["data_offsets"]
        kind = KINDS[row["dtype"]]
        words = numpy.frombuffer(raw[8 + n + begin : 8 + n + end], kind).copy()
        view = {"<u4": (numpy.int32, torch.float32), "<u2": (numpy.int16, torch.bfloat16)}.get(kind)
        t = torch.from_numpy(words.view(view[0])).view(view[1]) if view else torch.from_numpy(words)
        arrays[key] = t.view(row["shape"])
    return meta, arrays


def units(ctx: Context) -> list[str]:
    return all_names()[::41] if ctx.dry else all_names()


def all_names() -> list[str]:
    return sorted(p.name.removesuffix(".safetensors.zst") for p in FOLDER.glob("*.zst") if not is_stray(p.name))


# --- how a case is called -------------------------------------------------------------------------------------------

UNARY: dict[str, Callable[[T], T]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "relu": torch.relu,
    "pow2": lambda x: x.pow(2),
    "pow3": lambda x: x.pow(3),
    "pow_minus2": lambda x: x.pow(-2),
    "pow_1p7": lambda x: x.pow(1.7),
    "add_scalar": lambda x: torch.add(x, 1e-8),
    "mul_scalar": lambda x: x * 0.1,
    "div_scalar": lambda x: x / 0.3,
}
BINARY: dict[str, Callable[[T, T], T]] = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "mul": torch.mul,
    "div": torch.div,
    "lerp": lambda x, y: torch.lerp(x, y, 0.1),
    "lerp_high": lambda x, y: torch.lerp(x, y, 0.9),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "gelu_tanh_bwd": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "gelu_erf_bwd": lambda g, x: aten.gelu_backward(g, x),
    "silu_bwd": lambda g, x: aten.silu_backward(g, x),
    "tanh_bwd": lambda g, y: aten.tanh_backward(g, y),
    "sigmoid_bwd": lambda g, y: aten.sigmoid_backward(g, y),
    "threshold_bwd": lambda x, g: aten.threshold_backward(g, x, 0),
}
TERNARY: dict[str, Callable[[T, T, T], T]] = {
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.05),
    "addcmul_one": lambda x, y, z: torch.addcmul(x, y, z),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=-0.001),
    "addcdiv_one": lambda x, y, z: torch.addcdiv(x, y, z),
}
FOREACH: dict[str, Callable[[list[T], list[T], list[T]], Any]] = {
    "foreach_mul": lambda x, y, z: torch._foreach_mul_(x, 0.95),
    "foreach_add": lambda x, y, z: torch._foreach_add_(x, 1e-8),
    "foreach_lerp": lambda x, y, z: torch._foreach_lerp_(x, y, 1 - 0.9),
    "foreach_addcmul": lambda x, y, z: torch._foreach_addcmul_(x, y, z, 1 - 0.95),
    "foreach_addcdiv": lambda x, y, z: torch._foreach_addcdiv_(x, y, z, [-0.0012, -0.0034]),
    "foreach_add_list": lambda x, y, z: torch._foreach_add_(x, y, alpha=-0.03),
    "foreach_div": lambda x, y, z: torch._foreach_div_(x, [0.31, 0.77]),
}


class NoCall(Exception):
    """The case's kernel cannot be reached by an op with these arguments; the text says why."""


def numbers(shape: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", shape)]


def listed(a: Arrays, letter: str) -> list[T]:
    out = []
    while f"in_{letter}{len(out)}" in a:
        out.append(a[f"in_{letter}{len(out)}"])
    return out


def call(case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    """The outputs by the file's names, without "out_"."""
    if re.search(r"_f16(_|$)", case) or "adagrad" in case:
        raise NoCall(f"no call is written for {case}")
    base = re.sub(r"(_(f32|bf16|mixed))+$", "", case)
    x, y, z = (a.get(f"in_{n}") for n in "xyz")
    if base in UNARY:
        return {"out": UNARY[base](x)}
    if base in BINARY:
        return {"out": BINARY[base](x, y)}
    if base in TERNARY:
        return {"out": TERNARY[base](x, y, z)}
    if base == "cast":
        return {"out": x.to(torch.bfloat16 if case.endswith("bf16") else torch.float32)}
    if base in FOREACH:
        xs = listed(a, "x")
        FOREACH[base](xs, listed(a, "y"), listed(a, "z"))
        return {f"x{i}_out": t for i, t in enumerate(xs)}
    if base == "foreach_sqrt":
        return {f"out{i}": t for i, t in enumerate(torch._foreach_sqrt(listed(a, "x")))}
    if base == "foreach_norm":
        return {f"norm{i}": t.view(1) for i, t in enumerate(torch._foreach_norm(listed(a, "x"), 2.0))}
    for part, function in (("fused_", fused), ("softmax", softmax), ("norm", norms), ("nll", nll), ("", others)):
        if part in base:
            return function(base, case, meta, a)
    raise NoCall(f"no call is written for {case}")


def softmax(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    rows, n = numbers(meta["shape"])[:2]
    log = base.startswith("log_")
    if "bwd" in base:
        if not log:
            raise NoCall("the kernel is given gradient times output, and the op multiplies itself")
        if case.endswith("f32_bf16"):
            raise NoCall("torch's op has mixed types for float16 only")
        f = aten._log_softmax_backward_data
        return {"dx": f(a["in_grad"].view(rows, n), a["in_output"].view(rows, n), 1, a["in_grad"].dtype)}
    f = torch.log_softmax if log else torch.softmax
    return {"y": f(a["in_x"].view(rows, n), 1, dtype=torch.float32 if case.endswith("bf16_f32") else None)}


def norms(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    if base == "norm2":
        return reduction(base, case, meta, a)
    if not base.startswith(("layer_norm", "rms_norm")):
        raise NoCall(f"no call is written for {case}")
    rows, n = numbers(meta["shape"])[:2]
    gamma, x = a.get("in_gamma"), a["in_x"].view(rows, n)
    if base in ("layer_norm", "layer_norm_rowwise"):
        y, mean, rstd = aten.native_layer_norm(x, [n], gamma, a["in_beta"], 1e-5)
        return {"y": y, "mean": mean.flatten(), "rstd": rstd.flatten()}
    if base == "rms_norm":
        y, rstd = aten._fused_rms_norm(x, [n], gamma, 1e-6)
        return {"y": y, "rstd": rstd.flatten()}
    if not {"in_rstd", "in_dy"} <= set(a):
        raise NoCall(f"no call is written for {case}")
    rstd, dy = a["in_rstd"].view(rows, 1), a["in_dy"].view(rows, n)
    if base == "rms_norm_bwd":
        return {"dx": aten._fused_rms_norm_backward(dy, x, [n], rstd, gamma, [True, False])[0]}
    mean = a["in_mean"].view(rows, 1)
    if base == "layer_norm_gamma_beta":
        one = torch.ones(n, dtype=x.dtype, device=x.device)
        _, dgamma, dbeta = aten.native_layer_norm_backward(dy, x, [n], mean, rstd, one, one, [False, True, True])
        return {"dgamma": dgamma, "dbeta": dbeta}
    if "vectorized" not in base and n % 4 == 0:
        raise NoCall("torch takes the vectorised kernel for this width")
    return {"dx": aten.native_layer_norm_backward(dy, x, [n], mean, rstd, gamma, None, [True, False, False])[0]}


def reduction(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    mode, where = meta["shape"].split(":")
    rows, cols = numbers(where)
    x = a["in_x"].view(rows, cols)
    dims = {"row": [1], "col": [0], "all": [0, 1]}[mode]
    kind = torch.float32 if case.endswith("bf16_f32") else None
    if base == "norm2":
        return {"y": torch.linalg.vector_norm(x, 2, dim=dims, dtype=kind)}
    return {"y": (torch.sum if base == "sum" else torch.mean)(x, dim=dims, dtype=kind)}


def nll(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    if not base.startswith("nll_loss"):
        raise NoCall(f"no call is written for {case}")
    rows, classes = numbers(meta["shape"])[:2]
    target = a["in_target"].to(torch.int64)
    if base == "nll_loss":
        loss, weight = aten.nll_loss_forward(a["in_x"].view(rows, classes), target, None, 1, -100)
        return {"loss": loss.view(1), "total_weight": weight.view(1)}
    grad = a["in_grad_output"]
    x = torch.zeros(rows, classes, dtype=grad.dtype, device=grad.device)
    return {
        "grad_input": aten.nll_loss_backward(grad.view(()), x, target, None, 1, -100, a["in_total_weight"].view(()))
    }


def fused(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    mode = meta["shape"].split(":")[0]
    p, g, m, v, b = (listed(a, letter) for letter in "pgmvb")
    scale = a["in_grad_scale"].view(()) if "in_grad_scale" in a else None
    if "adam" in base:
        lr, beta1, beta2, decay, eps = meta["notes"]["hyper"]
        steps = [s.view(()) for s in listed(a, "step")]
        f = torch._fused_adamw_ if "adamw" in base else torch._fused_adam_
        f(
            p,
            g,
            m,
            v,
            [],
            steps,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=decay,
            eps=eps,
            amsgrad=False,
            maximize="max" in mode,
            grad_scale=scale,
            found_inf=None,
        )
    else:
        torch._fused_sgd_(
            p,
            g,
            b,
            weight_decay=0.01,
            momentum=0.9 if b else 0.0,
            lr=0.1,
            dampening=0.0 if mode == "nesterov" else 0.2,
            nesterov=mode == "nesterov",
            maximize=False,
            is_first_step=mode == "first",
        )
    return {f"{n}{i}_out": t for n, ts in (("p", p), ("g", g), ("m", m), ("v", v), ("b", b)) for i, t in enumerate(ts)}


def others(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    if base in ("sum", "mean"):
        return reduction(base, case, meta, a)
    n = numbers(meta["shape"])
    if base == "cumsum":
        x = a["in_x"].view(n[0], n[1])
        return {"y": x.cumsum(1 if meta["shape"].startswith("inner") else 0)}
    if base.startswith("embedding_bwd"):
        rows, width, vocab = n[:3]
        padding = 3 if "feature" in base else -1
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms("sorted" in base)  # sorted indices, and no atomic sums
        try:
            grad = a["in_grad"].view(rows, width)
            return {"grad_weight": aten.embedding_dense_backward(grad, a["in_indices"], vocab, padding, False)}
        finally:
            torch.use_deterministic_algorithms(before)
    if base == "index_put_accumulate":
        rows, width, out = n[:3]
        dest = a["in_dest"].view(out, width)
        return {"dest_out": dest.index_put_((a["in_indices"],), a["in_grad"].view(rows, width), accumulate=True)}
    if base in ("uniform", "bernoulli") or base.startswith("dropout"):
        return drawn(base, case, meta, a)
    if base == "mse_bwd":
        raise NoCall("its factor is of 3000 elements, and the tensor has others")
    raise NoCall(f"no call is written for {case}")


def drawn(base: str, case: str, meta: dict[str, Any], a: Arrays) -> Arrays:
    notes, shape = meta["notes"], meta["shape"]
    if "@" in shape or base.startswith("dropout"):
        raise NoCall("it stands for a card with few processors")
    state = torch.tensor([notes["philox_seed"], notes["philox_offset"]], dtype=torch.int64).view(torch.uint8)
    device = a["device"].device
    getattr(torch, device.type).set_rng_state(state)
    out = torch.empty(int(shape), dtype=torch.bfloat16 if case.endswith("bf16") else torch.float32, device=device)
    return {"out": out.uniform_(notes["low"], notes["high"]) if base == "uniform" else out.bernoulli_(notes["p"])}


def run(ctx: Context, name: str) -> dict[str, Any]:
    meta, stored = load(name)
    sent = {k: v.to(ctx.device) for k, v in stored.items() if k.startswith("in_")}
    sent["device"] = torch.empty(0, device=ctx.device)
    try:
        got = call(meta["case"], meta, sent)
    except NoCall as e:
        return {"na": str(e)}
    result: dict[str, Any] = {"outputs": {}, "equal": True}
    for key, t in got.items():
        want = stored.get(f"out_{key}")
        if want is None:
            continue
        row: dict[str, Any] = {"digest": ctx.digest(t)}
        want = want.view(t.shape) if want.numel() == t.numel() else want
        different = first_differences(t, want)
        if different:
            result["equal"] = False
            raw = bits(t).numpy().tobytes()
            row |= {"first": different, "count": int((bits(t) != bits(want)).sum()) if want.shape == t.shape else -1}
            if len(raw) <= 256 << 10:
                row["bytes"] = base64.b85encode(lzma.compress(raw)).decode()
        result["outputs"][key] = row
    if not result["outputs"]:
        return {"na": "no output has the name that the file gives it"}
    return result
