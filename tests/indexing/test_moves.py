"""Rearrangements through torch: shapes, types and strides as ATen has them; bytes equal torch's CPU kernels'."""

import pytest
import torch

import step_oracle

F = torch.nn.functional
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]


@pytest.fixture(autouse=True)
def card():
    with step_oracle.card("a100-sxm-80gb"):
        yield


def data(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))) * 10).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "oracle" and actual.dtype == expected.dtype
    assert actual.shape == expected.shape and actual.stride() == expected.stride()
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    assert torch.equal(actual.cpu().contiguous().view(view), expected.contiguous().view(view))


MOVES = {
    "flip": lambda x: x.flip([0, 2]),
    "flip transposed": lambda x: x.transpose(0, 2).flip([1]),
    "flip nothing": lambda x: x.flip([]),
    "roll flat": lambda x: x.roll(2),
    "roll back": lambda x: x.roll(-3, 1),
    "roll two": lambda x: x.roll((1, 100), (0, 2)),
    "take": lambda x: x.transpose(0, 1).take(torch.tensor([[5], [0], [-1]], device=x.device)),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([3, -1], device=x.device), 3),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([4, 0], device=x.device), x[:, 1:3]),
    "put": lambda x: x.transpose(0, 1).clone().put_(torch.tensor([3, 1], device=x.device), x[0, 0, :2]),
    "msort": lambda x: x.msort(),
    "argsort": lambda x: x.argsort(stable=True, dim=1),
    "nothing": lambda x: x[:0].flip([0]).roll(1, 0).sort()[0],
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str, dtype: torch.dtype) -> None:
    x = data(dtype, 3, 5, 7)
    if name.startswith("roll"):  # CUDA's roll gives contiguous tensors
        same(MOVES[name](x.to("oracle")), MOVES[name](x).contiguous())
    else:
        same(MOVES[name](x.to("oracle")), MOVES[name](x))


@pytest.mark.parametrize("dtype", TYPES[:3])
@pytest.mark.parametrize("windows", [(3, 1, 0, 1), ((2, 3), (1, 2), (1, 0), (2, 1)), (3, 2, 2, 3)])
def test_unfold_and_its_backward(dtype: torch.dtype, windows: tuple) -> None:
    image = data(dtype, 2, 3, 9, 11)
    same(F.unfold(image.to("oracle"), *windows), F.unfold(image, *windows))
    same(F.unfold(image[0].to("oracle"), *windows), F.unfold(image[0], *windows))
    x = image.to("oracle").requires_grad_()
    columns = F.unfold(x, *windows)
    columns.backward(torch.ones_like(columns))  # counts: exact in any order
    y = image.clone().requires_grad_()
    columns = F.unfold(y, *windows)
    columns.backward(torch.ones_like(columns))
    same(x.grad, y.grad)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 32, 33, 128, 129, 5000])
def test_sort_and_topk(dtype: torch.dtype, n: int) -> None:
    x = data(dtype, 3, n)
    for descending in (False, True):
        wanted, order = x.sort(dim=1, descending=descending, stable=True)
        values, indices = x.to("oracle").sort(dim=1, descending=descending, stable=True)
        same(values, wanted)
        same(indices, order)
        values, indices = x.to("oracle").t().sort(dim=0, descending=descending)
        same(values, x.t().sort(dim=0, descending=descending)[0])
        assert torch.equal(x.gather(1, indices.cpu().t()), wanted)
        k = n // 2 + 1
        values, indices = x.to("oracle").topk(k, largest=descending)
        same(values, x.topk(k, largest=descending)[0])
        assert torch.equal(x.gather(1, indices.cpu()), values.cpu())
    value, index = x[0, 0].to("oracle").topk(1, 0)
    same(value, x[0, 0])
    assert index.item() == 0


def test_autograd_of_sort_and_glu_reaches_the_input() -> None:
    x = data(torch.float32, 4, 6).to("oracle").requires_grad_()
    values, _ = x.sort(1)
    (values.sum() + F.glu(x, 1).sum() + F.selu(x).sum() + F.mish(x).sum()).backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_nll_loss2d_names_the_race() -> None:
    x, target = data(torch.float32, 3, 4, 5, 6).to("oracle"), torch.zeros(3, 5, 6, dtype=torch.int64, device="oracle")
    assert F.nll_loss(x[:2], target[:2]).shape == ()
    assert F.nll_loss(x, target, reduction="none").shape == (3, 5, 6)
    with pytest.raises(NotImplementedError, match="nll_loss2d_forward.*3 blocks"):
        F.nll_loss(x, target)


OTHERS = {
    "cummax": lambda x: x.cummax(1)[1],
    "cummin": lambda x: x.transpose(0, 1).cummin(0)[0],
    "searchsorted": lambda x: torch.searchsorted(x.sort(dim=2, stable=True)[0], x, right=True),
    "bucketize": lambda x: torch.bucketize(x, torch.arange(-9, 9, 3, device=x.device), out_int32=True),
    "bucketize number": lambda x: torch.bucketize(2.5, torch.arange(-9, 9, 3, device=x.device)),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.tensor([2, 0, 3], device=x.device), 0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.neg()),
    "masked_scatter broadcast": lambda x: x.transpose(0, 2).masked_scatter(x[0, 0, :].view(7, 1, 1) > 0, x.neg()),
    "norm": lambda x: (x != 0).float().norm(1, dim=[1]),
    "nansum": lambda x: torch.where(x > 3, float("nan"), (x * 0 + 1).float()).nansum(1),
    "aminmax": lambda x: torch.stack(torch.aminmax(x, dim=1)),
    "aminmax all": lambda x: torch.stack(torch.aminmax(x)),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_searches_and_extremes(name: str, dtype: torch.dtype) -> None:
    x = data(dtype, 3, 5, 7)
    same(OTHERS[name](x.to("oracle")), OTHERS[name](x))


# Places where one fused product shows, the middle and the end.
LINSPACE = {7: -1082060527, 21: -1093035625, 24: -1097229929, 25: -1098628030, 27: -1103940818, 28: -1106737021,
            47: 1059621002, 48: 1060320051, 96: 1076677837}


def test_linspace_is_the_compiled_kernels() -> None:
    """Bits of the first half's start and of the second half's, as the kernel of torch 2.13.0 gives them."""
    out = torch.linspace(-1.3, 2.7, 97, device="oracle").cpu()
    bits = out.view(torch.int32).tolist()
    assert [bits[i] for i in LINSPACE] == list(LINSPACE.values())
    assert torch.linspace(3, 9, 1, device="oracle").tolist() == [3.0]
    assert torch.linspace(3, 9, 0, device="oracle").shape == (0,)
    with pytest.raises(NotImplementedError, match="linspace"):
        torch.linspace(0, 1, 5, device="oracle", dtype=torch.bfloat16)


def test_bincount() -> None:
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        x = data(torch.float32, 500).abs().to(dtype)
        for minlength in (0, 3, 200):
            same(torch.bincount(x.to("oracle"), minlength=minlength), torch.bincount(x, minlength=minlength))
        same(torch.bincount(x.to("oracle")[::3]), torch.bincount(x[::3]))
    empty = torch.zeros(0, dtype=torch.int64)
    same(torch.bincount(empty.to("oracle"), minlength=4), torch.bincount(empty, minlength=4))
    with pytest.raises(NotImplementedError, match="weights"):
        torch.bincount(x.to("oracle"), torch.ones(500).to("oracle"))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([1, -1]).to("oracle"))
    with pytest.raises(RuntimeError, match="1-d"):
        torch.bincount(torch.ones(2, 2, dtype=torch.int64).to("oracle"))
    with pytest.raises(RuntimeError, match="not implemented for Float"):
        torch.bincount(torch.ones(2).to("oracle"))
