"""What torch computes for a row of tests/data/compiled: one function a kernel, from its inputs to its outputs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import torch

Row = dict[str, Any]
Inputs = dict[str, torch.Tensor]
Function = Callable[[Inputs, Row], tuple[torch.Tensor, ...]]
aten = torch.ops.aten
OPERATIONS: dict[str, Function] = {}


def simple(name: str, function: Callable[..., torch.Tensor]) -> None:
    """a map of the inputs x, y, z"""
    OPERATIONS[name] = lambda given, row: (function(*given.values()),)


def is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point


for _name in "neg abs sign floor ceil trunc round frac erf log2 log10 log1p expm1 sqrt reciprocal".split():
    simple(_name, getattr(torch, _name))
for (
    _name
) in "logical_not signbit isposinf isneginf bitwise_not fmod remainder maximum minimum fmax fmin copysign".split():
    simple(_name, getattr(torch, _name))
for _name in "heaviside logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split():
    simple(_name, getattr(torch, _name))
for _name in "ge gt le lt eq ne add mul div pow".split():
    simple(_name, getattr(torch, _name))
simple("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor"))
simple("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"))
simple("add_alpha", lambda x, y: torch.add(x, y, alpha=0.3 if is_float(x) else 3))
simple("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.05 if is_float(x) else 3))
simple("addcmul_one", torch.addcmul)
simple("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=-0.001))
simple("addcdiv_one", torch.addcdiv)
simple("lerp", lambda x, y: torch.lerp(x, y, 0.1))
simple("lerp_high", lambda x, y: torch.lerp(x, y, 0.9))
simple("lerp_tensor", torch.lerp)
simple("clamp_tensor", torch.clamp)
simple("clamp_min", lambda x: x.clamp(min=-0.5 if is_float(x) else 2))
simple("clamp_max", lambda x: x.clamp(max=1.25 if is_float(x) else 9))
simple("clamp", lambda x: x.clamp(*((-0.5, 1.25) if is_float(x) else (2, 9))))
simple("threshold", lambda x, y: aten.threshold_backward(y, x, 2))
simple("masked_fill", lambda x, y: x.masked_fill(y, -7))
simple("pow_of", lambda x: torch.pow(1.5, x))
simple("pow2", lambda x: x.pow(2))
simple("pow3", lambda x: x.pow(3))
simple("pow_minus2", lambda x: x.pow(-2))
simple("pow_1p7", lambda x: x.pow(1.7))
simple("nan_to_num", lambda x: x.nan_to_num(0.25, 100.0, -7.0))
OPERATIONS["prelu_backward"] = lambda given, row: aten._prelu_kernel_backward(given["z"], given["x"], given["y"])
OPERATIONS["glu_backward"] = lambda given, row: (aten.glu_backward(given["y"], given["x"], 0),)


@lambda f: OPERATIONS.__setitem__("cast", f)
def _cast(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    return (given["x"].to(DTYPES[row["type"]]),)


@lambda f: OPERATIONS.__setitem__("arange", f)
def _arange(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    dtype, n = DTYPES[row["type"]], int(row["shape"])
    a, b = (0.1, 0.3) if dtype.is_floating_point else (-5, 7)
    return (torch.arange(a, a + (n - 0.5) * b, b, dtype=dtype, device=row["device"]),)


DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def reduction(
    name: str, function: Callable[..., torch.Tensor], whole: Callable[..., torch.Tensor] | None = None
) -> None:
    """over the last dimension, the first, or all of a matrix"""

    def run(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
        mode, where = row["shape"].split(":")
        rows, cols = (int(v) for v in where.split("x"))
        x = given["x"].view(rows, cols)
        if mode == "all":
            return ((whole or function)(x.view(-1), 0) if whole is None else whole(x),)
        return (function(x, 1 if mode == "row" else 0),)

    OPERATIONS[name] = run


for _name in "prod amax amin argmax argmin mean any all".split():
    reduction(_name, getattr(torch, _name))
ORDERS = (("norm3", 3.0), ("norm_half", 0.5))
for _name, _order in (("norm0", 0), ("norm1", 1), ("norm2", 2), ("normmax", math.inf), ("normmin", -math.inf)) + ORDERS:
    reduction(_name, lambda x, dim, order=_order: torch.linalg.vector_norm(x, order, dim))
reduction("sum", lambda x, dim: x.sum(dim, dtype=x.dtype))
reduction("var", lambda x, dim: x.var(dim))
reduction("std", lambda x, dim: x.std(dim))


reduction("nansum", lambda x, dim: x.nansum(dim))


def _moments(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    mode, where = row["shape"].split(":")
    x = given["x"].view([int(v) for v in where.split("x")])
    return tuple(getattr(torch, row["op"])(x, 1 if mode == "row" else 0))


OPERATIONS["var_mean"] = OPERATIONS["std_mean"] = _moments


def spatial(name: str, forward: Any, backward: Any) -> None:
    def shaped(x: torch.Tensor, row: Row) -> torch.Tensor:
        return x.view([int(v) for v in row["shape"].split("x")])

    OPERATIONS[name] = lambda given, row: (forward(shaped(given["x"], row), 1, False),)
    OPERATIONS[f"{name}_backward"] = lambda given, row: (
        backward(shaped(given["grad"], row), shaped(given["y"], row), 1, given["y"].dtype),
    )


spatial("softmax_spatial", aten._softmax, aten._softmax_backward_data)
spatial("log_softmax_spatial", aten._log_softmax, aten._log_softmax_backward_data)


def masked_softmax(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    shape = sizes(row)
    mask = given["mask"].view(shape[0], -1) if len(shape) == 4 else given["mask"].view(shape)
    return (aten._masked_softmax(given["x"].view(shape), mask, len(shape) - 1, 1 if len(shape) == 4 else 2),)


def masked_softmax_backward(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    return (aten._masked_softmax_backward(*(given[k].view(sizes(row)) for k in ("grad", "y", "mask")), 1),)


OPERATIONS["masked_softmax"] = OPERATIONS["masked_softmax_special"] = masked_softmax
OPERATIONS["masked_softmax_backward"] = masked_softmax_backward


def sizes(row: Row) -> list[int]:
    return [int(v) for v in row["shape"].split(":")[-1].split("x")]


def norms(kind: str) -> None:
    def forward(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
        m, n = sizes(row)
        x, gamma, beta = given["x"].view(m, n), given.get("gamma"), given.get("beta")
        if kind == "rms":
            return tuple(aten._fused_rms_norm(x, [n], gamma, 1e-6))
        return tuple(aten.native_layer_norm(x, [n], gamma, beta, 1e-6))

    def backward(given: Inputs, row: Row, mask: tuple[bool, bool, bool]) -> tuple[torch.Tensor, ...]:
        m, n = sizes(row)
        x, dy, rstd, gamma = given["x"].view(m, n), given["dy"].view(m, n), given["rstd"].view(m, 1), given.get("gamma")
        if kind == "rms":
            out = aten._fused_rms_norm_backward(dy, x, [n], rstd, gamma, mask[:2])
        else:
            mean = given["mean"].view(m, 1)
            out = aten.native_layer_norm_backward(dy, x, [n], mean, rstd, gamma, gamma, mask)
        return tuple(v for v, wanted in zip(out, mask, strict=False) if wanted)

    for form in ("", "_gamma", "_beta", "_gamma_beta"):
        for path in ("", "_rowwise"):
            OPERATIONS[f"{kind}_norm{form}{path}"] = forward
    for form in ("dx", "dx_gamma", "dx_rowwise", "dx_gamma_rowwise"):
        OPERATIONS[f"{kind}_norm_{form}"] = lambda given, row: backward(given, row, (True, False, False))
    OPERATIONS[f"{kind}_norm_parameters"] = lambda given, row: backward(given, row, (False, True, True))


norms("rms")
norms("layer")


def _group(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    n, c, g, places = sizes(row)
    x = given["x"].view(n, c, places)
    return tuple(aten.native_group_norm(x, given["gamma"], given["beta"], n, c, places, g, 1e-5))


def _group_one(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    n, c, g = sizes(row)
    x, dy, mean, rstd = (given[k].view(n, -1) for k in ("x", "dy", "mean", "rstd"))
    return tuple(aten.native_group_norm_backward(dy, x, mean, rstd, given["gamma"], n, c, 1, g, [True] * 3))


OPERATIONS["group_norm"] = _group
OPERATIONS["group_norm_one_place_backward"] = _group_one
REDUCTION = {"none": 0, "mean": 1, "sum": 2}


def _nll(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    """a vector, rows, or places of an image; none, mean or sum; forward or backward"""
    op, shape, mode = row["op"], sizes(row), row["shape"].partition(":")[0] if ":" in row["shape"] else "none"
    vector, image = "vector" in op, "2d" in op
    rows = shape[:1] if not image else [shape[0], *shape[2:]]
    target = given["target"].view([] if vector else rows)
    weight, reduction, ignored = given["weight"], REDUCTION[mode], -100 if vector else 1
    name = "nll_loss2d" if image else "nll_loss"
    if "backward" not in op:
        out = getattr(aten, f"{name}_forward")(given["x"].view(shape), target, weight, reduction, ignored)
        return tuple(out)[: len(row["outputs"])]
    x = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    total = given["total"].view([]) if "total" in given else torch.zeros([], dtype=x.dtype, device=x.device)
    grad = given["grad"].view(rows if mode == "none" else [])
    return (getattr(aten, f"{name}_backward")(grad, x, target, weight, reduction, ignored, total),)


for _name in "weight vector none".split():
    OPERATIONS[f"nll_{_name}"] = OPERATIONS[f"nll_{_name}_backward"] = _nll
OPERATIONS["nll2d_none"] = OPERATIONS["nll2d_none_backward"] = _nll


def _embedding_scaled(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    n, width, vocab = sizes(row)
    return (aten.embedding_dense_backward(given["grad"].view(n, width), given["indices"], vocab, -1, True),)


OPERATIONS["embedding_scaled"] = _embedding_scaled


def listed(given: Inputs, letter: str) -> list[torch.Tensor]:
    return [x for name, x in given.items() if name.startswith(letter)]


def _amsgrad(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    p, g, m, v, x = (listed(given, letter) for letter in "pgmvx")
    steps = [torch.full([], 7.0 + 100 * j, device=row["device"]) for j in range(len(p))]
    fused = torch._fused_adamw_ if row["op"].startswith("adamw") else torch._fused_adam_
    mode = row["shape"].partition(":")[0]
    scale = torch.full([1], 1000.0, device=row["device"]) if mode == "scaled" else None
    options = dict(lr=0.03, beta1=0.9, beta2=0.95, weight_decay=0.3, eps=1e-8, amsgrad=True, maximize=mode == "max")
    fused(p, g, m, v, x, steps, **options, grad_scale=scale, found_inf=None)
    return tuple(given[name] for name in row["outputs"])


def _unscale(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    found = torch.zeros(1, device=row["device"])
    scale = torch.full([1], 1 / 3, device=row["device"])
    torch._amp_foreach_non_finite_check_and_unscale_(listed(given, "x"), found, scale)
    return (*listed(given, "x"), found)


def _update(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    found, tracker = (int(v) for v in row["shape"].split("+"))
    scale = torch.full([1], 65535.7, device=row["device"])
    growth = torch.full([1], tracker, dtype=torch.int32, device=row["device"])
    torch._amp_update_scale_(scale, growth, torch.full([1], float(found), device=row["device"]), 1.7, 0.3, 5)
    return scale, growth


OPERATIONS["adam_amsgrad"] = OPERATIONS["adamw_amsgrad"] = _amsgrad
OPERATIONS["foreach_norm_one"] = lambda given, row: tuple(torch._foreach_norm(listed(given, "x"), 1))
OPERATIONS["foreach_norm_inf"] = lambda given, row: tuple(torch._foreach_norm(listed(given, "x"), math.inf))
OPERATIONS["foreach_maximum"] = lambda given, row: tuple(torch._foreach_maximum(listed(given, "x"), listed(given, "y")))
OPERATIONS["foreach_minimum"] = lambda given, row: tuple(torch._foreach_minimum(listed(given, "x"), listed(given, "y")))
OPERATIONS["amp_unscale"] = _unscale
OPERATIONS["amp_update"] = _update


def rewind(row: Row) -> None:
    state = struct.pack("<QQ", row["notes"]["seed"], row["notes"]["offset"])
    device = torch.device(row["device"])
    getattr(torch, device.type).set_rng_state(torch.tensor(list(state), dtype=torch.uint8), device)


def drawn(name: str, draw: Callable[[torch.Tensor, Inputs], torch.Tensor]) -> None:
    """a fill from the generator state of the row"""

    def run(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
        rewind(row)
        x = torch.empty(int(row["shape"]), dtype=DTYPES[row["type"]], device=row["device"])
        return (draw(x, given),)

    OPERATIONS[name] = run


drawn("exponential", lambda x, given: x.exponential_(1.5))
drawn("geometric", lambda x, given: x.geometric_(0.3))
drawn("cauchy", lambda x, given: x.cauchy_(0.5, 2.0))
drawn("log_normal", lambda x, given: x.log_normal_(0.5, 0.25))
drawn("normal", lambda x, given: x.normal_(0.5, 0.25))
drawn("random_from_to", lambda x, given: x.random_(-7, 50250))
drawn("random_from_to_wide", lambda x, given: x.random_(-7, (1 << 40) - 4))
drawn("bernoulli_tensor", lambda x, given: x.bernoulli_(given["p"]))


def _multinomial(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    rows, cols, samples = sizes(row)
    rewind(row)
    return (torch.multinomial(given["p"].view(rows, cols), samples, replacement=True),)


OPERATIONS["multinomial"] = _multinomial


def _sort(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    mode, (rows, n) = row["shape"].partition(":")[0], sizes(row)
    return tuple(torch.sort(given["x"].view(rows, n), dim=1, descending="descending" in mode, stable="stable" in mode))


def _topk(given: Inputs, row: Row) -> tuple[torch.Tensor, ...]:
    rows, n, count = sizes(row)
    return tuple(torch.topk(given["x"].view(rows, n), count, dim=1, largest=row["shape"].startswith("largest")))


OPERATIONS["sort_rows"], OPERATIONS["topk_rows"] = _sort, _topk
