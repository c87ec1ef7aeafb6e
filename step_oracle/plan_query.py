"""What cuBLASLt's heuristic answers for a product, asked on a machine with a card: cublasLtMatmulAlgoGetHeuristic.

Libraries are opened when they are asked for; nothing here is needed where there is no card. The answer is for the card
of this machine and the library's version; nothing is computed.
"""

from __future__ import annotations

import ctypes
import glob
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from .plan_facts import Algorithm

# [spec cublasLt.h and cublas_api.h of nvidia-cublas 13.10.0.20, library_types.h of CUDA 13.0: tests/data/cublaslt.json]
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
_COMPUTE_32F, _OP_T = 68, 1
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _EPILOGUE_BIAS = 3, 4, 7, 4
_PREF_REDUCTION_MASK, _PREF_WORKSPACE = 3, 1
_NOT_REDUCED = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: what torch allows without reduced precision
_REDUCTIONS = {0: "NONE", 1: "INPLACE", 2: "COMPUTE_TYPE", 4: "OUTPUT_TYPE"}
_CONFIG = {"number": 0, "tile": 1, "splits": 2, "reduction": 3, "option": 5, "stages": 6}
# CUBLASLT_MATMUL_TILE_*, from 1 on. Beyond 35 come some hundreds that no published rule names.
_TILES = """8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64
            64x256 128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192
            128x96 32x256 256x32""".split()
# CUBLASLT_MATMUL_STAGES_* beyond 24
_STAGES = {25: "32x10", 26: "8x4", 27: "16x10", 28: "8x5", 31: "8x3", 32: "8xAUTO", 33: "16xAUTO", 34: "32xAUTO",
           35: "64xAUTO", 36: "128xAUTO", 37: "256xAUTO", 38: "768xAUTO"}


def tile_name(number: int) -> str:
    """"64x64"; "tile 57" where the table above ends, "" for UNDEFINED."""
    return _TILES[number - 1] if 1 <= number <= len(_TILES) else f"tile {number}" if number else ""


def stages_name(number: int) -> str:
    """1 to 24 are 16x1 .. 128x6; "stages 40" for one that the header does not name, "" for UNDEFINED."""
    if 1 <= number <= 24:
        return f"{16 << (number - 1) // 6}x{(number - 1) % 6 + 1}"
    return _STAGES.get(number, f"stages {number}" if number else "")


class _Result(ctypes.Structure):
    _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


@dataclass(frozen=True)
class Answer:
    algorithm: Algorithm
    version: str  # of the cuBLASLt that answered


def _open(names: list[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def require_card() -> None:
    """Raises ValueError, in one sentence, where this machine has no card to ask about."""
    driver = _open(["libcuda.so.1"])
    count = ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise ValueError("no NVIDIA card is present: cuBLASLt's heuristic answers for the card of its machine only; "
                         "read a log (step-oracle plan from-log) or a recording (step-oracle plan fit) of it")


def _library() -> ctypes.CDLL:
    import torch

    beside = pathlib.Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(glob.glob(f"{beside}/*/lib/libcublasLt.so.*"))
    named = os.environ.get("STEP_ORACLE_CUBLASLT")
    library = _open([named] if named else [*found, "libcublasLt.so.13", "libcublasLt.so.12"])
    if library is None:
        raise ValueError("libcublasLt is not found: install torch's CUDA build, or name it in STEP_ORACLE_CUBLASLT")
    return library


class _Lt:
    """Handles that are destroyed at the end; a status that is not 0 is an error."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.made = library, list[tuple[str, ctypes.c_void_p]]()
        library.cublasLtGetVersion.restype = ctypes.c_size_t

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.library, f"cublasLt{name}")(*args)
        if status != 0:
            raise ValueError(f"cublasLt{name} failed with status {status}: the product cannot be asked about")

    def make(self, kind: str, *args: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(f"{kind}Create", ctypes.byref(handle), *args)
        self.made.append((f"{kind}Destroy", handle))
        return handle

    def set(self, kind: str, handle: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self.call(f"{kind}SetAttribute", handle, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def close(self) -> None:
        for name, handle in reversed(self.made):
            getattr(self.library, f"cublasLt{name}")(handle)


def query(m: int, n: int, k: int, *, dtype: str = "bfloat16", layout: str = "nn", bias: bool = False,
          reduced_precision: bool = True, workspace: int = 32 << 20) -> Answer:
    """The first answer for torch's ``mm`` (``addmm`` with a bias). ``workspace``: bytes that torch would offer: 32 MiB
    on Hopper, else what CUBLASLT_WORKSPACE_SIZE says."""
    require_card()
    lt = _Lt(_library())
    try:
        lt.make("")
        handle = lt.made[0][1]
        desc = lt.make("MatmulDesc", _COMPUTE_32F, _TYPES["float32"])
        turned = [letter == "t" for letter in layout]
        for attribute, turn in ((_DESC_TRANSA, turned[1]), (_DESC_TRANSB, turned[0])):
            if turn:
                lt.set("MatmulDesc", desc, attribute, ctypes.c_int32(_OP_T))
        if bias:
            lt.set("MatmulDesc", desc, _DESC_EPILOGUE, ctypes.c_int32(_EPILOGUE_BIAS))
        sides = [(k, n) if turned[1] else (n, k), (m, k) if turned[0] else (k, m), (n, m), (n, m)]
        layouts = [lt.make("MatrixLayout", _TYPES[dtype], ctypes.c_uint64(rows), ctypes.c_uint64(cols),
                           ctypes.c_int64(rows)) for rows, cols in sides]
        preference = lt.make("MatmulPreference")
        lt.set("MatmulPreference", preference, _PREF_WORKSPACE, ctypes.c_uint64(workspace))
        if not reduced_precision:
            lt.set("MatmulPreference", preference, _PREF_REDUCTION_MASK, ctypes.c_uint32(_NOT_REDUCED))
        result, count = _Result(), ctypes.c_int(0)
        lt.call("MatmulAlgoGetHeuristic", handle, desc, *layouts, preference, 1, ctypes.byref(result),
                ctypes.byref(count))
        if count.value == 0:
            raise ValueError(f"cuBLASLt has no algorithm for {dtype} {layout} m {m} n {n} k {k}")
        number = int(lt.library.cublasLtGetVersion())
        return Answer(_algorithm(lt, result), f"{number // 10000}.{number // 100 % 100}.{number % 100}")
    finally:
        lt.close()


def _algorithm(lt: _Lt, result: _Result) -> Algorithm:
    values = {}
    for name, attribute in _CONFIG.items():
        value, written = ctypes.c_int32(0), ctypes.c_size_t(0)
        lt.call("MatmulAlgoConfigGetAttribute", ctypes.byref(result.algo), attribute, ctypes.byref(value),
                ctypes.c_size_t(4), ctypes.byref(written))
        values[name] = value.value
    return Algorithm(values["number"], tile_name(values["tile"]), stages_name(values["stages"]),
                     max(1, values["splits"]), _REDUCTIONS.get(values["reduction"], "unknown"),
                     values["option"])
