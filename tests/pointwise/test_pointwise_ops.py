"""Elementwise operators through torch: types, shapes and strides as ATen has them; bytes where the CPU is exact too."""

import operator

import pytest
import torch

import step_oracle

F = torch.nn.functional


@pytest.fixture(autouse=True)
def card():
    with step_oracle.card("h100-pcie"):
        yield


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "oracle"
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.stride() == expected.stride()
    got, want = actual.cpu(), expected
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    assert torch.equal(got.view(view), want.view(view))


# Operators that round once or not at all: torch's CPU kernels give the same bytes.
EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "add number": lambda x, y: x + 2.5,
    "number minus": lambda x, y: 1 - x,
    "mul number": lambda x, y: x * 0.1,
    "add 0-dim CPU": lambda x, y: x + torch.tensor(0.3),
    "broadcast": lambda x, y: x + y[0],
    "broadcast column": lambda x, y: x * y[:, :1],
    "transposed": lambda x, y: x.t() + y.t(),
    "mixed strides": lambda x, y: x.t().contiguous().t() + y,
    "sliced": lambda x, y: x[:, ::2] - y[:, ::2],
    "expanded": lambda x, y: x[0].expand(4, 6) * y,
    "gt": lambda x, y: x > y,
    "le number": lambda x, y: x <= 0.1,
    "eq": lambda x, y: x == x,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where number": lambda x, y: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x, y: x.masked_fill(x > 0, -1e9),
    "masked_fill broadcast": lambda x, y: x.masked_fill(y[0] > 0, float("-inf")),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "cat types": lambda x, y: torch.cat([x, y.double()], 0),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "tril": lambda x, y: torch.tril(x),
    "triu": lambda x, y: x.t().triu(1),
    "tril batch": lambda x, y: x.view(2, 2, 2, 3).tril(-1),
    "pow 2": lambda x, y: x**2,
    "pow 0": lambda x, y: x**0,
    "pow 1": lambda x, y: x**1,
    "abs": lambda x, y: x.abs(),
    "neg": lambda x, y: -x,
    "reciprocal": lambda x, y: x.reciprocal(),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "clamp min": lambda x, y: x.clamp(min=0.1),
    "clamp tensor": lambda x, y: x.clamp(min=y),
    "relu": lambda x, y: x.relu(),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.1),
    "maximum": lambda x, y: torch.maximum(x, y),
    "sign": lambda x, y: x.sign(),
    "floor": lambda x, y: x.floor(),
    "round": lambda x, y: (x * 4).round(),
    "fmod": lambda x, y: torch.fmod(x, y),
    "remainder": lambda x, y: torch.remainder(x, y),
    "isnan": lambda x, y: (x / 0).isnan(),
    "isfinite": lambda x, y: (x / 0).isfinite(),
    "to int64": lambda x, y: (x * 100).to(torch.int64),
    "to bool": lambda x, y: x.floor().to(torch.bool),
    "to bfloat16": lambda x, y: x.to(torch.bfloat16),
    "to float16": lambda x, y: x.to(torch.float16),
    "to float64": lambda x, y: x.to(torch.float64) + 1,
    "bfloat16 add": lambda x, y: x.bfloat16() + y.bfloat16(),
    "bfloat16 mul number": lambda x, y: x.bfloat16() * 0.1,
    "promoted": lambda x, y: x.bfloat16() + y,
    "contiguous": lambda x, y: x.t().contiguous(),
    "clone": lambda x, y: x.t().clone(),
    "flip sign in place": lambda x, y: x.clone().neg_(),
    "add in place": lambda x, y: x.clone().add_(y),
    "zero-size": lambda x, y: x[:0] + y[:0],
    "threshold backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0),
}


@pytest.mark.parametrize("name", EXACT)
def test_equals_exact_cpu_kernels(name):
    x, y = data(4, 6), data(4, 6, seed=1)
    same(EXACT[name](x.to("oracle"), y.to("oracle")), EXACT[name](x, y))


INTEGERS = {
    "add": lambda i: i + 1,
    "sub": lambda i: i - i.flip(0) if i.device.type == "cpu" else i - i.cpu().flip(0).to(i.device),
    "floor_divide": lambda i: i // 3,
    "remainder": lambda i: i % 3,
    "true divide by two": lambda i: i / 2,
    "times float": lambda i: i * 0.5,
    "compare": lambda i: (i > 2) & (i < 8) | (i == -3),
    "not": lambda i: ~(i > 2),
    "bitwise not": lambda i: ~i,
    "xor": lambda i: i ^ 5,
    "logical_and": lambda i: torch.logical_and(i, i > 3),
    "pow": lambda i: i**3,
    "abs": lambda i: i.abs(),
    "clamp": lambda i: i.clamp(0, 4),
    "narrow": lambda i: i.to(torch.uint8) + 1,
    "int32": lambda i: i.to(torch.int32) * 7,
    "bool add": lambda i: (i > 2) + (i > 4),
    "where": lambda i: torch.where(i > 2, i, -1),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    i = torch.arange(-5, 15).view(4, 5)
    same(INTEGERS[name](i.to("oracle")), INTEGERS[name](i))


def test_division_by_a_number_multiplies_by_its_reciprocal():
    x = data(1000)
    reciprocal = torch.tensor(1 / 3.7, dtype=torch.float64).float()
    same(x.to("oracle") / 3.7, x * reciprocal)
    assert not torch.equal((x.to("oracle") / 3.7).cpu(), x / torch.tensor(3.7))
    same(x.to("oracle") / torch.tensor(3.7).to("oracle"), x / torch.tensor([3.7]))


def test_alpha_is_fused():
    x, y = data(1000), data(1000, seed=1)
    # The product is exact in double; the sum rounds there too, which float shows only next to a tie.
    exact = (x.double() + y.double() * float(torch.tensor(0.3))).float()
    got = torch.add(x.to("oracle"), y.to("oracle"), alpha=0.3).cpu()
    assert torch.equal(got, exact)
    assert not torch.equal(got, x + y * 0.3)


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu_and_its_gradient_keep_the_layout(kind):
    x = data(8, 16).t()
    z = x.to("oracle")
    out = F.gelu(z, approximate=kind)
    # Not through autograd: its engine would fix the number of cards for the tests that follow.
    grad = torch.ops.aten.gelu_backward(torch.ones_like(z), z, approximate=kind)
    assert out.stride() == F.gelu(x, approximate=kind).stride()
    assert grad.stride() == x.stride()
    # Far from every rounding question: the card's gelu is within a few ulps of the real one.
    assert ((out.cpu().double() - F.gelu(x.double(), approximate=kind)).abs() < 1e-6).all()


def test_arange():
    same(torch.arange(10, device="oracle"), torch.arange(10))
    same(torch.arange(10, 0, -3, device="oracle"), torch.arange(10, 0, -3))
    same(torch.arange(5.0, device="oracle"), torch.arange(5.0))
    step, start = torch.tensor(0.1, dtype=torch.float64).float().double(), 0.5
    same(torch.arange(0.5, 3.0, 0.1, device="oracle"), (start + torch.arange(25).double() * step).float())


def test_nan_of_arithmetic_is_the_cards():
    x = torch.tensor([float("inf"), 1.0]).to("oracle")
    assert (x - x).cpu().view(torch.int32)[0].item() == 0x7FFFFFFF
    payload = torch.tensor([0x7FC00123], dtype=torch.int32).view(torch.float32).to("oracle")
    assert (payload + 1).cpu().view(torch.int32)[0].item() == 0x7FFFFFFF
    assert payload.relu().cpu().view(torch.int32)[0].item() == 0x7FC00123
    assert payload.clone().cpu().view(torch.int32)[0].item() == 0x7FC00123


def test_bfloat16_nan_depends_on_the_card():
    nan = torch.tensor([float("nan")])
    assert nan.to("oracle").bfloat16().cpu().view(torch.int16).item() & 0xFFFF == 0x7FFF
    with step_oracle.card("t4"):
        assert nan.to("oracle").bfloat16().cpu().view(torch.int16).item() & 0xFFFF == 0x7FC0


def test_out_is_resized_and_cast():
    x, y = data(4, 5).to("oracle"), data(4, 5, seed=1).to("oracle")
    out = torch.empty(0, device="oracle", dtype=torch.float64)
    torch.add(x, y, out=out)
    same(out, (x.cpu() + y.cpu()).double())


def test_refusals_name_operator_and_type():
    with pytest.raises(NotImplementedError, match="'exp' has no float64 kernel"):
        torch.exp(data(3).to("oracle").double())
    with pytest.raises(NotImplementedError, match="lgamma"):
        torch.lgamma(data(3).to("oracle"))
    with pytest.raises(RuntimeError, match="same device"):
        operator.add(data(3).to("oracle"), data(3))
    with pytest.raises(RuntimeError, match="result type Float can't be cast"):
        torch.ones(3, dtype=torch.int64, device="oracle").add_(0.5)
