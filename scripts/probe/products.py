"""Section 4: matrix products. The GPT's shapes and 300 random ones, for each dtype and numeric switch.

A unit is twenty products of one setting: shape, layout, digest of the output, the lines that cuBLASLt logged for it,
and its heuristic's first answer. Inputs are integers' hashes (Context.fill), the same bytes everywhere.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import torch

from .context import Context

SECONDS = 130
RANDOM, PART = 300, 20
# m, n, k of a 124 M GPT at 1024 tokens (width 768, 12 layers, vocabulary 50304) and of the demo's GPT at 768 tokens
GPT = [
    (1024, 2304, 768),
    (1024, 768, 768),
    (1024, 3072, 768),
    (1024, 768, 3072),
    (1024, 50304, 768),
    (768, 2304, 1024),
    (768, 768, 1024),
    (3072, 768, 1024),
    (768, 3072, 1024),
    (50304, 768, 1024),
    (1024, 768, 50304),
    (1024, 768, 2304),
    (768, 384, 128),
    (768, 128, 128),
    (768, 512, 128),
    (768, 128, 512),
    (768, 256, 128),
    (384, 128, 768),
    (128, 512, 768),
    (512, 128, 768),
    (256, 128, 768),
]
LAYOUTS = ("nn", "nt", "tn")  # torch's a @ b: t = the operand is a transposed view
SETTINGS: dict[str, tuple[torch.dtype, str, bool]] = {
    "float32": (torch.float32, "allow_tf32", False),
    "tf32": (torch.float32, "allow_tf32", True),
    "bfloat16": (torch.bfloat16, "allow_bf16_reduced_precision_reduction", True),
    "bfloat16-full": (torch.bfloat16, "allow_bf16_reduced_precision_reduction", False),
    "float16": (torch.float16, "allow_fp16_reduced_precision_reduction", True),
    "float16-full": (torch.float16, "allow_fp16_reduced_precision_reduction", False),
}


def shapes(ctx: Context) -> list[tuple[int, int, int]]:
    if ctx.dry:
        return [(7, 5, 9), (32, 24, 64), (33, 17, 130)]
    r = random.Random(8)
    sizes = [1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 96, 127, 128, 200, 256, 384, 512, 768, 1000, 1024, 1536, 2048]
    return GPT + [(r.choice(sizes), r.choice(sizes), r.choice([*sizes, 3072, 4096, 8192])) for _ in range(RANDOM)]


def units(ctx: Context) -> list[str]:
    settings = ["float32", "bfloat16"] if ctx.dry else list(SETTINGS)
    parts = (len(shapes(ctx)) + PART - 1) // PART
    return [f"{name}/{part}" for part in range(parts) for name in settings]


def operands(ctx: Context, name: str, index: int, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, str]:
    layout = LAYOUTS[index % len(LAYOUTS)]
    dtype = SETTINGS[name][0]
    a = ctx.fill((k, m), 2 * index, dtype).t() if layout[0] == "t" else ctx.fill((m, k), 2 * index, dtype)
    b = ctx.fill((n, k), 2 * index + 1, dtype).t() if layout[1] == "t" else ctx.fill((k, n), 2 * index + 1, dtype)
    return a, b, layout


def run(ctx: Context, unit: str) -> dict[str, Any]:
    name, part = unit.split("/")
    dtype, switch, on = SETTINGS[name]
    first = int(part) * PART
    rows = []
    before = getattr(torch.backends.cuda.matmul, switch)
    if not ctx.dry:
        setattr(torch.backends.cuda.matmul, switch, on)
    try:
        for index, (m, n, k) in enumerate(shapes(ctx)[first : first + PART], first):
            a, b, layout = operands(ctx, name, index, m, n, k)
            out, lines = logged(ctx, a, b)
            row = {"index": index, "m": m, "n": n, "k": k, "layout": layout, "digest": ctx.digest(out), "lines": lines}
            if not ctx.dry:
                row["heuristic"] = heuristic(name, m, n, k, layout)
            rows.append(row)
    finally:
        if not ctx.dry:
            setattr(torch.backends.cuda.matmul, switch, before)
    return {"dtype": str(dtype).removeprefix("torch."), "switch": f"{switch}={on}", "products": rows}


def logged(ctx: Context, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    if ctx.dry:
        return a @ b, []
    from step_oracle import record

    rec = record(None, digests=False)
    with rec:
        out = a @ b
    return out, [p["line"] for p in rec._recording.records()["plans"]]


# --- cuBLASLt's heuristic, asked without torch ----------------------------------------------------------------------
# [spec cuBLAS 13.0: cublasLt.h's enumerations]
_COMPUTE = {"tf32": 77}  # CUBLAS_COMPUTE_32F_FAST_TF32; the others CUBLAS_COMPUTE_32F
_TYPE = {"float32": 0, "tf32": 0, "bfloat16": 14, "bfloat16-full": 14, "float16": 2, "float16-full": 2}
_CONFIG = {
    "id": 0,
    "tile": 1,
    "splits": 2,
    "reduction": 3,
    "swizzle": 4,
    "custom": 5,
    "stages": 6,
    "inner": 7,
    "cluster": 8,
}
_WORKSPACE = 32 << 20


class _Result(ctypes.Structure):  # cublasLtMatmulHeuristicResult_t
    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


_handle: ctypes.c_void_p | None = None


def heuristic(name: str, m: int, n: int, k: int, layout: str, library: Any = None) -> dict[str, Any]:
    """The first algorithm that cuBLASLt proposes for torch's call; {"na": ...} where it cannot be asked."""
    global _handle
    from step_oracle.environment import _loaded

    lt = library or _loaded("libcublasLt.so")
    if lt is None:
        return {"na": "libcublasLt is not in this process"}
    try:
        if _handle is None:
            handle = ctypes.c_void_p()
            _ok(lt.cublasLtCreate(ctypes.byref(handle)))
            _handle = handle
        return _ask(lt, name, m, n, k, layout)
    except (AttributeError, OSError) as e:
        return {"na": str(e)}


def _ok(status: int) -> None:
    if status != 0:
        raise OSError(f"cuBLASLt answers {status}")


def _ask(lt: Any, name: str, m: int, n: int, k: int, layout: str) -> dict[str, Any]:
    assert _handle is not None
    made: list[tuple[str, ctypes.c_void_p]] = []

    def make(kind: str, *args: Any) -> ctypes.c_void_p:
        p = ctypes.c_void_p()
        _ok(getattr(lt, f"cublasLt{kind}Create")(ctypes.byref(p), *args))
        made.append((kind, p))
        return p

    try:
        # Row-major a @ b is column-major b^T a^T: cuBLAS's first operand is b.
        types, u64, i64 = ctypes.c_int(_TYPE[name]), ctypes.c_uint64, ctypes.c_int64
        desc = make("MatmulDesc", ctypes.c_int(_COMPUTE.get(name, 68)), ctypes.c_int(0))
        for attribute, transposed in ((3, layout[1] == "t"), (4, layout[0] == "t")):
            value = ctypes.c_int(1 if transposed else 0)
            _ok(
                lt.cublasLtMatmulDescSetAttribute(
                    desc, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(4)
                )
            )
        rows = [(k, n) if layout[1] == "t" else (n, k), (m, k) if layout[0] == "t" else (k, m), (n, m)]
        first, second, out = (make("MatrixLayout", types, u64(r), u64(c), i64(r)) for r, c in rows)
        wish = make("MatmulPreference")
        size = ctypes.c_size_t(_WORKSPACE)
        _ok(lt.cublasLtMatmulPreferenceSetAttribute(wish, ctypes.c_int(1), ctypes.byref(size), ctypes.c_size_t(8)))
        result, found = _Result(), ctypes.c_int()
        _ok(
            lt.cublasLtMatmulAlgoGetHeuristic(
                _handle, desc, first, second, out, out, wish, ctypes.c_int(1), ctypes.byref(result), ctypes.byref(found)
            )
        )
        if found.value < 1:
            return {"na": "no algorithm"}
        answer: dict[str, Any] = {"workspace": result.workspace}
        for key, attribute in _CONFIG.items():
            value, written = ctypes.c_uint32(), ctypes.c_size_t()
            if (
                lt.cublasLtMatmulAlgoConfigGetAttribute(
                    ctypes.byref(result),
                    ctypes.c_int(attribute),
                    ctypes.byref(value),
                    ctypes.c_size_t(4),
                    ctypes.byref(written),
                )
                == 0
            ):
                answer[key] = value.value
        return answer
    finally:
        for kind, p in reversed(made):
            getattr(lt, f"cublasLt{kind}Destroy")(p)
