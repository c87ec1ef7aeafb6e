"""Batch norm on device "oracle": cuDNN's kernels are refused with the switch that avoids them; layouts, running
statistics and evaluation follow CUDA's host code. The kernels' bytes: tests/norm/batch_test.cpp.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import step_oracle


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    step_oracle.set_card("h100-pcie")
    torch.manual_seed(5)
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    yield
    torch.backends.cudnn.enabled = before


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def run(module: nn.Module, x: torch.Tensor, dy: torch.Tensor, device: str = "oracle") -> list[torch.Tensor]:
    """Output, gradients of the input and the parameters, buffers."""
    module = module.to(device)
    given = x.detach().to(device).requires_grad_()
    out = module(given)
    out.backward(dy.to(device))
    parts = [out, given.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [t.detach().cpu() for t in parts if t is not None]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:  # a net: the bytes have vectors
    return bool((a.double().cpu() - b.double()).abs().max() < 1e-6)


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 7), (3, 4, 5, 6), (2, 3, 2, 3, 4), (9, 2, 1, 1)])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_near_float64(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    x, dy = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)
    if layout == "channels last" and len(shape) >= 4:
        form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x, dy = x.to(memory_format=form), dy.to(memory_format=form)
    elif layout != "contiguous":
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    bn = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](shape[1])
    with torch.no_grad():
        bn.weight.uniform_(0.5, 1.5)
        bn.bias.uniform_(-1, 1)
    twin = type(bn)(shape[1]).double()
    twin.load_state_dict(bn.state_dict())
    got = run(bn, x, dy)
    want = run(twin, x.double(), dy.double(), "cpu")
    assert len(got) == len(want) == 7
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).abs().max() <= (2**-6 if dtype == torch.bfloat16 else 2**-17) * (1 + b.abs().max())


def test_cudnn_is_refused_with_its_switch() -> None:
    torch.backends.cudnn.enabled = True
    x = drawn(2, 3, 4, 4).to("oracle")
    with pytest.raises(NotImplementedError, match=r"batch_norm.*4 dimensions.*torch\.backends\.cudnn\.enabled = False"):
        nn.BatchNorm2d(3).to("oracle")(x)
    with pytest.raises(NotImplementedError, match="cudnn"):
        nn.BatchNorm2d(3).to("oracle").eval()(x)
    with pytest.raises(NotImplementedError, match="cudnn"):
        nn.InstanceNorm2d(3, affine=True).to("oracle")(x)
    with pytest.raises(NotImplementedError, match="cudnn"):
        torch.ops.aten._batch_norm_with_update(x, *(torch.ones(3, device="oracle") for _ in range(4)), 0.1, 1e-5)


def test_what_cudnn_does_not_take_is_computed_with_it_enabled() -> None:
    torch.backends.cudnn.enabled = True
    taken = [
        (nn.BatchNorm1d(3), drawn(5, 3)),  # two dimensions
        (nn.BatchNorm2d(3), drawn(2, 3, 4, 4, dtype=torch.bfloat16)),
        (nn.BatchNorm2d(3).half(), drawn(2, 3, 4, 4, dtype=torch.float16)),
        (nn.BatchNorm2d(3, affine=False), drawn(2, 3, 4, 4)),
        (nn.InstanceNorm2d(3), drawn(2, 3, 4, 4)),
    ]
    for module, x in taken:
        got = run(module, x, torch.ones_like(x))
        torch.backends.cudnn.enabled = False
        fresh = type(module)(3, affine=module.affine)
        again = run(fresh.half() if x.dtype == torch.float16 else fresh, x, torch.ones_like(x))
        torch.backends.cudnn.enabled = True
        assert all(same(a, b) for a, b in zip(got, again, strict=True))


def test_running_statistics() -> None:
    x = drawn(8, 3, 5)
    flat = x.transpose(0, 1).reshape(3, -1)
    mean, var = flat.double().mean(1), flat.double().var(1)
    bn = nn.BatchNorm1d(3).to("oracle")
    bn(x.to("oracle"))
    assert near(bn.running_mean, 0.1 * mean)
    assert near(bn.running_var, 0.9 + 0.1 * var)
    average = nn.BatchNorm1d(3, momentum=None).to("oracle")
    average(x.to("oracle"))
    assert near(average.running_mean, mean)
    average(-x.to("oracle"))
    assert near(average.running_mean, torch.zeros(3))
    assert int(average.num_batches_tracked) == 2


def test_without_running_statistics_evaluation_trains() -> None:
    x = drawn(4, 3, 5)
    free = nn.BatchNorm1d(3, track_running_stats=False).to("oracle")
    kept = nn.BatchNorm1d(3).to("oracle")
    assert same(free.eval()(x.to("oracle")).cpu(), kept(x.to("oracle")).cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_evaluation_does_not_depend_on_the_layout(dtype: torch.dtype) -> None:
    x, dy = drawn(3, 4, 5, 6, dtype=dtype), drawn(3, 4, 5, 6, dtype=dtype)
    bn = nn.BatchNorm2d(4).eval()
    with torch.no_grad():
        for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var):
            t.uniform_(0.5, 1.5)
    runs = []
    for form in ("contiguous", "last", "transposed"):
        other = x.to(memory_format=torch.channels_last) if form == "last" else x.mT.contiguous().mT
        given = (x if form == "contiguous" else other).to("oracle")
        out = bn.to("oracle")(given)
        runs.append(out.detach().cpu())
        assert out.stride() == given.stride()
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])
    # dx alone takes another kernel than dx with the parameters' gradients: go weight invstd in two orders.
    frozen = [run(bn.requires_grad_(False), x, dy)[1], run(bn, x.to(memory_format=torch.channels_last), dy)[1]]
    assert same(*frozen)


def test_batches_of_one_layout_take_the_kernels_of_rows() -> None:
    """Two dimensions, and planes of one place, are rows; planes of a channel are not."""
    x = drawn(300, 6)
    several = (x, x[:, :, None], x[:, :, None, None])
    outs = [F.batch_norm(t.to("oracle"), None, None, training=True).cpu() for t in several]
    assert same(outs[0], outs[1][..., 0]) and same(outs[0], outs[2][..., 0, 0])
    planes = F.batch_norm(x.t()[None].contiguous().to("oracle"), None, None, training=True).cpu()[0].t()
    assert not same(outs[0], planes)  # another order of the sums


def test_float16_training_of_other_layouts_is_refused() -> None:
    x = drawn(4, 3, 5, dtype=torch.float16).transpose(1, 2).to("oracle")
    with pytest.raises(NotImplementedError, match="contiguous first"):
        F.batch_norm(x, None, None, training=True)


def test_no_elements() -> None:
    bn = nn.BatchNorm2d(3).to("oracle")
    assert bn(torch.empty(0, 3, 4, 4, device="oracle")).shape == (0, 3, 4, 4)


def test_instance_norm_is_batch_norm_of_samples() -> None:
    x = drawn(2, 3, 4, 5)
    got = F.instance_norm(x.to("oracle")).cpu()
    one = F.batch_norm(x.reshape(1, 6, 4, 5).to("oracle"), None, None, training=True).cpu()
    assert same(got.reshape(1, 6, 4, 5), one)


def test_a_step_replays(tmp_path: pathlib.Path) -> None:
    last = nn.BatchNorm1d(4, momentum=None)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4), last)
    net = net.to("oracle")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = drawn(12, 6).to("oracle")
    path = tmp_path / "bn.trace"
    with step_oracle.record(str(path), model=net, optimizer=optimizer, keep="state"):
        net(x).square().mean().backward()
        optimizer.step()
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(str(path), mode=mode)
        assert report.ok and report.counts["mismatch"] == 0 and report.counts["unmodelled"] == 0, (mode, report.counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["planes", "rows", "transposed"])
def test_the_parts_that_synchronised_batch_norm_calls(dtype: torch.dtype, layout: str) -> None:
    """The map is evaluation's, with the caller's statistics; the sums' gradients are native_batch_norm_backward's."""
    shape = (37, 4) if layout == "rows" else (3, 4, 5, 6)
    x, dy = drawn(*shape, dtype=dtype).to("oracle"), drawn(*shape, dtype=dtype).to("oracle")
    if layout == "transposed":
        x, dy = x.mT.contiguous().mT, dy.mT.contiguous().mT
    weight, bias, mean, var = (drawn(4).abs().add(0.5).to("oracle") for _ in range(4))
    aten = torch.ops.aten
    want, _, invstd = aten.native_batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5)
    got = aten.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5)
    assert same(got.cpu(), want.cpu()) and got.is_contiguous()
    given = torch.empty_strided(got.shape, got.stride()[::-1] if layout == "rows" else got.stride(), dtype=dtype)
    given = given.to("oracle")
    assert same(torch.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5, out=given).cpu(), want.cpu())
    stats = (mean, invstd)
    _, dgamma, dbeta = aten.native_batch_norm_backward(
        dy, x, weight, None, None, *stats, True, 1e-5, [False, True, True]
    )
    sums = aten.batch_norm_backward_reduce(dy, x, *stats, weight, True, True, True)
    assert same(sums[2].cpu(), dgamma.cpu()) and same(sums[3].cpu(), dbeta.cpu())
    assert [s.dtype for s in sums] == [torch.float32] * 4
    assert same(sums[0].cpu(), dbeta.cpu()), "the gradient of the bias is the sum"
    places = [d for d in range(x.dim()) if d != 1]
    centred = x.cpu().double() - mean.cpu().double().view(1, -1, *[1] * (x.dim() - 2))
    exact = (dy.cpu().double() * centred).sum(places)
    assert (sums[1].cpu().double() - exact).abs().max() <= (1e-4 if dtype == torch.float32 else 0.5)


def test_statistics_of_another_type_or_size_are_refused() -> None:
    x, good, bad = drawn(5, 4).to("oracle"), torch.ones(4, device="oracle"), torch.ones(3, device="oracle")
    aten = torch.ops.aten
    with pytest.raises(NotImplementedError, match="batch_norm_elemt.*mean and invstd"):
        aten.batch_norm_elemt(x, None, None, good.half(), good, 1e-5)
    with pytest.raises(RuntimeError, match=r"batch_norm_elemt: mean or invstd of shape \[3\]"):
        aten.batch_norm_elemt(x, None, None, good, bad, 1e-5)
    with pytest.raises(RuntimeError, match=r"batch_norm_backward_reduce: grad_out of shape \[5, 3\]"):
        aten.batch_norm_backward_reduce(x[:, :3], x, good, good, good, True, True, True)
    with pytest.raises(NotImplementedError, match="batch_norm_backward_reduce"):
        aten.batch_norm_backward_reduce(x.half(), x, good, good, good, True, True, True)
