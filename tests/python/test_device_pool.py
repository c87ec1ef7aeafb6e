"""Pooling on device "oracle". Whole numbers and windows of 2, 4 and 8 elements make sums and divisions exact, so that
the bytes must equal the CPU's: shapes, strides, types, gradients. The kernels' bytes: tests/pool.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import step_oracle

Pool = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("a100-sxm-80gb")


POOLS: dict[str, tuple[Pool, tuple[int, ...]]] = {
    "max 2": (lambda x: F.max_pool2d(x, 2), (2, 3, 8, 10)),
    "max 3 overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 11)),
    "max dilated, ceil": (lambda x: F.max_pool2d(x, (2, 3), 2, (1, 1), (2, 1), ceil_mode=True), (2, 3, 9, 11)),
    "max without a batch": (lambda x: F.max_pool2d(x, 2), (3, 8, 10)),
    "max of one dimension": (lambda x: F.max_pool1d(x, 3, 2), (2, 3, 9)),
    "average 2": (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 10)),
    "average overlapping": (lambda x: F.avg_pool2d(x, (2, 4), (1, 2)), (2, 3, 8, 10)),
    "average with a divisor": (lambda x: F.avg_pool2d(x, 3, 2, divisor_override=8), (2, 3, 9, 11)),
    "average of one dimension": (lambda x: F.avg_pool1d(x, 4, 2), (2, 3, 10)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), (2, 3, 8, 8)),
    "adaptive of one dimension": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 3, 8)),
    "adaptive to one": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 8, 8)),
}


def of_planes(name: str) -> bool:
    return len(POOLS[name][1]) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "last"), [(n, last) for n in POOLS for last in (False, True)[: 1 + of_planes(n)]])
def test_equals_the_cpu_where_all_is_exact(name: str, last: bool, dtype: torch.dtype) -> None:
    pool, shape = POOLS[name]
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    x = x.to(memory_format=torch.channels_last) if last else x
    results = []
    for device in ("cpu", "oracle"):
        given = x.detach().to(device).requires_grad_()
        out = pool(given)
        out.backward(torch.arange(out.numel()).remainder(7).to(dtype).view(out.shape).to(device))
        assert given.grad is not None
        results.append((out.detach().cpu(), given.grad.cpu()))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def test_maxima_come_with_their_places() -> None:
    x = torch.tensor([[[[1.0, 5.0, 5.0], [float("nan"), 2.0, 0.0]]]], device="oracle")
    out, places = F.max_pool2d(x, 2, 1, return_indices=True)
    assert places.cpu().flatten().tolist() == [3, 1]  # a NaN wins; of equal ones the first
    assert out.isnan().cpu().flatten().tolist() == [True, False]


def test_adaptive_gradients_race_where_three_windows_meet() -> None:
    x = torch.ones(1, 2, 7, 7, device="oracle", requires_grad=True)
    with pytest.raises(NotImplementedError, match="_adaptive_avg_pool2d_backward.*windows that meet"):
        F.adaptive_avg_pool2d(x, 3).sum().backward()
    last = torch.ones(1, 2, 7, 7).to("oracle", memory_format=torch.channels_last).requires_grad_()
    F.adaptive_avg_pool2d(last, 3).sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            F.adaptive_avg_pool2d(last, 3).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_averages_of_channels_last_with_padding_have_the_gradients_of_the_card() -> None:
    """torch 2.13.0's CUDA kernel leaves out the padding (pytorch issue 188344): wrong, and what a card computes."""
    grads = []
    for form in (torch.contiguous_format, torch.channels_last):
        x = torch.ones(1, 2, 4, 4).to("oracle", memory_format=form).requires_grad_()
        F.avg_pool2d(x, 2, 1, 1).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    assert bool((grads[0] == 1).all()) and not torch.equal(*grads)


def test_float64_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="pooling of float64"):
        F.max_pool2d(torch.ones(1, 1, 4, 4, dtype=torch.float64, device="oracle"), 2)
