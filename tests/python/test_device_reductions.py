"""Reductions, softmax, norms, losses and indexing on the device.

Whole numbers make every order of additions exact, so that the bytes must equal the CPU's: this tests shapes, strides,
types and which elements meet. The order: compiled kernels, in tests/{reduce,softmax,norm,loss,indexing}.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import step_oracle

Case = Callable[[torch.Tensor], object]
INF = float("inf")


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("h100-sxm")
    step_oracle.set_card("l4", index=1)


def content(value: object) -> object:
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().contiguous()
        return host.dtype, tuple(host.shape), bytes(host.untyped_storage())[: host.nbytes]
    assert isinstance(value, (list, tuple))
    return [content(v) for v in value]


def whole(*shape: int, high: int = 9) -> torch.Tensor:
    return torch.randint(-high, high, shape, generator=torch.Generator().manual_seed(5)).float()


REDUCTIONS: dict[str, Case] = {
    "sum": lambda x: x.sum(),
    "sum of a dimension": lambda x: x.sum(1, keepdim=True),
    "sum of two dimensions": lambda x: x.sum((0, 2)),
    "sum of a transposed tensor": lambda x: x.transpose(0, 2).sum(0),
    "sum of a strided tensor": lambda x: x[:, ::3, 1::2].sum((0, 1)),
    "sum of nothing": lambda x: x[:0].sum(0),
    "sum in float64": lambda x: x.sum(0, dtype=torch.float64),
    "sum of bool": lambda x: (x > 0).sum((1, 2)),
    "sum of int64": lambda x: x.long().sum(2),
    "sum of int32": lambda x: x.int().sum(),
    "mean": lambda x: x[:, :2, :4].mean((1, 2)),
    "prod": lambda x: x[:, :3, 0].prod(1),
    "prod of all": lambda x: x[0, :4, 0].prod(),
    "amax": lambda x: x.amax((0, 2)),
    "amin": lambda x: x.amin(1),
    "max": lambda x: x.max(),
    "min of int64": lambda x: x.long().min(),
    "max with indices": lambda x: [*x.max(1)],
    "min with indices": lambda x: [*x.min(-1, keepdim=True)],
    "argmax": lambda x: x.argmax(),
    "argmax of a dimension": lambda x: x.argmax(1, keepdim=True),
    "argmin of a transposed tensor": lambda x: x.transpose(0, 1).argmin(),
    "all": lambda x: (x < 8).all(),
    "all of a dimension": lambda x: (x < 8).all(2),
    "any of dimensions": lambda x: torch.any(x > 7, dim=(0, 1)),
    "any of floats": lambda x: x.any(),
    "0-norm": lambda x: torch.linalg.vector_norm(x, 0, dim=1),
    "1-norm": lambda x: torch.linalg.vector_norm(x, 1),
    "2-norm": lambda x: torch.linalg.vector_norm(x, 2, dim=(0, 1)),
    "inf-norm": lambda x: torch.linalg.vector_norm(x, INF, dim=2),
    "-inf-norm": lambda x: torch.linalg.vector_norm(x, -INF),
    "norm of single elements": lambda x: torch.linalg.vector_norm(x[:, :1], 2, dim=1),
    "count_nonzero": lambda x: torch.count_nonzero(x, dim=1),
    "cumsum of the last dimension": lambda x: x.cumsum(2),
    "cumsum of the first dimension": lambda x: x.cumsum(0),
    "cumsum of int64": lambda x: x.long()[:, 0, 0].cumsum(0),
    "cumsum of bool": lambda x: (x > 0).cumsum(1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_whole_numbers(name: str) -> None:
    fn = REDUCTIONS[name]
    for shape in ((4, 5, 6), (3, 130, 17), (70, 2, 129)):
        x = whole(*shape)
        assert content(fn(x.to("oracle"))) == content(fn(x)), shape


def test_bfloat16_sums_round_once() -> None:
    x = whole(33, 300)
    assert content(x.to("oracle", torch.bfloat16).sum(1)) == content(x.sum(1).bfloat16())
    assert content(x.to("oracle", torch.bfloat16).sum(1, dtype=torch.float32)) == content(x.sum(1))


def test_the_address_and_the_card_enter_a_sum() -> None:
    x = torch.randn(3_000_001, generator=torch.Generator().manual_seed(1)).to("oracle")
    aligned = x[1:].clone()
    assert content(aligned.sum()) == content(x[1:].clone().sum())
    assert content(torch.stack([x[i:].sum() for i in (1, 2)])) != content(
        torch.stack([x[i:].clone().sum() for i in (1, 2)])
    )
    assert content(aligned.sum()) != content(aligned.to("oracle:1").sum())


def test_moments_of_whole_numbers() -> None:
    x = torch.tensor([[1.0, 3.0] * 64, [2.0, 2.0] * 64])
    for fn in (
        lambda t: t.var(1, correction=0),
        lambda t: t.std(1, correction=0),
        lambda t: [*torch.var_mean(t, 1, correction=0)],
    ):
        assert content(fn(x.to("oracle"))) == content(fn(x))


def near(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.detach().cpu().double() - b.detach().double()).abs().max().item()


def gradients(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = fn(*leaves)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device)
    out.backward(weights)
    return [out, *[t.grad for t in leaves if t.grad is not None]]


MAPS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), [(7, 33)]),
    "softmax, wide": (lambda x: torch.softmax(x, -1), [(2, 3001)]),
    "softmax, spatial": (lambda x: torch.softmax(x, 1), [(3, 70, 5)]),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), [(7, 33)]),
    "log_softmax, wide": (lambda x: torch.log_softmax(x, -1), [(2, 12300)]),
    "log_softmax, spatial": (lambda x: torch.log_softmax(x, 0), [(9, 4)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(40, 64), (64,), (64,)]),
    "layer_norm, odd": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(3, 5, 33), (33,), (33,)]),
    "layer_norm, plain": (lambda x: F.layer_norm(x, x.shape[-2:]), [(6, 4, 8)]),
    "layer_norm, tall": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(66000, 4), (4,), (4,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, w.shape, w), [(40, 64), (64,)]),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_and_their_gradients_are_the_right_functions(name: str) -> None:
    fn, shapes = MAPS[name]
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    exact = gradients(fn, *[t.double() for t in inputs])
    size = exact[0].numel() ** 0.5 / 10  # errors of sums grow with their length
    for got, want in zip(gradients(fn, *[t.to("oracle") for t in inputs]), exact, strict=True):
        assert got.shape == want.shape
        assert near(got, want) < 1e-5 * max(1.0, want.abs().max().item(), size)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(reduction: str) -> None:
    x = torch.randn(50, 11, generator=torch.Generator().manual_seed(4))
    target = torch.arange(50) % 11
    target[7] = -100
    weight = torch.linspace(0.5, 2, 11)
    for w in (None, weight):

        def loss(t: torch.Tensor, w: torch.Tensor | None = w) -> torch.Tensor:
            chosen = None if w is None else w.to(t)
            return F.cross_entropy(t, target.to(t.device), chosen, reduction=reduction).reshape(-1)

        for got, want in zip(gradients(loss, x.to("oracle")), gradients(loss, x.double()), strict=True):
            assert near(got, want) < 1e-5
    with pytest.raises(ValueError, match="target of row 0 is 11"):
        F.nll_loss(x.to("oracle"), torch.full((50,), 11).to("oracle"))


INDEX = torch.tensor([[1, 5, 0], [3, 1, 2]])


def ids(x: torch.Tensor) -> torch.Tensor:
    return INDEX.to(x.device)


MOVES: dict[str, Case] = {
    "embedding": lambda x: F.embedding(ids(x), x[:, 0].contiguous()),
    "index_select": lambda x: x.index_select(1, ids(x)[0]),
    "index_select of rows": lambda x: x.index_select(0, ids(x)[1]),
    "index": lambda x: x[ids(x)],
    "index of two": lambda x: x[ids(x), ids(x) - 6],
    "index apart": lambda x: x[:, ids(x)[0]][ids(x)[0], :, ids(x)[1]],
    "mask": lambda x: x[x > 3],
    "mask of rows": lambda x: x[x[:, 0, 0] > -20],
    "masked_select": lambda x: torch.masked_select(x, x[0] > 0),
    "nonzero": lambda x: (x > 5).nonzero(),
    "gather": lambda x: x.gather(1, ids(x).view(2, 3, 1)),
    "scatter of a value": lambda x: x.scatter(1, ids(x).view(2, 3, 1), 2.5),
    "scatter": lambda x: x.scatter(0, ids(x).view(1, 2, 3), x + 1),
    "index_put": lambda x: x.index_put((ids(x)[0],), torch.ones((), device=x.device)),
    "index_put by two": lambda x: x.index_put((ids(x)[0], ids(x)[1]), x[:3, 0] * 2),
    "accumulating index_put": lambda x: x.index_put((ids(x),), x[0], accumulate=True),
    "accumulating index_put by two": lambda x: x.index_put((ids(x), ids(x)[:1]), x[0, 0], accumulate=True),
    "index_add without a race": lambda x: x.index_add(1, ids(x)[0], x[:, :3], alpha=2),
    "scatter_add without a race": lambda x: x.scatter_add(1, ids(x).view(2, 3, 1), x),
    "gradient of embedding": lambda x: torch.ops.aten.embedding_dense_backward(x[:2, :3], ids(x), 7, 1, False),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_and_sums_at_an_index(name: str) -> None:
    fn, x = MOVES[name], whole(6, 8, 5)
    assert content(fn(x.to("oracle"))) == content(fn(x))


def test_gradient_of_a_large_embedding() -> None:
    index = torch.randint(0, 5000, (4000,), generator=torch.Generator().manual_seed(8))
    grad = whole(4000, 40)
    for freq in (False, True):
        got, want = (
            torch.ops.aten.embedding_dense_backward(g, i, 5000, -1, freq)
            for g, i in ((grad.to("oracle"), index.to("oracle")), (grad, index))
        )
        assert content(got) == content(want) if not freq else near(got, want) < 1e-5


def test_races_are_named_and_the_deterministic_form_is_computed() -> None:
    x, index = whole(4, 3), torch.zeros(4, 3, dtype=torch.int64)
    token = torch.zeros(8192, dtype=torch.int64).to("oracle")
    grad = whole(8192, 64).to("oracle")
    races: list[Callable[[], torch.Tensor]] = [
        lambda: x.to("oracle").scatter_add(0, index.to("oracle"), x.to("oracle")),
        lambda: x.to("oracle").index_add(0, index[:, 0].to("oracle"), x.to("oracle")),
        lambda: torch.ops.aten.embedding_dense_backward(grad, token, 100, -1, False),
    ]
    for race in races:
        with pytest.raises(NotImplementedError, match="use_deterministic_algorithms"):
            race()
    torch.use_deterministic_algorithms(True)
    try:
        sums = [race() for race in races]
    finally:
        torch.use_deterministic_algorithms(False)
    assert content(sums[0]) == content(x.scatter_add(0, index, x))
    assert content(sums[2][0]) == content(grad.cpu().sum(0))


@pytest.mark.parametrize("name", ["index", "gather", "index_put"])
def test_an_index_outside_is_an_error(name: str) -> None:
    x, far = whole(3, 3).to("oracle"), torch.tensor([[9]]).to("oracle")
    calls: dict[str, Callable[[], object]] = {
        "index": lambda: x[far],
        "gather": lambda: x.gather(0, far),
        "index_put": lambda: x.index_put((far,), x.sum()),
    }
    with pytest.raises((ValueError, IndexError), match="9"):
        calls[name]()


def test_what_is_not_modelled_says_so() -> None:
    x = whole(4, 5).to("oracle")
    with pytest.raises(NotImplementedError, match="order 3"):
        torch.linalg.vector_norm(x.double(), 3)
    with pytest.raises(NotImplementedError, match="look-back"):
        x.view(-1).cumsum(0)
