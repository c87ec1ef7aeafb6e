"""Which walk of k a cuBLASLt algorithm takes, as far as others have published it.

Sources
    paper         "The step oracle": sections 3.4 (float32: algorithms 0 and 20), 4 (24, 30, 55), 5.18 (1), 5.24
    cublas_match  facebookexperimental/triton, bitequiv/cublas_match at db4666f22: arch/sm90_lt13_1.py, plan.py and
                  kernels.py, cuBLASLt 13.1.1 on an H100. Its facts are used; its code and wording are not.

A plan is written as in a plan table (docs/plan-table.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Plan = dict[str, Any]
FIT = "fit its plan from the bytes (step-oracle plan fit)"
ROUNDINGS = (64, 32, 16, 8, 4)  # of a split's chunk; which one a float32 kernel takes is in no log [paper 5.18]


class NotKnown(ValueError):
    """Nobody has published how this algorithm walks k; the sentence says what to do."""


@dataclass(frozen=True)
class Algorithm:
    """The fields of a log line's ``algo=[...]``."""

    number: int
    tile: str = ""
    stages: str = ""  # "64x3", "64xAUTO"; "" where the line has none
    splits: int = 1
    reduction: str = "NONE"
    option: int = 0


@dataclass(frozen=True)
class Known:
    plan: Plan
    known: str  # where from


REDUCTIONS = {"NONE": "in_place", "INPLACE": "in_place", "COMPUTE_TYPE": "compute_type", "OUTPUT_TYPE": "output_type"}


def chunk(k: int, splits: int, rounding: int) -> int:
    """The kernels' own (csrc/kernels/gemm/plan.h)."""
    from . import device

    if k < 1 or splits < 1 or rounding < 1:
        raise ValueError(f"k {k} in {splits} parts, rounded to {rounding}, has no chunks; give whole numbers from 1 on")

    return int(device.extension().chunk_width(k, splits, rounding))


def _reduced(plan: Plan, reduction: str) -> Plan:
    if reduction not in REDUCTIONS:
        raise NotKnown(f"reduction scheme {reduction} is not known; {FIT}")
    how = REDUCTIONS[reduction]
    return plan if how == "compute_type" else {**plan, "reduction": how}


def _chunks(k: int, splits: int, rounding: int) -> Plan:
    width = chunk(k, splits, rounding)
    if width * (splits - 1) >= k:
        raise NotKnown(f"{splits} chunks of {width} leave a part of k = {k} empty: the rule is another one; {FIT}")
    return {"splits": splits, "width": width}


def _float32_splits(k: int, splits: int, bias: bool) -> list[Plan]:
    plans: list[Plan] = []
    for rounding in ROUNDINGS:
        width = chunk(k, splits, rounding)
        plan = {"splits": splits, "width": width, **({"bias": "first"} if bias else {})}  # the bias first [paper 3.4]
        if width * (splits - 1) < k and plan not in plans:
            plans.append(plan)
    return plans


# --- float32 --------------------------------------------------------------------------------------------------------


def _float32(a: Algorithm, k: int, bias: bool, hopper: bool) -> list[Known]:
    if a.number in (0, 20):
        where = "the fp32 chain [paper 3.4]"
        if a.splits == 1:
            return [Known({}, where)]
        plans = _float32_splits(k, a.splits, bias)
        open_ = "; the log leaves the chunk's rounding open" if len(plans) > 1 else ""
        return [Known(p, f"{where}, split{open_}") for p in plans]
    if a.number == 1:
        where = "an interleaved sliced chain [paper 5.18]; its tile is not published"
        return [Known({"slices": 4, "slice_width": width, **({"combine": c} if c != "in_order" else {})}, where)
                for width in (1, 2, 4, 8) for c in ("in_order", "adjacent", "halves")]
    if a.number == 55 and hopper:
        if a.splits == 1:
            return [Known({}, "nvjet, one pass [paper 5.21]")]
        plan = {"splits": a.splits, "deal": "round_robin", "width": 8}
        return [Known(plan, "nvjet, tiles of 8 in turn [paper 5.21]")]
    raise NotKnown(f"algorithm {a.number} for float32 is not known; {FIT}")


# --- 16-bit, tensor cores -------------------------------------------------------------------------------------------


def _algorithm_30(a: Algorithm, k: int, bias: bool) -> list[Known]:
    where = "algorithm 30 [paper 4]"
    forms: dict[str, Plan] = {"64x64": {"slices": 4, "slice_width": 16, "combine": "halves"},
                              "128x64": {"slices": 2, "slice_width": 32}}
    if a.splits > 1:
        return [Known(_reduced({**_chunks(k, a.splits, 64), **forms.get(a.tile, {})}, a.reduction), where)]
    if a.tile not in forms:
        raise NotKnown(f"algorithm 30 with tile {a.tile or 'unknown'} is not known (64x64 and 128x64 are); {FIT}")
    return [Known({**forms[a.tile], **({"bias": "slice_zero"} if bias else {})}, where)]


def _tile_k(a: Algorithm) -> tuple[int, int]:
    """Of a CUTLASS kernel: k of its tile, products added at once. Without stages: an s1688 kernel [cublas_match]."""
    if not a.stages or a.stages == "UNDEFINED":
        return 32, 8
    width = a.stages.split("x")[0]
    if width not in ("32", "64", "128"):
        raise NotKnown(f"algorithm {a.number} with stages {a.stages} is not known; {FIT}")
    return int(width), 16


def _cutlass(a: Algorithm, k: int, hopper: bool) -> list[Known]:
    where = "CUTLASS [cublas_match]" if hopper else "CUTLASS: as on Hopper [cublas_match], on this generation assumed"
    tile, group = _tile_k(a)
    plan: Plan = {"group": 8} if hopper and group == 8 else {}
    if a.splits == 1:
        short = {"tail": "short_first", "tail_width": tile} if k % tile else {}
        return [Known({**short, **plan}, where)]
    parts = _chunks(k, a.splits, 64 if k % 64 == 0 else 8)
    short = {"tail": "short_first", "tail_width": tile} if parts["width"] % tile or k % tile else {}
    return [Known(_reduced({**parts, **short, **plan}, a.reduction), where)]


def _nvjet(a: Algorithm, k: int) -> list[Known]:
    where = "nvjet [cublas_match]"
    if a.splits == 1:
        return [Known({}, where)]
    tiles, rest = divmod(k, 64)
    if rest and tiles % a.splits == 0 and a.splits > rest:  # the defect: the tail belongs to no part
        return [Known({"splits": a.splits, "width": tiles // a.splits * 64, "tail": "dropped", "tail_width": 64},
                      f"{where}: leaves the last {rest} of k out")]
    return [Known(_chunks(k, a.splits, 64), where)]


# --- 16-bit, CUDA cores ---------------------------------------------------------------------------------------------

SLICE_PER_LANE = {2: (48, 56, 62, 102), 4: (40, 50, 58, 68, 86, 96, 110), 8: (42, 52, 60, 66, 98, 106),
                  16: (44, 54, 72, 90, 100), 32: (36, 46, 74, 82, 92)}  # lanes -> options of algorithm 13
STRIDED = {2: (49, 57, 63, 95), 4: (41, 51, 59, 65, 69, 111), 8: (43, 53, 61, 67, 89), 16: (35, 45, 55, 81, 91, 101),
           32: (37, 47, 75, 83, 93)}
CLOSED_SINGLE = {0: 512, 7: 256, 8: 256}  # option -> positions after which the one lane closes its chain
CLOSED_LANES = {11: 32, 12: 16, 13: 16, 14: 16}  # 16 lanes, added left to right


# On 7.5 the class of bfloat16 itself; elsewhere "unit": "chain".
MAGMA = "magma_sgemmEx_kernel, one chain on the CUDA cores: as on Hopper [cublas_match], on this generation assumed"


def _gemv(a: Algorithm, m: int, n: int, k: int, threads: int) -> Plan:
    part = -(-k // a.splits)
    lanes = next((w for table in (SLICE_PER_LANE, STRIDED) for w, options in table.items() if a.option in options), 0)
    if a.option == 5 and a.splits == 1 and m == 1:
        share = -(-k // 32)
        return {"splits": -(-k // share), "width": share, **({"block": 16} if share > 16 else {})} if share > 1 else {
            "slices": 32, "slice_width": 1}
    if a.option == 10:
        if max(m, n) > threads // 32:
            raise NotKnown(f"algorithm 13 with option 10 for {max(m, n)} outputs: the library takes other lanes "
                           f"beyond {threads // 32}; {FIT}")
        plan: Plan = {"slices": 32, "slice_width": 4, "combine": "halves"}
    elif a.option in (6, 84):
        plan = {}
    elif a.option in CLOSED_SINGLE:
        plan = {"block": CLOSED_SINGLE[a.option]}
    elif a.option in CLOSED_LANES:
        plan = {"slices": 16, "slice_width": 1, "block": CLOSED_LANES[a.option]}
    elif lanes:
        width = min(64, -(-part // lanes)) if a.option in SLICE_PER_LANE[lanes] else 1
        plan = {"slices": lanes, "slice_width": width, "combine": "halves"}
    else:
        raise NotKnown(f"algorithm 13 with option {a.option} is not known; {FIT}")
    return {"splits": a.splits, "width": part, **plan} if a.splits > 1 else plan


def _cuda_cores(a: Algorithm, m: int, n: int, k: int, layout: str, threads: int) -> list[Known]:
    where, unit = "on the CUDA cores [cublas_match]", {"unit": "chain"}
    if a.number == 16:
        return [Known(unit, where)]
    if a.number == 11:
        if a.option not in (0, 1) or a.splits != 1:
            raise NotKnown(f"algorithm 11 with option {a.option} and {a.splits} parts is not known; {FIT}")
        parts, block = ((2, 256), (4, 128))[a.option]
        width = -(-k // parts)
        return [Known({"splits": parts, "width": width, **({"block": block} if width > block else {}), **unit}, where)]
    if m != 1 and n != 1:
        raise NotKnown(f"algorithm {a.number} for a product that is no vector is not known; {FIT}")
    if a.number == 13:
        return [Known({**_gemv(a, m, n, k, threads), **unit}, where)]
    if layout != "nn":
        raise NotKnown(f"algorithm 14 for layout {layout} is not known (nn is); {FIT}")
    load = 2 if n == 1 else 1
    plan: Plan = {"slices": 128 * load, "slice_width": 1, "combine": "pairs" if load == 2 else "halves", **unit}
    if a.splits > 1:
        plan = {"splits": a.splits, "width": 128 * load, "deal": "round_robin", "order": "one_block", **plan}
    return [Known(plan, where)]


# --- kernels by name ------------------------------------------------------------------------------------------------


def of_kernel(name: str, k: int, compute_capability: str, splits: int = 1) -> list[Known]:
    """The plans of a kernel that a profiler names. Raises NotKnown for other names."""
    if re.search(r"(?:^|\b)magma_sgemmEx_kernel<float, __nv_bfloat16\b", name) and compute_capability == "7.5":
        return [Known({}, MAGMA)]
    if m := re.search(r"(?:^|_)s(?:gemm|gemmEx)_\d+x\d+(?:_\d+x\d+)?(_sliced1x4)?", name):
        return _float32(Algorithm(1 if m[1] else 0, splits=1 if m[1] else splits), k, False, False)
    if m := re.search(r"_s(1688|16816|161616)gemm_.*?(?:stages_(\d+)x\d+|(\d+)x(\d+)_nn_align|$)", name):
        stages = f"{m[2]}x1" if m[2] else ""
        found = _cutlass(Algorithm(21, stages=stages, splits=splits), k, compute_capability == "9.0")
        return [Known({**f.plan, "group": 8} if m[1] == "1688" and compute_capability == "9.0" else f.plan, f.known)
                for f in found]
    raise NotKnown(f"kernel {name} is not known; {FIT}")


# --- all ------------------------------------------------------------------------------------------------------------


def plans_of(a: Algorithm, *, dtype: str, m: int, n: int, k: int, bias: bool, compute_capability: str, sms: int,
             threads_per_sm: int, layout: str = "nn") -> list[Known]:
    """The plans that an algorithm may be: one where what is published decides it. m, n in torch's words."""
    for name, value in (("m", m), ("n", n), ("k", k), ("the number of parts", a.splits)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give 1 or more")
    if dtype == "bfloat16" and compute_capability == "7.5":  # no tensor cores take it
        if a.number == 16 and a.splits == 1:
            return [Known({}, MAGMA)]
        raise NotKnown(f"algorithm {a.number} in {a.splits} parts for bfloat16 on compute capability 7.5 is not known; "
                       f"{FIT}")
    hopper = compute_capability == "9.0"
    if dtype == "float32":
        return _float32(a, k, bias, hopper)
    if a.number == 30 and not hopper:
        return _algorithm_30(a, k, bias)
    if a.number == 66 and hopper:
        return _nvjet(a, k)
    if a.number in (11, 13, 14, 16) and hopper:
        return _cuda_cores(a, m, n, k, layout, sms * threads_per_sm)
    if a.number in (12, 21, 23, 24):  # 6 is seen in logs, and nobody has published its walk
        return _cutlass(a, k, hopper)
    raise NotKnown(f"algorithm {a.number} of compute capability {compute_capability} for {dtype} is not known; {FIT}")
