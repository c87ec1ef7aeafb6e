"""Vectors of elementwise kernels, and of those over lists of tensors: one row a kernel, for every type."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .case import Arrays, Case, T, calls, no_call

aten = torch.ops.aten

# What the kernel was given: its inputs x, y, z in its own order; numbers as the witness tool's (see
# tests/data/compiled_kernel_cases.patch).
MAPS: dict[str, Callable[..., T]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "relu": torch.relu,
    "pow2": lambda x: x.pow(2),
    "pow3": lambda x: x.pow(3),
    "pow_minus2": lambda x: x.pow(-2),
    "pow_1p7": lambda x: x.pow(1.7),
    "add_scalar": lambda x: torch.add(x, 1e-8),
    "mul_scalar": lambda x: x * 0.1,
    "div_scalar": lambda x: x / 0.3,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.1),
    "lerp_high": lambda x, y: torch.lerp(x, y, 0.9),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "gelu_tanh_bwd": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "gelu_erf_bwd": lambda g, x: aten.gelu_backward(g, x),
    "silu_bwd": lambda g, x: aten.silu_backward(g, x),
    "tanh_bwd": lambda g, y: aten.tanh_backward(g, y),
    "sigmoid_bwd": lambda g, y: aten.sigmoid_backward(g, y),
    "threshold_bwd": lambda x, g: aten.threshold_backward(g, x, 0),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.05),
    "addcmul_one": torch.addcmul,
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=-0.001),
    "addcdiv_one": torch.addcdiv,
    "elu": lambda x: aten.elu(x, 1.6732632, 1.0507010),
    "elu_input_scale": lambda x: aten.elu(x, 0.7, 1.0, 1 / 0.7),
    "elu_bwd": lambda g, x: aten.elu_backward(g, 1.7580993 / 1.0507010, 1.0507010, 0.9, False, x),
    "elu_bwd_result": lambda g, y: aten.elu_backward(g, 1.7580993 / 1.0507010, 1.0507010, 0.9, True, y),
    "softplus": lambda x: F.softplus(x, 1.3, 20),
    "softplus_bwd": lambda g, x: aten.softplus_backward(g, x, 1.3, 20),
    "mish": F.mish,
    "mish_bwd": lambda g, x: aten.mish_backward(g, x),
    "hardswish": F.hardswish,
    "hardswish_bwd": lambda g, x: aten.hardswish_backward(g, x),
    "hardsigmoid": F.hardsigmoid,
    "hardsigmoid_bwd": lambda g, x: aten.hardsigmoid_backward(g, x),
    "log_sigmoid": F.logsigmoid,
    "log_sigmoid_bwd": lambda x, g: aten.log_sigmoid_backward(g, x, x.new_empty(0)),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.013),
    "leaky_relu_bwd": lambda x, g: aten.leaky_relu_backward(g, x, 0.013, False),
    "prelu": lambda x, w: aten._prelu_kernel(x, w),
    "glu": lambda x, y: F.glu(torch.cat([x, y]), 0),
    "hardtanh_bwd": lambda g, x: aten.hardtanh_backward(g, x, -0.8, 1.2),
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "shrink_bwd": lambda g, x: aten.hardshrink_backward(g, x, 0.4),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.7),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7),
    "bce": lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    "bce_bwd": lambda g, x, y: aten.binary_cross_entropy_backward(g, x, y, None, 0),
    "nan_to_num": lambda x: torch.nan_to_num(x, 0.25, 100.0, -7.0),
}
_NAMED = (
    "exp log tanh sigmoid sqrt rsqrt reciprocal sin cos add mul div xlogy logaddexp fmax fmin copysign heaviside "
    "tan asin acos atan sinh cosh asinh acosh atanh atan2 hypot"
)
MAPS |= {name: getattr(torch, name) for name in _NAMED.split()}

FOREACH: dict[str, Callable[[list[T], list[T], list[T]], object]] = {
    "foreach_mul": lambda x, y, z: torch._foreach_mul_(x, 0.95),
    "foreach_add": lambda x, y, z: torch._foreach_add_(x, 1e-8),
    "foreach_lerp": lambda x, y, z: torch._foreach_lerp_(x, y, 1 - 0.9),
    "foreach_addcmul": lambda x, y, z: torch._foreach_addcmul_(x, y, z, 1 - 0.95),
    "foreach_addcdiv": lambda x, y, z: torch._foreach_addcdiv_(x, y, z, [-0.0012, -0.0034]),
    "foreach_add_list": lambda x, y, z: torch._foreach_add_(x, y, alpha=-0.03),
    "foreach_div": lambda x, y, z: torch._foreach_div_(x, [0.31, 0.77]),
}

no_call(
    "pointwise",
    "the kernel's factor 0.3 is neither 1 nor 1 or 2 over a number of elements",
    "smooth_l1_bwd",
    "huber_bwd",
    "mse_bwd_half",
)


@calls("pointwise", *MAPS)
def elementwise(c: Case) -> Arrays:
    return {"out": MAPS[c.base](*(x for n in "xyz" if (x := c.get(n)) is not None))}


@calls("pointwise", *FOREACH)
def foreach(c: Case) -> Arrays:
    xs = c.listed("x")
    FOREACH[c.base](xs, c.listed("y"), c.listed("z"))
    return {f"x{i}_out": t for i, t in enumerate(xs)}


@calls("pointwise", "foreach_sqrt")
def foreach_sqrt(c: Case) -> Arrays:
    return {f"out{i}": t for i, t in enumerate(torch._foreach_sqrt(c.listed("x")))}


@calls("reduce", "foreach_norm")
def foreach_norm(c: Case) -> Arrays:
    return {f"norm{i}": t.view(1) for i, t in enumerate(torch._foreach_norm(c.listed("x"), 2.0))}


@calls("pointwise", "cast")
def cast(c: Case) -> Arrays:
    return {"out": c["x"].to(c.result)}


MSE_ELEMENTS = 3000  # of the tensor that the factor 2 / 3000 stands for; the file has its first ones


@calls("pointwise", "mse_bwd")
def mse_backward(c: Case) -> Arrays:
    x, y, g = (torch.cat([v, v.new_zeros(MSE_ELEMENTS - v.numel())]) for v in (c["x"], c["y"], c["z"]))
    return {"out": aten.mse_loss_backward(g, x, y, 1)[: c["x"].numel()]}
