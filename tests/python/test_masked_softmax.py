"""Masked softmax: which of CUDA's ways a call takes, its gradient, what is refused. The bytes: tests/compiled."""

import itertools

import pytest
import torch

import step_oracle

masked = torch.ops.aten._masked_softmax


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("a100-sxm-80gb")


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=generator).to(dtype)
    mask = torch.rand(shape, generator=generator) < 0.4
    mask[..., 0] = False
    return x, mask


def filled(x: torch.Tensor, mask: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.softmax(x.masked_fill(mask, -torch.inf), dim)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


SHAPES: list[tuple[tuple[int, ...], int | None]] = [((4, 77), 1), ((2, 1025), 1), ((5, 30, 4), 1), ((5, 77), -1)]


@pytest.mark.parametrize("shape, dim", [*SHAPES, ((3, 1024), None)])
def test_values_and_gradient(shape: tuple[int, ...], dim: int | None) -> None:
    """the kernel, and masked_fill with softmax where it does not reach: the same function"""
    x, mask = inputs(*shape)
    got, want = x.to("oracle").requires_grad_(), x.double().requires_grad_()
    y, exact = masked(got, mask.to("oracle"), dim, 2), filled(want, mask, -1 if dim is None else dim)
    weight = torch.linspace(-1, 1, x.numel()).view(shape)
    y.backward(weight.to("oracle"))
    exact.backward(weight.double())
    assert got.grad is not None and want.grad is not None
    assert (y.detach().cpu().double() - exact.detach()).abs().max() < 1e-6
    assert (got.grad.cpu().double() - want.grad).abs().max() < 1e-6
    assert not y.detach().cpu()[mask].any() and not got.grad.cpu()[mask].any()


def test_masks_of_two_dimensions() -> None:
    for dtype, kind in itertools.product(DTYPES, (0, 1)):
        x, _ = inputs(3, 2, 9, 9, dtype=dtype)
        small = inputs(9 if kind == 0 else 3, 9)[1]
        whole = (small if kind == 0 else small.view(3, 1, 1, 9)).expand(3, 2, 9, 9).contiguous()
        x = x.to("oracle")
        got, want = masked(x, small.to("oracle"), 3, kind), masked(x, whole.to("oracle"), 3, 2)
        assert same(got, want)
    with pytest.raises(RuntimeError, match="num_heads is even"):
        masked(torch.ones(2, 3, 4, 4, device="oracle"), torch.zeros(2, 4, dtype=torch.bool, device="oracle"), 3, 1)


def test_a_row_that_is_left_out_whole() -> None:
    """the kernel's constant; the other way gives the NaN of an arithmetic instruction"""
    for columns, word in ((8, 0x7FC00000), (1025, 0x7FFFFFFF)):
        x, mask = torch.ones(1, columns, device="oracle"), torch.ones(1, columns, dtype=torch.bool, device="oracle")
        assert masked(x, mask, 1, 2).cpu().view(torch.int32).unique().tolist() == [word]


def test_a_permuted_input_is_taken_as_it_lies_in_memory() -> None:
    x, mask = inputs(6, 6)
    got = masked(x.to("oracle").t(), mask.to("oracle"), 1, 2)
    assert got.stride() == (1, 6)
    assert same(got.t(), masked(x.to("oracle"), mask.to("oracle"), 1, 2))


def test_what_is_refused() -> None:
    x, mask = (t.to("oracle") for t in inputs(4, 8))
    with pytest.raises(NotImplementedError, match="float64"):
        masked(x.double(), mask, 1, 2)
    with pytest.raises(NotImplementedError, match="gaps"):
        masked(x[:, ::2], mask[:, ::2].contiguous(), 1, 2)
    with pytest.raises(NotImplementedError, match="no elements"):
        masked(x[:0], mask[:0], 1, 2)
    with pytest.raises(RuntimeError, match="boolean"):
        masked(x, x, 1, 2)
    with pytest.raises(RuntimeError, match="Mask shape"):
        masked(x, mask[:2], 1, 2)
    with pytest.raises(RuntimeError, match="Mask Type"):
        masked(x, mask, 1, 3)
