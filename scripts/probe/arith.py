"""Sections 1 and 2: the function unit's instructions and the device library over all 2^32 inputs.

A unit is a function: 256 digests, one a chunk of 2^24 inputs (BLAKE3 of the results as little-endian words, NaN as
0x7fffffff), and 256 sampled words of each chunk. For the functions that are tables in hardware the words of one period
are kept too. A dry run takes the first 64 inputs of each chunk, and the model's own results.
"""

from __future__ import annotations

import base64
import lzma
import subprocess
from typing import Any

import torch

from .build import MODEL
from .context import Context

SECONDS = 110
CHUNKS, CHUNK = 256, 1 << 24
DRY = 64  # inputs of a chunk in a dry run
MOST_WORDS = 64 << 20  # bytes, unpacked
STEP = CHUNK // 256  # between the sampled words


def _asm(instruction: str) -> str:
    return f'asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));'


# name -> (CUDA statement that sets y from x, whether csrc/kernels/arith has a model of that name)
FUNCTIONS: dict[str, tuple[str, bool]] = {
    "mufu.ex2_ftz": (_asm("ex2.approx.ftz.f32"), True),
    "mufu.ex2": (_asm("ex2.approx.f32"), True),
    "mufu.rcp_ftz": (_asm("rcp.approx.ftz.f32"), True),
    "mufu.rsqrt_ftz": (_asm("rsqrt.approx.ftz.f32"), True),
    "mufu.rsqrt": (_asm("rsqrt.approx.f32"), True),
    "mufu.lg2_ftz": (_asm("lg2.approx.ftz.f32"), True),
    "mufu.sqrt_ftz": (_asm("sqrt.approx.ftz.f32"), False),
    "mufu.sin_ftz": (_asm("sin.approx.ftz.f32"), True),
    "mufu.cos_ftz": (_asm("cos.approx.ftz.f32"), True),
    "mufu.tanh": (_asm("tanh.approx.f32"), False),
} | {
    f"libdevice.{f}": (f"y = {f}(x);", True)
    for f in (
        "expf",
        "exp2f",
        "expm1f",
        "logf",
        "log2f",
        "log10f",
        "log1pf",
        "tanhf",
        "erff",
        "erfcf",
        "sinf",
        "cosf",
        "rsqrtf",
    )
}
# name -> first input and number of the words kept whole: lg2 of [1, 2), sqrt of [1, 4), sin and cos of [0, 8) at every
# 64th float from 2^-8, tanh of [2^-8, 16) at every 16th
TABLES = {
    "mufu.lg2_ftz": (0x3F800000, 1 << 23, 1),
    "mufu.sqrt_ftz": (0x3F800000, 1 << 24, 4),
    "mufu.sin_ftz": (0x3B800000, 11 << 23, 64),
    "mufu.cos_ftz": (0x3B800000, 11 << 23, 64),
    "mufu.tanh": (0x3B800000, 12 << 23, 16),
}


def units(ctx: Context) -> list[str]:
    names = [n for n in FUNCTIONS if n.startswith("mufu.")] + [n for n in FUNCTIONS if n.startswith("libdevice.")]
    return [n for n in names if FUNCTIONS[n][1]][:8] if ctx.dry else names


def model(name: str, first: int, count: int, step: int = 1) -> bytes:
    """The model's words for ``count`` inputs from ``first``, ``step`` apart."""
    done = subprocess.run([MODEL, "--part", name, str(first), str(count), str(step)], capture_output=True, check=True)
    return done.stdout


def compiled(name: str) -> Any:
    statement = FUNCTIONS[name][0]
    source = f"""extern "C" __global__ void sweep(int chunk, int step, int count, unsigned* out) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= count) return;
      float x = __uint_as_float((unsigned)chunk + (unsigned)i * (unsigned)step), y;
      {statement}
      unsigned w = __float_as_uint(y);
      out[i] = (w & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : w;
    }}"""
    return torch.cuda._compile_kernel(source, "sweep")


def run(ctx: Context, name: str) -> dict[str, Any]:
    if ctx.dry:
        from step_oracle import _record

        parts = [model(name, c * CHUNK, DRY) for c in range(CHUNKS)]
        return {
            "count": DRY,
            "chunks": [_record.blake3(p) for p in parts],
            "samples": pack(b"".join(p[:16] for p in parts)),
            "per_chunk": 4,
            "step": 1,
        }
    kernel, out = compiled(name), torch.empty(CHUNK, dtype=torch.int32, device="cuda")

    def sweep(first: int, count: int, step: int) -> torch.Tensor:
        first = first - (1 << 32) if first >= 1 << 31 else first
        kernel(((count + 255) // 256, 1, 1), (256, 1, 1), [first, step, count, out])
        return out[:count]

    chunks, samples = [], []
    for c in range(CHUNKS):
        words = sweep(c * CHUNK, CHUNK, 1)
        chunks.append(ctx.digest(words))
        samples.append(words[::STEP].cpu().numpy().tobytes())
    result = {"count": CHUNK, "chunks": chunks, "samples": pack(b"".join(samples)), "per_chunk": 256, "step": STEP}
    if name in TABLES:
        first, span, step = TABLES[name]
        result["table"] = {
            "first": first,
            "step": step,
            "count": span // step,
            "words": pack(sweep(first, span // step, step).cpu().numpy().tobytes()),
        }
    return result


def pack(words: bytes) -> str:
    """Words as first differences in four planes of bytes, packed."""
    import numpy

    w = numpy.frombuffer(words, "<u4")
    d = numpy.diff(w, prepend=w.dtype.type(0)).astype("<u4")
    planes = d.view(numpy.uint8).reshape(-1, 4).T.tobytes()
    return base64.b85encode(lzma.compress(planes, preset=6)).decode()


def unpack(text: str) -> bytes:
    import numpy

    unpacker = lzma.LZMADecompressor()
    try:
        raw = unpacker.decompress(base64.b85decode(text), MOST_WORDS)
    except lzma.LZMAError as e:
        raise ValueError(f"packed words are damaged ({e})") from None
    if not unpacker.eof or len(raw) % 4:
        raise ValueError("packed words are cut off, or too many")
    planes = numpy.frombuffer(raw, numpy.uint8).reshape(4, -1)
    d = numpy.ascontiguousarray(planes.T).view("<u4").ravel()
    return numpy.cumsum(d, dtype="<u4").astype("<u4").tobytes()
