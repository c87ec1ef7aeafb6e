"""Upsampling by nearest neighbours and padding by reflection and replication on device "oracle": copies equal the CPU's
bytes, and so do gradients of whole numbers. Where a card's gradient is a race it is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import step_oracle

Case = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("l40s")


CASES: dict[str, tuple[Case, tuple[int, ...]]] = {
    "twice": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 4, 5)),
    "to a size": (lambda x: F.interpolate(x, (7, 9)), (2, 3, 4, 5)),
    "smaller": (lambda x: F.interpolate(x, (3, 2)), (2, 3, 8, 7)),
    "to the same size": (lambda x: F.interpolate(x, (4, 5)), (2, 3, 4, 5)),
    "exact": (lambda x: F.interpolate(x, (7, 9), mode="nearest-exact"), (2, 3, 4, 5)),
    "one dimension": (lambda x: F.interpolate(x, 11), (2, 3, 4)),
    "one dimension, exact": (lambda x: F.interpolate(x, scale_factor=3, mode="nearest-exact"), (2, 3, 4)),
    "reflect one side": (lambda x: F.pad(x, (2, 0), "reflect"), (2, 3, 6)),
    "replicate by one": (lambda x: F.pad(x, (1, 1), "replicate"), (2, 3, 6)),
    "reflect columns": (lambda x: F.pad(x, (2, 1, 0, 0), "reflect"), (2, 3, 4, 9)),
    "replicate rows, cut columns": (lambda x: F.pad(x, (-1, 0, 1, 1), "replicate"), (2, 3, 4, 9)),
    "reflect without a batch": (lambda x: F.pad(x, (0, 0, 2, 0), "reflect"), (3, 6, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_copies_and_gradients_of_whole_numbers(name: str, dtype: torch.dtype) -> None:
    case, shape = CASES[name]
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    results = []
    for device in ("cpu", "oracle"):
        given = x.detach().to(device).requires_grad_()
        out = case(given)
        out.backward(torch.arange(out.numel()).remainder(5).to(dtype).view(out.shape).to(device))
        assert given.grad is not None
        results.append((out.detach().cpu(), given.grad.cpu()))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def test_layouts_and_whole_types() -> None:
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    assert torch.equal(F.interpolate(x.to("oracle"), scale_factor=2).cpu(), F.interpolate(x, scale_factor=2))
    last = x.float().to(memory_format=torch.channels_last)
    out = F.interpolate(last.to("oracle"), scale_factor=2)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out.cpu(), F.interpolate(x.float(), scale_factor=2))
    whole = x.long()
    assert torch.equal(F.pad(whole.to("oracle"), (1, 1, 1, 1), "reflect").cpu(), F.pad(whole, (1, 1, 1, 1), "reflect"))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_a_gradient_of_three_copies_races(mode: str) -> None:
    x = torch.ones(1, 2, 5, 5, device="oracle", requires_grad=True)
    out = F.pad(x, (1, 1, 1, 1), mode)
    with pytest.raises(NotImplementedError, match=r"pad2d_backward.*adds the gradients of three"):
        out.sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            F.pad(x, (1, 1, 1, 1), mode).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_too_much_reflection_is_torchs_own_error() -> None:
    for device in ("cpu", "oracle"):
        with pytest.raises(RuntimeError, match="Padding size should be less"):
            F.pad(torch.ones(1, 1, 3, 3, device=device), (3, 0, 0, 0), "reflect")
