"""Vectors of kernels over images: pools, nearest neighbours, columns. A name with "_last" has channels last."""

from __future__ import annotations

import torch

from .case import Arrays, Case, T, calls

aten = torch.ops.aten


def image(c: Case, name: str) -> T:
    return c[name].permute(0, 3, 1, 2) if "_last" in c.base else c[name]


def flat(c: Case, t: T) -> T:
    """In the file's order."""
    return (t.permute(0, 2, 3, 1) if "_last" in c.base else t).flatten()


@calls("pool", "max_pool", "max_pool_last")
def max_pool(c: Case) -> Arrays:
    x, (*window, ceil) = image(c, "x"), (*c.pairs[1:], c.shape.endswith(":c"))
    y, indices = aten.max_pool2d_with_indices(x, *window, ceil)
    dx = aten.max_pool2d_with_indices_backward(image(c, "dy"), x, *window, ceil, indices)
    return {"y": flat(c, y), "indices": flat(c, indices), "dx": flat(c, dx)}


AVERAGES = {"": (True, None), "_inside": (False, None), "_by7": (True, 7)}  # count_include_pad, divisor_override


@calls("pool", "avg_pool", "avg_pool_last")
def avg_pool(c: Case) -> Arrays:
    x, (window, stride, pad), ceil = image(c, "x"), c.pairs[1:4], c.shape.endswith(":c")
    out = {}
    for name, (padded, divisor) in AVERAGES.items():
        given = (window, stride, pad, ceil, padded, divisor)
        out[f"y{name}"] = flat(c, aten.avg_pool2d(x, *given))
        out[f"dx{name}"] = flat(c, aten.avg_pool2d_backward(image(c, "dy"), x, *given))
    return out


@calls("pool", "adaptive_pool", "adaptive_pool_last")
def adaptive_pool(c: Case) -> Arrays:
    x = image(c, "x")
    dx = aten._adaptive_avg_pool2d_backward(image(c, "dy"), x)
    return {"y": flat(c, aten._adaptive_avg_pool2d(x, c.pairs[1])), "dx": flat(c, dx)}


@calls("pool", "nearest", "nearest_exact")
def nearest(c: Case) -> Arrays:
    size, to = c.pairs
    name = "upsample_nearest2d" if c.base == "nearest" else "_upsample_nearest_exact2d"
    forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    return {"y": forward(c["x"], to).flatten(), "dx": backward(c["dy"], to, size).flatten()}


@calls("indexing", "col2im")
def col2im(c: Case) -> Arrays:
    (n, channels, *size), window, pad, stride, dilation = c.pairs
    columns = c["columns"].view(n, channels * window[0] * window[1], -1)
    return {"image": aten.col2im(columns, size, window, dilation, pad, stride).flatten()}
