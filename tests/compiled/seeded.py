"""Inputs from a seed: the bits are those that the compiled kernels got when cases.json was written.

Only integer arithmetic and exact conversions, so every numpy gives the same bits. Arrays hold raw words (float32 as
uint32, float16 and bfloat16 as uint16, float64 as uint64); integers are themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Array = NDArray[np.generic]
RAW: dict[str, type[np.generic]] = {
    "f32": np.uint32,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f64": np.uint64,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.uint8,
}
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
# zeros, ones, infinities, NaN with payloads, subnormals, halves, the largest, neighbours of one, domain edges
SPECIAL = {
    "f32": [0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345]
    + [1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F7FFFFF, 0x3F800001]
    + [0x3F000000, 0xBF000000, 0x3FC00000, 0x40200000, 0xC0200000, 0x40490FDB, 0x4B800000, 0x4B000001, 0xCB000001]
    + [0x5F000000, 0xDF000000, 0x4F000000, 0xCF000000, 0x42B17218, 0xC2CFF1B5],
    "f16": [
        0,
        0x8000,
        0x3C00,
        0xBC00,
        0x7C00,
        0xFC00,
        0x7E00,
        0x7C01,
        0xFE12,
        1,
        0x8001,
        0x03FF,
        0x83FF,
        0x0400,
        0x8400,
    ]
    + [0x7BFF, 0xFBFF, 0x3BFF, 0x3C01, 0x3800, 0xB800, 0x3E00, 0x4100, 0xC100, 0x4248, 0x6400, 0x6401, 0xE401, 0x498C],
    "bf16": [
        0,
        0x8000,
        0x3F80,
        0xBF80,
        0x7F80,
        0xFF80,
        0x7FC0,
        0x7F81,
        0xFFC1,
        1,
        0x8001,
        0x007F,
        0x807F,
        0x0080,
        0x8080,
    ]
    + [0x7F7F, 0xFF7F, 0x3F7F, 0x3F81, 0x3F00, 0xBF00, 0x3FC0, 0x4020, 0xC020, 0x4049, 0x4B80, 0x5F00, 0xDF00, 0x42B1],
    "f64": [0, 1 << 63, 0x3FF0 << 48, 0xBFF0 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, (0x7FF0 << 48) + 1]
    + [(0xFFF8 << 48) + 0x1234, 1, (1 << 63) + 1, (1 << 52) - 1, 1 << 52, (0x7FF0 << 48) - 1, (0xFFF0 << 48) - 1]
    + [(0x3FF0 << 48) - 1, (0x3FF0 << 48) + 1, 0x3FE0 << 48, 0xBFE0 << 48, 0x3FF8 << 48, 0x4004 << 48, 0xC004 << 48]
    + [0x400921FB54442D18, 0x4330000000000001, 0xC330000000000001, 0x41DFFFFFFFC00000, 0x43E0 << 48, 0xC3E0 << 48],
}


def words(seed: int, n: int) -> Words:
    """splitmix64, its state started at seed * 2^32"""
    with np.errstate(over="ignore"):
        z = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def encode(x: NDArray[np.float64], dtype: str) -> Array:
    """doubles of at most 24 significant bits as the words of a type, nearest even"""
    if dtype == "f64":
        return x.view(np.uint64)
    single = x.astype(np.float32)
    if dtype == "f32":
        return single.view(np.uint32)
    if dtype == "f16":
        return single.astype(np.float16).view(np.uint16)
    v = single.view(np.uint32)
    return ((v + np.uint32(0x7FFF) + ((v >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bell(w: Words, scale: float) -> NDArray[np.float64]:
    """sums of four 16-bit fields, centred: near a normal distribution of deviation `scale` (a power of two)"""
    fields = sum((w >> np.uint64(16 * j)) & np.uint64(0xFFFF) for j in range(4))
    return (np.asarray(fields).astype(np.float64) - 131070.0) * (scale * 2.0**-15)


def integers(dtype: str, w: Words, n: int, slot: int) -> Array:
    info = np.iinfo(RAW[dtype])
    edge = np.array([v for v in (0, 1, 2, 3, 7, 10, info.max, info.max - 1, -1, -2, -3, -7, info.min) if v >= info.min])
    grid = np.resize(np.repeat(edge, (1, len(edge), 5)[slot]), min(n // 2, len(edge) ** 2))
    rest = w[len(grid) :]
    small = (rest % np.uint64(41)).astype(np.int64) - (0 if info.min == 0 else 20)
    k = len(rest) // 2
    out = np.concatenate([grid.astype(np.int64), small[:k], rest[k:].view(np.int64)])
    return out.astype(RAW[dtype])


def operand(dtype: str, n: int, kind: str, slot: int, seed: int) -> Array:
    """kind: mixed (special values against each other, usual ones, random bits), normal, wide, positive, unit, bits, or
    below:N for integers of [0, N); slot k of an operation varies its special values slower"""
    w = words(seed, n)
    if kind.startswith("below:"):
        return (w % np.uint64(int(kind[6:]))).astype(RAW[dtype])
    if dtype == "bool":
        return (w & np.uint64(1)).astype(np.uint8)
    if dtype in INTEGERS:
        return integers(dtype, w, n, slot)
    if kind == "bits":
        return w.astype(RAW[dtype])
    if kind == "unit":
        return encode((w >> np.uint64(41)).astype(np.float64) * 2.0**-23, dtype)
    usual = bell(w, 0.5 if kind.startswith("near") else 1.0)
    if kind in ("mixed", "wide"):
        usual = usual * 2.0 ** (((w >> np.uint64(5)) % np.uint64(12)).astype(np.float64) - 6.0)
    if kind == "positive":
        usual = np.abs(usual)
    if kind == "near one":
        usual = usual * 2.0**-3 + 1.0
    out = encode(usual, dtype)
    if kind != "mixed":
        return out
    special = np.array(SPECIAL[dtype], dtype=np.uint64).astype(RAW[dtype])
    grid = min(n // 2, len(special) ** 2)
    out[:grid] = np.resize(np.repeat(special, (1, len(special), 5)[slot]), grid)
    k = n - (n - grid) // 3
    out[k:] = w[k:].astype(RAW[dtype])
    return out
