"""What mmasim, an independent model of tensor cores, gives on seeded inputs: python tests/gemm/make_adder_digests.py

Writes tests/data/adder/mmasim.json: one digest of 2^17 outputs for each instruction and kind of data. Needs
`pip install mmasim==2.1.1` (for this command only); tests/gemm/adder_test.cpp makes the same inputs and outputs.
"""

import json
from pathlib import Path

import numpy as np
import torch
from mmasim.nv_ptx.sim import MMA, WGMMA

COUNT = 1 << 17
KINDS = ["any bits", "ordinary", "wide", "subnormal", "huge", "sparse", "cancelling", "special", "spread"]
INSTRUCTIONS = [  # architecture, shape and types, adder
    ("Turing", "m16n8k8.f32.f16.f16.f32", "turing"),
    *[(arch, f"m16n8k{k}.f32.{t}.{t}.f32", adder)
      for arch, adder in [
          ("Ampere", "turing"), ("Ada Lovelace", "turing"), ("Hopper", "hopper"), ("Blackwell", "hopper")]
      for k in [8, 16] for t in ["f16", "bf16"]],
    ("Hopper", "m64n8k16.f32.f16.f16", "hopper"),
    ("Hopper", "m64n8k16.f32.bf16.bf16", "hopper"),
]  # fmt: skip
MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


def mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: a counter becomes random bits."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)) & MASK
    x = ((x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)) & MASK
    x = ((x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)) & MASK
    return x ^ (x >> np.uint64(31))


def pattern(r: np.ndarray, kind: str, fraction: int, bias: int, top: int) -> np.ndarray:
    """A floating-point pattern without its sign; `top` is the exponent field of infinity."""
    digits, choice = r & np.uint64((1 << fraction) - 1), (r >> np.uint64(32)).astype(np.int64)
    if kind == "any bits":
        return r & np.uint64((1 << fraction) * (top + 1) - 1)
    ordinary = bias - 6 + choice % 9
    field = {
        "wide": 1 + choice % (top - 1), "subnormal": choice % 3, "huge": top - 1 - choice % 3,
        "cancelling": bias + choice % 2, "spread": np.clip(bias - 20 + choice % 40, 1, top - 1),
        "special": np.where(choice % 16 == 0, top, ordinary),
    }.get(kind, ordinary)  # fmt: skip
    if kind == "cancelling":
        digits = digits & np.uint64(1 << (fraction - 1))
    if kind == "special":
        digits = np.where((choice % 16 == 0) & (choice % 32 < 16), np.uint64(0), digits)
    out = (field.astype(np.uint64) << np.uint64(fraction)) | digits
    return np.where((kind == "sparse") & (choice % 4 != 0), np.uint64(0), out)


def signed(r: np.ndarray, magnitude: np.ndarray, bits: int) -> np.ndarray:
    return magnitude | ((r >> np.uint64(63)) << np.uint64(bits - 1))


def inputs(kind: int, k: int, bf16: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    per_output = np.uint64(64)
    counter = np.arange(COUNT, dtype=np.uint64)[:, None] * per_output + np.arange(2 * k + 1, dtype=np.uint64)
    r = mix(mix(counter) + np.uint64(kind))
    shape = (7, 127, 255) if bf16 else (10, 15, 31)
    factors = signed(r, pattern(r, KINDS[kind], *shape), 16)[:, : 2 * k].astype(np.uint16)
    acc = signed(r, pattern(r, KINDS[kind], 23, 127, 255), 32)[:, 2 * k].astype(np.uint32)
    dtype = torch.bfloat16 if bf16 else torch.float16
    t = torch.from_numpy(factors.view(np.int16).copy()).view(dtype)
    return t[:, :k].contiguous(), t[:, k:].contiguous(), torch.from_numpy(acc.view(np.int32).copy()).view(torch.float32)


def digest(out: torch.Tensor) -> str:
    words = out.view(torch.int32).numpy().view(np.uint32).astype(np.uint64)
    return f"{int(np.sum(mix(words + (np.arange(COUNT, dtype=np.uint64) << np.uint64(32))), dtype=np.uint64)):016x}"


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for arch, shape, adder in INSTRUCTIONS:
        op = (WGMMA if shape.startswith("m64") else MMA)(arch, shape)
        bf16 = "bf16" in shape
        for kind in range(len(KINDS)):
            out = op.dpa(*inputs(kind, op.k, bf16))
            rows.append({"instruction": f"{arch} {shape}", "adder": adder, "factors": "bf16" if bf16 else "f16",
                         "k": op.k, "kind": kind, "digest": digest(out)})  # fmt: skip
        print(arch, shape, flush=True)
    path = Path(__file__).parents[1] / "data" / "adder" / "mmasim.json"
    text = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"source": "mmasim 2.1.1", "outputs_per_digest": {COUNT}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    with np.errstate(over="ignore"):
        main()
