"""What mmasim gives for matrix units of every maker: python tests/gemm/make_unit_digests.py [--check]

Writes tests/data/adder/units.json: one digest for each instruction and kind of data, on the inputs that
tests/gemm/units_test.cpp makes too. Needs `pip install mmasim==2.1.1` (for this command only). A row that the file has
is kept: a stopped run goes on where it was.
"""

import json
from pathlib import Path

import numpy as np
import torch
from make_adder_digests import KINDS, mix, pattern
from mmasim.amd import MFMA
from mmasim.nv_ptx.sim import MMA, WGMMA, TCGen05MMA

# fraction bits, bias, top exponent field, bits
FORMATS = {
    "bf16": (7, 127, 255, 16), "f16": (10, 15, 31, 16), "tf32": (23, 127, 255, 32), "f32": (23, 127, 255, 32),
    "xf32": (23, 127, 255, 32), "e4m3": (3, 7, 15, 8), "e5m2": (2, 15, 31, 8), "fp8": (3, 8, 15, 8),
    "bf8": (2, 16, 31, 8),
}  # fmt: skip
DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "f32": torch.float32, "xf32": torch.float32,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz,
}  # fmt: skip
INTS = {
    8: (np.uint8, np.int8, torch.uint8),
    16: (np.uint16, np.int16, torch.int16),
    32: (np.uint32, np.int32, torch.int32),
}
FIRST = 2048  # outputs of the digest that the quick test takes


def rows():
    """(unit, instruction, operation, type of A, type of B, type of C, outputs a digest)"""
    for arch, unit in [("Ampere", "nv-ampere"), ("Ada Lovelace", "nv-ampere"), ("Hopper", "nv-hopper"),
                       ("Blackwell", "nv-hopper"), ("RTX Blackwell", "nv-hopper")]:  # fmt: skip
        for k in (4, 8):
            name = f"m16n8k{k}.f32.tf32.tf32.f32"
            yield f"{unit}-tf32", f"{arch} {name}", MMA(arch, name), "tf32", "tf32", "f32", 1 << 17
    yield "nv-hopper-tf32", "Hopper wgmma k8", WGMMA("Hopper", "m64n8k8.f32.tf32.tf32"), "tf32", "tf32", "f32", 1 << 17
    name = "m64n8k8.kind::tf32.f32.tf32.tf32"
    yield "nv-hopper-tf32", "Blackwell tcgen05 k8", TCGen05MMA("Blackwell", name), "tf32", "tf32", "f32", 1 << 17
    for t in ("f16", "bf16"):
        name = f"m64n8k16.kind::f16.f32.{t}.{t}"
        yield f"nv-hopper-{t}", f"Blackwell tcgen05 {t}", TCGen05MMA("Blackwell", name), t, t, "f32", 1 << 16
    yield "nv-volta-f16", "Volta m8n8k4", MMA("Volta", "m8n8k4.f32.f16.f16.f32"), "f16", "f16", "f32", 1 << 14
    yield "nv-volta-f16-f16", "Volta m8n8k4 f16", MMA("Volta", "m8n8k4.f16.f16.f16.f16"), "f16", "f16", "f16", 1 << 14
    for arch, unit in [("Turing", "nv-turing"), ("Ampere", "nv-turing"), ("Hopper", "nv-hopper")]:
        k = 8 if arch == "Turing" else 16
        op = MMA(arch, f"m16n8k{k}.f16.f16.f16.f16")
        yield f"{unit}-f16-f16", f"{arch} m16n8k{k} f16", op, "f16", "f16", "f16", 1 << 14
    fp8 = ("e4m3", "e5m2")
    for a in fp8:
        for b in fp8:
            pair = a if a == b else f"{a}-{b}"
            op = MMA("Ada Lovelace", f"m16n8k32.f32.{a}.{b}.f32")
            yield f"nv-ada-{pair}", f"Ada m16n8k32 {a} {b}", op, a, b, "f32", 1 << 16
            op = WGMMA("Hopper", f"m64n8k32.f32.{a}.{b}")
            yield f"nv-hopper-wgmma-{pair}", f"Hopper wgmma {a} {b}", op, a, b, "f32", 1 << 16
            if a == b:
                name = f"m64n8k32.kind::f8f6f4.f32.{a}.{b}"
                yield f"nv-blackwell-{a}", f"Blackwell tcgen05 {a}", TCGen05MMA("Blackwell", name), a, b, "f32", 1 << 16
    for unit, arch, name, t in [
        ("amd-cdna1-bf16", "CDNA1", "f32_32x32x4bf16", "bf16"), ("amd-cdna1-f16", "CDNA1", "f32_16x16x16f16", "f16"),
        ("amd-cdna2-bf16", "CDNA2", "f32_32x32x4bf16", "bf16"), ("amd-cdna2-f16", "CDNA2", "f32_16x16x16f16", "f16"),
        ("amd-cdna2-bf16-1k", "CDNA2", "f32_16x16x16bf16_1k", "bf16"), ("amd-f32", "CDNA3", "f32_16x16x4_f32", "f32"),
        ("amd-cdna3-bf16", "CDNA3", "f32_16x16x16_bf16", "bf16"), ("amd-cdna3-f16", "CDNA3", "f32_16x16x16_f16", "f16"),
        ("amd-cdna3-xf32", "CDNA3", "f32_16x16x8_xf32", "xf32"),
    ]:  # fmt: skip
        yield unit, f"{arch} {name}", MFMA(arch, name), t, t, "f32", 1 << 14
    for a in ("fp8", "bf8"):
        for b in ("fp8", "bf8"):
            pair = a if a == b else f"{a}-{b}"
            name = f"f32_16x16x32_{a}_{b}"
            yield f"amd-cdna3-{pair}", f"CDNA3 {name}", MFMA("CDNA3", name), a, b, "f32", 1 << 14


def as_tensor(r: np.ndarray, kind: int, name: str) -> torch.Tensor:
    fraction, bias, top, bits = FORMATS[name]
    magnitude = pattern(r, KINDS[kind], fraction, bias, top)
    sign = (r >> np.uint64(63)) << np.uint64(bits - 1)
    if name in ("fp8", "bf8"):  # there the pattern of -0 is NaN
        sign = np.where(magnitude == 0, np.uint64(0), sign)
    unsigned, signed, torch_int = INTS[bits]
    words = (magnitude | sign).astype(unsigned)
    return torch.from_numpy(words.view(signed) if bits > 8 else words).view(torch_int).view(DTYPES[name])


def digests(op: object, a: str, b: str, c: str, kind: int, count: int) -> dict[str, str]:
    k = op.k
    counter = np.arange(count, dtype=np.uint64)[:, None] * np.uint64(128) + np.arange(2 * k + 1, dtype=np.uint64)
    r = mix(mix(counter) + np.uint64(kind))
    x, y = as_tensor(r[:, :k].copy(), kind, a), as_tensor(r[:, k : 2 * k].copy(), kind, b)
    out = op.dpa(x, y, as_tensor(r[:, 2 * k].copy(), kind, c)).float()
    words = out.view(torch.int32).numpy().view(np.uint32).astype(np.uint64)
    words = np.where(np.isnan(out.numpy()), np.uint64(0x7FFFFFFF), words)
    mixed = mix(words + (np.arange(count, dtype=np.uint64) << np.uint64(32)))
    sums = {name: int(np.sum(mixed[:n], dtype=np.uint64)) for name, n in [("digest", count), ("first", FIRST)]}
    return {name: f"{x:016x}" for name, x in sums.items()}


def main() -> None:
    torch.set_num_threads(1)
    path = Path(__file__).parents[1] / "data" / "adder" / "units.json"
    done = {}
    if path.exists():
        done = {(row["instruction"], row["kind"]): row for row in json.loads(path.read_text())["rows"]}
    for unit, instruction, op, a, b, c, count in rows():
        for kind in range(len(KINDS)):
            # mmasim loses an infinite or NaN accumulator beside products of 2^25 and more, which only bf8 has.
            if (instruction, kind) in done or ("bf8_bf8" in instruction and KINDS[kind] in ("any bits", "special")):
                continue
            row = {"unit": unit, "instruction": instruction, "a": a, "b": b, "c": c, "k": op.k, "kind": kind}
            done[instruction, kind] = row | {"outputs": count} | digests(op, a, b, c, kind, count)
        text = ",\n".join(json.dumps(row) for row in done.values())
        path.write_text(f'{{"source": "mmasim 2.1.1", "first": {FIRST}, "rows": [\n{text}\n]}}\n')
        print(instruction, flush=True)


if __name__ == "__main__":
    with np.errstate(over="ignore"):
        main()
