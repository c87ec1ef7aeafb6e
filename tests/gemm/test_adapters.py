"""Matrix products on the device "oracle" against a fused-multiply-add chain in exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import step_oracle
from step_oracle import units

ORACLE = "oracle"


def rounded(exact: Fraction) -> np.float32:
    """The float32 nearest to `exact`, ties to even; every value here is finite and normal or zero."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def chain(
    a: np.ndarray, b: np.ndarray, alpha: float = 1.0, beta: float = 0.0, c: np.ndarray | None = None
) -> np.ndarray:
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            acc = np.float32(0)
            for k in range(a.shape[1]):
                acc = rounded(Fraction(float(a[i, k])) * Fraction(float(b[k, j])) + Fraction(float(acc)))
            source = Fraction(float(c[i, j])) if c is not None else Fraction(0)
            scaled = rounded(Fraction(float(np.float32(beta))) * source)
            out[i, j] = rounded(Fraction(float(np.float32(alpha))) * Fraction(float(acc)) + Fraction(float(scaled)))
    return out


def same(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert actual.device.type == ORACLE
    assert actual.cpu().numpy().astype(np.float32).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.fixture(autouse=True)
def card():
    with step_oracle.card("l4"):
        yield


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def on_card(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to(ORACLE)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_mm_of_all_layouts(data, ta, tb):
    a, b = data(5, 9), data(9, 7)
    x = on_card(a.T.copy()).t() if ta else on_card(a)
    y = on_card(b.T.copy()).t() if tb else on_card(b)
    same(x @ y, chain(a, b))
    out = torch.empty(7, 5, device=ORACLE).t()
    torch.mm(x, y, out=out)
    same(out, chain(a, b))


def test_linear_with_bias_and_backward(data):
    a, w, bias, g = data(4, 6), data(3, 6), data(3), data(4, 3)
    x, weight, shift = (on_card(t).requires_grad_() for t in (a, w, bias))
    y = torch.nn.functional.linear(x, weight, shift)
    same(y.detach(), chain(a, w.T, 1, 1, np.broadcast_to(bias, (4, 3))))
    grad_x, grad_w = torch.autograd.grad(y, (x, weight), on_card(g))
    same(grad_x, chain(g, w))
    same(grad_w, chain(g.T, a))


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.3, 0.7), (2.5, 0), (1, -1)])
def test_addmm_and_baddbmm(data, alpha, beta):
    a, b, c = data(2, 4, 5), data(2, 5, 3), data(2, 4, 3)
    expected = np.stack([chain(a[i], b[i], alpha, beta, c[i] if beta else None) for i in range(2)])
    same(torch.baddbmm(on_card(c), on_card(a), on_card(b), alpha=alpha, beta=beta), expected)
    same(on_card(c).baddbmm_(on_card(a), on_card(b), alpha=alpha, beta=beta), expected)
    same(torch.addmm(on_card(c[0]), on_card(a[0]), on_card(b[0]), alpha=alpha, beta=beta), expected[0])
    same(on_card(c[0]).addmm_(on_card(a[0]), on_card(b[0]), alpha=alpha, beta=beta), expected[0])


def test_batches_vectors_and_the_composites_over_them(data):
    a, b = data(2, 3, 4, 5), data(2, 3, 5, 6)
    expected = np.stack([chain(x, y) for x, y in zip(a.reshape(6, 4, 5), b.reshape(6, 5, 6), strict=True)])
    same(torch.bmm(on_card(a).flatten(0, 1), on_card(b).flatten(0, 1)), expected)
    same(on_card(a) @ on_card(b), expected.reshape(2, 3, 4, 6))
    same(torch.einsum("abij,abjk->abik", on_card(a), on_card(b)), expected.reshape(2, 3, 4, 6))
    v, w = data(5), data(5)
    same(torch.mv(on_card(a[0, 0]), on_card(v)), chain(a[0, 0], v[:, None])[:, 0])
    same(torch.dot(on_card(v), on_card(w)), chain(v[None], w[:, None])[0, 0])
    same(torch.addmv(on_card(w[:4]), on_card(a[0, 0]), on_card(v)), chain(a[0, 0], v[:, None], 1, 1, w[:4, None])[:, 0])
    summed = torch.addbmm(on_card(a[0, 0, :, :3].copy()), on_card(a[0]), on_card(b[0, :, :, :3].copy()))
    acc = a[0, 0, :, :3]
    for i in range(3):
        acc = chain(a[0, i], b[0, i, :, :3], 1, 1, acc)
    same(summed, acc)


def test_expanded_operands(data):
    a, b = data(4, 5), data(3, 5, 6)
    expected = np.stack([chain(a, y) for y in b])
    same(torch.bmm(on_card(a).expand(3, 4, 5), on_card(b)), expected)


def test_empty_sums_and_sizes():
    one = torch.ones(2, 3, device=ORACLE)
    empty = torch.empty(2, 0, device=ORACLE) @ torch.empty(0, 3, device=ORACLE)
    assert empty.cpu().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert torch.addmm(one, empty[:, :0], empty[:0], beta=0).cpu().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert (torch.empty(0, 3, device=ORACLE) @ torch.empty(3, 4, device=ORACLE)).shape == (0, 4)


def test_refusals_name_the_op_and_the_remedy():
    x = torch.ones(2, 2, device=ORACLE)
    with pytest.raises(NotImplementedError, match="mm.*Int"):
        torch.mm(torch.ones(2, 2).int().to(ORACLE), torch.ones(2, 2).int().to(ORACLE))
    with pytest.raises(NotImplementedError, match="_addmm_activation.*gelu"):
        torch._addmm_activation(x[0], x, x, use_gelu=True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ torch.ones(3, 2, device=ORACLE)
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(x, torch.ones(2, 2))


def exponent_and_value(x: torch.Tensor) -> tuple[int, Fraction]:
    """The exponent that the adder aligns by, and the exact value, of a finite factor."""
    lowest = -14 if x.dtype == torch.float16 else -126
    value = Fraction(float(x))
    return (max(int(np.frexp(float(x))[1]) - 1, lowest) if value else -1000), value


def truncated_to(value: Fraction, place: Fraction) -> Fraction:
    return Fraction(int(value / place)) * place  # int() truncates toward zero


def tensor_core_chain(a: torch.Tensor, b: torch.Tensor, terms: int, bits: int) -> np.float32:
    """One output: groups of `terms` products and the accumulator, aligned, truncated, summed, truncated to float32."""
    acc = Fraction(0)
    for k in range(0, len(a), terms):
        parts = [(int(np.frexp(float(acc))[1]) - 1, acc)] if acc else []
        for x, y in zip(a[k : k + terms], b[k : k + terms], strict=True):
            (ex, vx), (ey, vy) = exponent_and_value(x), exponent_and_value(y)
            if vx * vy:
                parts.append((ex + ey, vx * vy))
        if parts:
            place = Fraction(2) ** (max(e for e, _ in parts) - bits)
            total = sum(truncated_to(v, place) for _, v in parts)
            scale = int(np.frexp(float(total))[1]) - 1
            acc = truncated_to(total, Fraction(2) ** (scale - 23)) if total else Fraction(0)
    return np.float32(float(acc))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "terms", "bits"), [("l4", 8, 24), ("a100-pcie-40gb", 8, 24), ("h100-pcie", 16, 25)])
def test_16_bit_products_take_the_adder_of_the_card(data, dtype, name, terms, bits):
    a, b = torch.from_numpy(data(3, 37)).to(dtype), torch.from_numpy(data(37, 4)).to(dtype)
    bias = torch.from_numpy(data(4)).to(dtype)
    acc = torch.tensor([[tensor_core_chain(a[i], b[:, j], terms, bits) for j in range(4)] for i in range(3)])
    with step_oracle.card(name):
        x, y = a.to(ORACLE), b.to(ORACLE)
        assert torch.equal((x @ y).cpu(), acc.to(dtype))
        assert torch.equal(torch.addmm(bias.to(ORACLE), x, y).cpu(), (acc + bias.float()).to(dtype))
        assert torch.equal(torch.bmm(x[None], y[None])[0].cpu(), acc.to(dtype))
        assert torch.equal(torch.mv(x, y[:, 0].contiguous()).cpu(), acc[:, 0].to(dtype))


def test_bfloat16_on_turing_is_an_fma_chain_rounded_once(data):
    a, b = torch.from_numpy(data(3, 70)).bfloat16(), torch.from_numpy(data(70, 4)).bfloat16()
    c, bias = torch.from_numpy(data(3, 4)).bfloat16(), torch.from_numpy(data(4)).bfloat16()
    wide_a, wide_b, wide_c = a.float().numpy(), b.float().numpy(), c.float().numpy()
    acc = torch.from_numpy(chain(wide_a, wide_b))
    mixed = torch.from_numpy(chain(wide_a, wide_b, 0.3, -0.7, wide_c)).bfloat16()
    adder = torch.tensor([[tensor_core_chain(a[i], b[:, j], 8, 24) for j in range(4)] for i in range(3)])
    assert not torch.equal(acc, adder), "float16's adder would give another sum"
    with step_oracle.card("t4"):
        x, y, z, w = (t.to(ORACLE) for t in (a, b, c, bias))
        assert torch.equal((x @ y).cpu(), acc.bfloat16())
        assert torch.equal((y.t() @ x.t()).cpu(), acc.t().bfloat16())
        assert torch.equal(torch.addmm(w, x, y).cpu(), (acc + bias.float()).bfloat16())
        assert torch.equal(torch.nn.functional.linear(x, y.t(), w).cpu(), (acc + bias.float()).bfloat16())
        assert torch.equal(torch.addmm(z, x, y, beta=-0.7, alpha=0.3).cpu(), mixed)
        assert torch.equal(torch.bmm(x[None], y[None])[0].cpu(), acc.bfloat16())
        assert torch.equal(torch.baddbmm(z[None], x[None], y[None], beta=-0.7, alpha=0.3)[0].cpu(), mixed)
        assert torch.equal(torch.mv(x, y[:, 0].contiguous()).cpu(), acc[:, 0].bfloat16())
        nan = torch.tensor([[float("inf")]]).bfloat16().to(ORACLE) @ torch.zeros(1, 1).bfloat16().to(ORACLE)
        assert nan.cpu().view(torch.int16).item() == 0x7FFF


@pytest.fixture
def tf32():
    before = torch.get_float32_matmul_precision()
    yield lambda: torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("name", "terms", "bits"), [("l4", 4, 24), ("a100-pcie-40gb", 4, 24), ("h100-pcie", 8, 25)])
def test_tf32_products_take_the_adder_of_the_card(data, tf32, name, terms, bits):
    a, b, bias = data(3, 21), data(21, 4), data(4)
    near = [torch.from_numpy(((x.view(np.int32) + 0x1000) & -0x2000).view(np.float32)) for x in (a, b)]
    acc = np.array([[tensor_core_chain(near[0][i], near[1][:, j], terms, bits) for j in range(4)] for i in range(3)])
    with step_oracle.card(name):
        x, y = on_card(a), on_card(b)
        same(x @ y, chain(a, b))
        same(torch.mv(x, y[:, 0].contiguous()), chain(a, b[:, :1])[:, 0])
        tf32()
        same(x @ y, acc)
        same(torch.addmm(on_card(bias), x, y), acc + bias)
        same(torch.bmm(x[None], y[None])[0], acc)
        same(torch.mv(x, y[:, 0].contiguous()), chain(a, b[:, :1])[:, 0])  # gemv has no TF32 form


def test_tf32_is_plain_float32_on_a_card_without_it(data, tf32):
    a, b = data(3, 21), data(21, 4)
    tf32()
    with step_oracle.card("t4"):
        same(on_card(a) @ on_card(b), chain(a, b))


def test_allow_tf32_is_the_same_switch(data):
    a, b = data(3, 21), data(21, 4)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        on = (on_card(a) @ on_card(b)).cpu()
        torch.backends.cuda.matmul.allow_tf32 = False
        off = (on_card(a) @ on_card(b)).cpu()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    same(off.to(ORACLE), chain(a, b))
    assert not torch.equal(on, off)


def double_chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.zeros((a.shape[0], b.shape[1]))
    for i, j in np.ndindex(out.shape):
        acc = Fraction(0)
        for k in range(a.shape[1]):  # int / int of a Fraction is rounded to nearest even
            acc = Fraction(float(Fraction(float(a[i, k])) * Fraction(float(b[k, j])) + acc))
        out[i, j] = float(acc)
    return out


def test_float64_products_are_a_fused_chain():
    rng = np.random.default_rng(4)
    a, b, c = rng.standard_normal((4, 13)), rng.standard_normal((13, 5)), rng.standard_normal(5)
    x, y = torch.from_numpy(a).to(ORACLE), torch.from_numpy(b).to(ORACLE)
    product = double_chain(a, b)
    assert torch.mm(x, y).cpu().numpy().tobytes() == product.tobytes()
    assert torch.bmm(x[None], y[None])[0].cpu().numpy().tobytes() == product.tobytes()
    assert torch.addmm(torch.from_numpy(c).to(ORACLE), x, y).cpu().numpy().tobytes() == (product + c).tobytes()
    assert torch.dot(x[0], x[1]).item() == double_chain(a[:1], a[1:2].T).item()
    y = torch.from_numpy(b.T.copy()).to(ORACLE).t()
    assert torch.mm(x, y).cpu().numpy().tobytes() == product.tobytes()


def test_int8_products_are_exact():
    rng = np.random.default_rng(5)
    a, b = rng.integers(-128, 128, (17, 24), np.int8), rng.integers(-128, 128, (24, 16), np.int8)
    x, y = torch.from_numpy(a).to(ORACLE), torch.from_numpy(b).to(ORACLE)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    out = torch._int_mm(x, y)
    assert out.dtype == torch.int32
    assert np.array_equal(out.cpu().numpy(), expected)
    with pytest.raises(RuntimeError, match="greater than 16"):
        torch._int_mm(x[:16], y)


def test_relu_in_the_epilogue_is_relu_after_it(data):
    a, b, bias = data(5, 9), data(9, 7), data(7)
    x, y, c = on_card(a), on_card(b), on_card(bias)
    same(torch._addmm_activation(c, x, y), np.maximum(chain(a, b, 1, 1, np.broadcast_to(bias, (5, 7))), np.float32(0)))


def test_units_by_name():
    known = units.names()
    names = {u["name"] for u in known}
    assert {"nv-ampere-bf16", "amd-cdna3-bf16", "x86-vdpbf16ps", "arm-bfdot", "apple-bf16"} <= names
    assert all(u["grade"] and u["source"] and u["arithmetic"] for u in known)
    rng = torch.Generator().manual_seed(6)
    a, b = (torch.randn(s, generator=rng).bfloat16() for s in [(3, 37), (37, 4)])
    with step_oracle.card("l4"):
        card = torch.mm(a.to(ORACLE), b.to(ORACLE)).cpu()
    assert torch.equal(units.product("nv-ampere-bf16", a, b).bfloat16(), card)
    wide = units.product("apple-bf16", a, b)
    same(wide.to(ORACLE), chain(a.float().numpy(), b.float().numpy()))
    one = torch.ones(1, 1)
    assert units.product("apple-bf16", one, one, torch.full((1, 1), 2.0)).item() == 3.0
    with pytest.raises(ValueError, match="does not hold"):
        units.product("nv-ampere-bf16", torch.full((1, 1), 1.001), b[:1])
    with pytest.raises(ValueError, match="no unit is called"):
        units.product("nv-none", a, b)
