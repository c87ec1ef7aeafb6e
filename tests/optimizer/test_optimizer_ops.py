"""Foreach and fused optimizers through torch.optim: routes, order of operations, bytes against single operators."""

import pytest
import torch

import step_oracle


@pytest.fixture(autouse=True)
def card():
    with step_oracle.card("h100-pcie"):
        yield


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.detach().cpu().view(torch.int32)


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(*s, generator=gen).to("oracle") for s in shapes]


SHAPES = [(5,), (64,), (3, 7), (40, 30)]
FOREACH = {
    "add number": (lambda xs, ys: torch._foreach_add(xs, 0.3), lambda x, y: x + 0.3),
    "sub numbers": (lambda xs, ys: torch._foreach_sub(xs, [0.3] * 4), lambda x, y: x - 0.3),
    "add alpha": (lambda xs, ys: torch._foreach_add(xs, ys, alpha=-0.03), lambda x, y: torch.add(x, y, alpha=-0.03)),
    "sub alpha": (lambda xs, ys: torch._foreach_sub(xs, ys, alpha=0.7), lambda x, y: torch.sub(x, y, alpha=0.7)),
    "mul": (lambda xs, ys: torch._foreach_mul(xs, ys), lambda x, y: x * y),
    "mul tensor": (lambda xs, ys: torch._foreach_mul(xs, ys[0][0]), lambda x, y: x * tensors(*SHAPES, seed=1)[0][0]),
    "div list": (lambda xs, ys: torch._foreach_div(xs, ys), lambda x, y: x / y),
    "div number": (lambda xs, ys: torch._foreach_div(xs, 0.31), lambda x, y: x / 0.31),
    "lerp": (lambda xs, ys: torch._foreach_lerp(xs, ys, 0.1), lambda x, y: torch.lerp(x, y, 0.1)),
    "addcmul": (lambda xs, ys: torch._foreach_addcmul(xs, ys, ys, 0.05),
                lambda x, y: torch.addcmul(x, y, y, value=0.05)),
    "addcmul one": (lambda xs, ys: torch._foreach_addcmul(xs, ys, ys), lambda x, y: torch.addcmul(x, y, y)),
    "addcdiv": (lambda xs, ys: torch._foreach_addcdiv(xs, xs, ys, [0.5] * 4),
                lambda x, y: torch.addcdiv(x, x, y, value=0.5)),
    "sqrt": (lambda xs, ys: torch._foreach_sqrt(torch._foreach_abs(xs)), lambda x, y: x.abs().sqrt()),
    "exp": (lambda xs, ys: torch._foreach_exp(xs), lambda x, y: x.exp()),
    "maximum": (lambda xs, ys: torch._foreach_maximum(xs, ys), lambda x, y: torch.maximum(x, y)),
    "clamp_max": (lambda xs, ys: torch._foreach_clamp_max(xs, 0.2), lambda x, y: x.clamp(max=0.2)),
    "pow": (lambda xs, ys: torch._foreach_pow(torch._foreach_abs(xs), 1.7), lambda x, y: x.abs() ** 1.7),
    "base": (lambda xs, ys: torch._foreach_pow(2.0, xs), lambda x, y: 2.0**x),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_equals_the_operator(name):
    xs, ys = tensors(*SHAPES), tensors(*SHAPES, seed=1)
    many, single = FOREACH[name]
    for got, x, y in zip(many(xs, ys), xs, ys, strict=True):
        assert torch.equal(bits(got), bits(single(x, y)))
        assert got.stride() == x.stride()


def test_division_by_a_list_of_numbers_is_a_true_division():
    xs = tensors((1000,), (8,))
    got = torch._foreach_div(xs, [0.31, 0.77])
    for y, x, s in zip(got, xs, (0.31, 0.77), strict=True):
        assert torch.equal(bits(y), bits(x.cpu() / torch.tensor([s])))
    assert not torch.equal(bits(got[0]), bits(xs[0] / 0.31))


def test_slow_route_divides_through_reciprocals():
    # A tensor with gaps is not for the multi-tensor kernels: its neighbours go one by one too.
    xs = [tensors((1000, 2))[0][:, 0], tensors((8,))[0]]
    got = torch._foreach_div(xs, [0.31, 0.77])
    assert torch.equal(bits(got[0].contiguous()), bits((xs[0] / 0.31).contiguous()))


def test_in_place_bumps_versions():
    xs = tensors((4,), (5,))
    before = [x._version for x in xs]
    torch._foreach_mul_(xs, 2.0)
    assert all(x._version > v for x, v in zip(xs, before, strict=True))


def test_norm_of_small_lists():
    xs = tensors((1,), (4,), seed=3)
    for norm, x in zip(torch._foreach_norm(xs), xs, strict=True):
        squares = torch.zeros((), dtype=torch.float32)
        for v in x.cpu():  # one element a thread: the first warp's tree adds nothing but zeros for n = 1
            squares = squares + v * v
        if x.numel() == 1:
            assert torch.equal(bits(norm), bits(squares.sqrt()))
    assert torch.equal(torch._foreach_norm(xs, float("inf"))[1].cpu(), xs[1].cpu().abs().max())


def train(cls, steps: int = 3, **options) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(p) for p in tensors(*SHAPES)]
    optimizer = cls(params, **options)
    for step in range(steps):
        for p, g in zip(params, tensors(*SHAPES, seed=10 + step), strict=True):
            p.grad = g
        optimizer.step()
    return params


OPTIMIZERS = [
    (torch.optim.AdamW, {}), (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    (torch.optim.AdamW, {"fused": True}), (torch.optim.AdamW, {"fused": True, "amsgrad": True, "maximize": True}),
    (torch.optim.AdamW, {"foreach": True, "capturable": True}), (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"foreach": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "foreach": False}),
    (torch.optim.RMSprop, {"foreach": True}), (torch.optim.Adagrad, {"foreach": True}),
]


@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS, ids=[f"{c.__name__} {o}" for c, o in OPTIMIZERS])
def test_optimizers_step_on_the_device(cls, options):
    params = train(cls, **options)
    assert all(p.device.type == "oracle" and p.isfinite().all().cpu() for p in params)
    again = train(cls, **options)
    assert all(torch.equal(bits(p), bits(q)) for p, q in zip(params, again, strict=True))


def test_sgd_foreach_and_loop_give_the_same_bytes():
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    foreach, loop = train(torch.optim.SGD, foreach=True, **options), train(torch.optim.SGD, foreach=False, **options)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(foreach, loop, strict=True))


def test_adamw_foreach_and_loop_part_at_the_division():
    foreach, loop = train(torch.optim.AdamW, foreach=True, lr=0.1), train(torch.optim.AdamW, foreach=False, lr=0.1)
    assert any(not torch.equal(bits(a), bits(b)) for a, b in zip(foreach, loop, strict=True))


def test_fused_step_is_skipped_on_found_inf():
    p, g, m, v = (tensors((8,), seed=s) for s in range(4))
    before = bits(p[0]).clone()
    one = torch.ones((), device="oracle")
    torch._fused_adamw_(p, g, m, v, [], [torch.ones((), device="oracle")], lr=0.1, beta1=0.9, beta2=0.95,
                        weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False, found_inf=one)
    assert torch.equal(bits(p[0]), before)


def test_fused_checks_its_lists():
    p, g = tensors((8,)), tensors((7,))
    with pytest.raises(RuntimeError, match="alike in sizes"):
        torch._fused_sgd_(p, g, [], weight_decay=0, momentum=0, lr=0.1, dampening=0, nesterov=False, maximize=False,
                          is_first_step=False)


def test_gradient_scaler():
    grads = tensors((8,), (3,))
    found, inverse = torch.zeros((), device="oracle"), torch.full((), 0.5, device="oracle")
    want = [bits(g * 0.5) for g in grads]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert all(torch.equal(bits(g), w) for g, w in zip(grads, want, strict=True)) and found.item() == 0
    grads[1][0] = float("inf")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    assert found.item() == 1
    with pytest.raises(NotImplementedError, match="no bfloat16 kernel, on a card either"):
        torch._amp_foreach_non_finite_check_and_unscale_([grads[0].bfloat16()], found, inverse)
    scale, tracker = torch.full((), 1024.0, device="oracle"), torch.full((), 1, dtype=torch.int32, device="oracle")
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
    assert (scale.item(), tracker.item()) == (512.0, 0)
    for expected in ((512.0, 1), (1024.0, 0)):
        torch._amp_update_scale_(scale, tracker, torch.zeros((), device="oracle"), 2.0, 0.5, 2)
        assert (scale.item(), tracker.item()) == expected
