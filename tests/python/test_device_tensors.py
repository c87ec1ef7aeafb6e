"""Tensors of the device: copies, casts, views, storages, serialisation. All compared by bytes."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import pytest
import torch
from torch import nn

import step_oracle

TYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (3, 4), (2, 3, 4), (4, 1, 5, 2)]


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("h100-sxm")
    step_oracle.set_card("l40s", index=1)


def content(t: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    host = t.detach().cpu().contiguous()
    return t.dtype, tuple(t.shape), bytes(host.untyped_storage())[: host.nbytes]


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(shape, generator=generator) * 10).to(dtype)


@pytest.mark.parametrize("dtype", [*TYPES, torch.complex64, torch.complex128], ids=str)
def test_moves_keep_bits_for_all_strides(dtype: torch.dtype) -> None:
    cases = 0
    for shape in SHAPES:
        for order in itertools.permutations(range(len(shape))):
            host = sample(shape, dtype).permute(order)
            card = sample(shape, dtype).to("oracle").permute(order)
            assert content(card) == content(host) and content(card.contiguous()) == content(host)
            assert content(card.to("oracle:1")) == content(host)
            into = torch.zeros(host.shape, dtype=dtype, device="oracle")
            assert content(into.copy_(host)) == content(host)
            back = torch.zeros(host.shape, dtype=dtype)
            assert content(back.copy_(card)) == content(host)
            if host.dim() > 1:
                apart = torch.zeros((2 * host.shape[0], *host.shape[1:]), dtype=dtype, device="oracle")
                apart[::2] = card
                assert content(apart[::2]) == content(host)
                assert content(card[..., :1].expand(host.shape)) == content(host[..., :1].expand(host.shape))
            cases += 1
    assert cases > 30


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    host = torch.randint(0, 2 if source is torch.bool else 100, (7, 5)).to(source)
    for view in (host, host.t()):
        wanted = content(view.to(target))
        assert content(view.to("oracle").to(target)) == wanted
        assert content(view.to("oracle", target)) == wanted
        assert content(view.to("oracle").to("cpu", target)) == wanted


def test_overlapping_copies_are_refused() -> None:
    a = torch.arange(10.0).to("oracle")
    with pytest.raises(RuntimeError, match="single memory location"):
        a[:1].expand(4).copy_(a[4:8])
    with pytest.raises(RuntimeError, match="partially overlap|single memory location"):
        a[:5].copy_(a[2:7])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_fills(dtype: torch.dtype) -> None:
    assert content(torch.full((3, 5), 1, dtype=dtype, device="oracle")) == content(torch.full((3, 5), 1, dtype=dtype))
    a = torch.ones(4, 6, dtype=dtype).to("oracle")
    a[:, ::2].zero_()
    a.t()[1].fill_(torch.tensor(0, dtype=dtype))
    assert content(a) == content(torch.tensor([[0, 0, 0, 1, 0, 1]] * 4, dtype=dtype))
    assert torch.tensor(3, dtype=dtype).to("oracle").item() == torch.tensor(3, dtype=dtype).item()


def test_views_and_storages() -> None:
    a = torch.arange(24.0).to("oracle")
    b = a.view(4, 6).t()[1:3]
    assert b.data_ptr() == a.data_ptr() + 4 and content(b) == content(torch.arange(24.0).view(4, 6).t()[1:3])
    assert content(a.unfold(0, 6, 6)) == content(torch.arange(24.0).unfold(0, 6, 6))
    assert a.view(2, 12).is_set_to(a.view(2, 12))
    c = torch.empty(0, device="oracle").set_(a.untyped_storage(), 2, (3, 2), (4, 1))
    assert content(c) == content(torch.as_strided(torch.arange(24.0), (3, 2), (4, 1), 2))
    d = torch.arange(4.0).to("oracle")
    d.resize_(100)
    assert d.device.type == "oracle" and d[:4].cpu().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.empty(0, device="oracle").set_().numel() == 0
    d.untyped_storage().resize_(8)
    assert d.untyped_storage().nbytes() == 8 and d.untyped_storage().device.type == "oracle"
    with pytest.raises(TypeError, match="cpu"):
        a.numpy()


def test_moving_a_module_keeps_parameters_and_ties() -> None:
    embedding, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    embedding.weight = head.weight
    model = nn.Sequential(embedding, head)
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("oracle")
    assert [id(p) for p in model.parameters()] == [id(p) for p in before] and len(before) == 1
    assert model[0].weight is model[1].weight and model[0].weight.device.type == "oracle"
    assert optimizer.param_groups[0]["params"][0] is head.weight
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight and content(twin[0].weight) == content(head.weight)
    model.to("cpu")
    assert model[0].weight is head.weight and head.weight.is_cpu


def test_serialisation() -> None:
    a = torch.randn(3, 3).to("oracle")
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        again = pickle.loads(pickle.dumps(a, protocol))
        assert again.device == a.device and content(again) == content(a)
    saved = io.BytesIO()
    torch.save({"a": a, "view": a[1:], "p": nn.Parameter(a)}, saved)

    def load(**where: object) -> dict[str, torch.Tensor]:
        saved.seek(0)
        return torch.load(saved, **where)  # type: ignore[no-any-return]

    loaded = load()
    assert loaded["a"].device == a.device and content(loaded["view"]) == content(a[1:])
    assert loaded["view"].data_ptr() == loaded["a"].data_ptr() + 12
    assert load(map_location="cpu")["p"].is_cpu
    assert load(map_location="oracle:1")["a"].device == torch.device("oracle:1")
    assert load(map_location={"oracle:0": "oracle:1"})["a"].device == torch.device("oracle:1")
    on_host = io.BytesIO()
    torch.save(a.cpu(), on_host)
    on_host.seek(0)
    assert content(torch.load(on_host, map_location="oracle")) == content(a)


def test_a_missing_operator_is_named() -> None:
    a = torch.ones(2, 2, 2, 2).to("oracle")
    with pytest.raises(NotImplementedError, match=r"'aten::max_pool3d_with_indices.*' has no kernel .*h100-sxm"):
        torch.nn.functional.max_pool3d(a, 2)
    with pytest.raises(NotImplementedError, match=r"'aten::_foreach_lgamma'"):
        torch._foreach_lgamma([a, a])
    with pytest.raises(NotImplementedError, match="Sparseoracle"):
        torch.empty(2, device="oracle", layout=torch.sparse_coo)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="oracle", pin_memory=True)
