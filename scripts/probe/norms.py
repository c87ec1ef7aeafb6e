"""Vectors of the norms' kernels: layer, RMS, group, batch."""

from __future__ import annotations

import torch

from .case import Arrays, Case, NoCall, T, calls, no_call

aten = torch.ops.aten
ALL = [True, True, True]


def named(names: str, values: tuple[T, ...]) -> Arrays:
    return {n: t.flatten() for n, t in zip(names.split(), values, strict=False)}


@calls("norm", "layer_norm", "layer_norm_rowwise")
def layer_norm(c: Case) -> Arrays:
    rows, n = c.sizes[:2]
    return named("y mean rstd", aten.native_layer_norm(c["x"].view(rows, n), [n], c.get("gamma"), c["beta"], 1e-5))


@calls("norm", "layer_norm_gamma_beta")
def layer_norm_parameters(c: Case) -> Arrays:
    rows, n = c.sizes[:2]
    x, dy, mean, rstd = c["x"].view(rows, n), c["dy"].view(rows, n), c["mean"].view(rows, 1), c["rstd"].view(rows, 1)
    one = torch.ones(n, dtype=x.dtype, device=x.device)
    out = aten.native_layer_norm_backward(dy, x, [n], mean, rstd, one, one, [False, True, True])
    return named("dgamma dbeta", out[1:])


@calls("norm", "layer_norm_bwd", "layer_norm_bwd_vectorized")
def layer_norm_backward(c: Case) -> Arrays:
    rows, n = c.sizes[:2]
    if c.base == "layer_norm_bwd" and n % 4 == 0:
        raise NoCall("torch takes the vectorised kernel for this width")
    x, dy, mean, rstd = c["x"].view(rows, n), c["dy"].view(rows, n), c["mean"].view(rows, 1), c["rstd"].view(rows, 1)
    out = aten.native_layer_norm_backward(dy, x, [n], mean, rstd, c.get("gamma"), None, [True, False, False])
    return named("dx", out)


@calls("norm", "rms_norm")
def rms_norm(c: Case) -> Arrays:
    rows, n = c.sizes[:2]
    return named("y rstd", aten._fused_rms_norm(c["x"].view(rows, n), [n], c.get("gamma"), 1e-6))


@calls("norm", "rms_norm_bwd")
def rms_norm_backward(c: Case) -> Arrays:
    rows, n = c.sizes[:2]
    x, dy, rstd = c["x"].view(rows, n), c["dy"].view(rows, n), c["rstd"].view(rows, 1)
    return named("dx", aten._fused_rms_norm_backward(dy, x, [n], rstd, c.get("gamma"), [True, False]))


# --- group norm: samples x channels x groups x places ---------------------------------------------------------------


@calls("norm", "group_norm_stats")
def group_norm(c: Case) -> Arrays:
    n, channels, groups, places = c.sizes
    out = aten.native_group_norm(c["x"], c["gamma"], c["beta"], n, channels, places, groups, 1e-5)
    return named("mean rstd", out[1:])


@calls("norm", "group_norm_bwd")
def group_norm_backward(c: Case) -> Arrays:
    n, channels, groups, places = c.sizes
    mean, rstd = c["mean"].view(n, groups), c["rstd"].view(n, groups)
    given = (c["dy"], c["x"], mean, rstd, c["gamma"], n, channels, places, groups, ALL)
    return named("dgamma dbeta", aten.native_group_norm_backward(*given)[1:])


no_call(
    "norm",
    "a map inside group norm: the op computes its factors from the tensor",
    "gn_y",
    "gn_y_plain",
    "gn_dx",
    "gn_dx_plain",
    "gn1_y",
    "gn1_y_gamma",
    "gn1_y_beta",
    "gn1_dx",
)


# --- batch norm: samples x channels x places, or rows x channels ----------------------------------------------------


def statistics(c: Case) -> Arrays:
    return named("mean var", aten.batch_norm_update_stats(c["x"], None, None, 0.1))


def sums(c: Case, mean: T, invstd: T) -> Arrays:
    weight = torch.ones(c["x"].size(1), dtype=torch.float32 if c.mixed else c.types[0], device=c.device)
    out = aten.batch_norm_backward_reduce(c["dy"], c["x"], mean, invstd, weight, *ALL)
    return named("sum_dy sum_dy_xmu dgamma dbeta", out)


@calls("norm", "batch_norm", "batch_norm_pure", "batch_norm_last")
def batch_norm(c: Case) -> Arrays:
    y = aten.batch_norm_elemt(c["x"], c["gamma"], c["beta"], c["given_mean"], c["given_invstd"], 1e-5)
    return statistics(c) | {"y": y.flatten()}


@calls("norm", "batch_norm_reduce")
def batch_norm_sums(c: Case) -> Arrays:
    return sums(c, c["mean"], c["invstd"])


@calls("norm", "batch_norm_blocks")
def batch_norm_blocks(c: Case) -> Arrays:
    return statistics(c) | sums(c, c["given_mean"], c["given_invstd"])


@calls("norm", "batch_norm_last_bwd")
def batch_norm_last_backward(c: Case) -> Arrays:
    return sums(c, c["mean"], c["invstd"]) | batch_norm_backward(c)


@calls("norm", "batch_norm_bwd", "batch_norm_pure_bwd")
def batch_norm_backward(c: Case) -> Arrays:
    train = c.mode == c.shape or not c.shape.endswith(":0")
    given = (c["dy"], c["x"], c["gamma"], c.get("running_mean"), c.get("running_var"), c["mean"], c["invstd"])
    return named("dx dgamma dbeta", aten.native_batch_norm_backward(*given, train, 1e-5, ALL))


@calls("norm", "batch_norm_invstd")
def batch_norm_invstd(c: Case) -> Arrays:
    """Evaluation gives back what it made of the running variance."""
    var = c["x"]
    x = torch.zeros(1, var.numel(), dtype=var.dtype, device=c.device)
    return {"out": aten.native_batch_norm(x, None, None, torch.zeros_like(var), var, False, 0.1, 1e-5)[2]}


@calls("norm", "bn_dx_eval", "bn_dx_eval_plain")
def batch_norm_evaluated(c: Case) -> Arrays:
    """One element a channel."""
    dy, invstd, *gamma = (x for name in "xyz" if (x := c.get(name)) is not None)
    given = (dy.view(1, -1), dy.view(1, -1), *(gamma or [None]), None, None, torch.zeros_like(dy), invstd)
    return {"out": aten.native_batch_norm_backward(*given, False, 1e-5, [True, False, False])[0].flatten()}


@calls("norm", "bn_y_general")
def batch_norm_general(c: Case) -> Arrays:
    """One element a channel, of a tensor without a layout."""
    x = c["x"].repeat_interleave(2)[::2].view(1, -1)
    return {"out": aten.batch_norm_elemt(x, c["y"], c["z"], c["u"], c["v"], 1e-5).flatten()}


no_call("norm", "torch takes one kernel for sums and gradient of planes", "batch_norm_elemt_bwd")
no_call("norm", "the op takes mean and variance from the tensor, not from its caller", "batch_norm_update")
no_call("norm", "a map of tensors without a common layout: the op computes its sums", "bn_dx_general")
