"""Random operators of the device against a twin in numpy, and their rules: order of elements, generator, refusals."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

import step_oracle

U32 = np.uint32
U64 = np.uint64


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("t4")  # 40 multiprocessors of 1024 threads: one wave is 40,960


def philox(seed: int, threads: int, draw: int) -> np.ndarray:
    """Four words of block `draw` of threads 0 .. threads - 1: Philox4x32-10."""
    low, high = U64(0xFFFFFFFF), U64(32)
    thread = np.arange(threads, dtype=U64)
    c = [np.full(threads, draw & 0xFFFFFFFF, U64), np.full(threads, draw >> 32, U64), thread & low, thread >> high]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p, q = c[0] * U64(0xD2511F53), c[2] * U64(0xCD9E8D57)
        c = [(q >> high) ^ c[1] ^ U64(k0), q & low, (p >> high) ^ c[3] ^ U64(k1), p & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, -1).astype(U32)


def uniforms(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.float32).astype(np.float64) * 2.0**-32 + 2.0**-33).astype(np.float32)


def grid_stride(n: int, seed: int, offset: int = 0) -> np.ndarray:
    """Words in the order of a grid-stride kernel of 256-thread blocks."""
    threads = min(40 * 4, -(-n // 256)) * 256
    rounds = (n - 1) // (threads * 4) + 1
    return np.concatenate([philox(seed, threads, offset // 4 + r).T.ravel() for r in range(rounds)])[:n]


def offset() -> int:
    return struct.unpack("<QQ", bytes(torch.oracle.get_rng_state().tolist()))[1]


@pytest.mark.parametrize("n", [1, 255, 257, 40960, 40961, 163841, 400001])
def test_uniform_and_the_generator(n: int) -> None:
    torch.manual_seed(7)
    x = torch.rand(n, device="oracle")
    u = uniforms(grid_stride(n, 7))
    assert x.cpu().numpy().tobytes() == np.where(u == 1, np.float32(0), u).tobytes()
    assert offset() == ((n - 1) // (min(160, -(-n // 256)) * 256 * 4) + 1) * 4
    second = torch.rand(n, device="oracle")
    u = uniforms(grid_stride(n, 7, offset() // 2))
    assert second.cpu().numpy().tobytes() == np.where(u == 1, np.float32(0), u).tobytes()


def test_integers() -> None:
    torch.manual_seed(3)
    x = torch.randint(0, 50257, (8, 1024), device="oracle")
    assert np.array_equal(x.cpu().numpy().ravel(), (grid_stride(8192, 3) % 50257).astype(np.int64))
    assert x.dtype == torch.int64


def test_a_permuted_output_is_filled_in_memory_order() -> None:
    torch.manual_seed(5)
    plain = torch.rand(6, 4, device="oracle")
    torch.manual_seed(5)
    turned = torch.empty(4, 6, device="oracle").t().uniform_()
    assert torch.equal(turned.t().reshape(-1).cpu(), plain.reshape(-1).cpu())
    torch.manual_seed(5)
    gaps = torch.zeros(6, 8, device="oracle")
    gaps[:, ::2].uniform_()
    assert torch.equal(gaps[:, ::2].cpu(), plain.cpu())
    assert not gaps[:, 1::2].cpu().any()


@pytest.mark.parametrize("n", [4, 4096, 4100, 164096])
def test_dropout_of_four_elements_a_thread(n: int) -> None:
    torch.manual_seed(11)
    x = torch.linspace(-3, 3, n).to("oracle").requires_grad_()
    y = torch.nn.functional.dropout(x, 0.1, training=True)
    threads = min(160, -(-n // 256)) * 256
    rounds = (n - 1) // (threads * 4) + 1
    keep = uniforms(np.concatenate([philox(11, threads, r).ravel() for r in range(rounds)])[:n]) < np.float32(0.9)
    scale = np.float32(1.0 / np.float64(np.float32(0.9)))
    expected = x.detach().cpu().numpy() * keep.astype(np.float32) * scale
    assert y.detach().cpu().numpy().tobytes() == expected.tobytes()
    assert offset() == rounds * 4
    y.sum().backward()
    assert x.grad is not None
    back = keep.astype(np.float32) * np.float32(1.0 / (1.0 - 0.1))
    assert x.grad.cpu().numpy().tobytes() == back.tobytes()


def test_dropout_that_draws_nothing() -> None:
    torch.manual_seed(1)
    x = torch.ones(8, device="oracle")
    y, mask = torch.native_dropout(x, 0.5, False)
    assert torch.equal(y.cpu(), torch.ones(8)) and mask.cpu().all()
    y, mask = torch.native_dropout(x, 1.0, True)
    assert not y.cpu().any() and not mask.cpu().any()
    torch.nn.functional.dropout(x, 0.5, training=False)
    assert offset() == 0


def test_bernoulli() -> None:
    torch.manual_seed(2)
    x = torch.empty(1000, device="oracle").bernoulli_(0.3)
    assert np.array_equal(x.cpu().numpy() == 1, uniforms(grid_stride(1000, 2)) < np.float32(0.3))
    torch.manual_seed(2)
    p = torch.linspace(0, 1, 1003).to("oracle")
    x = torch.bernoulli(p)
    u = uniforms(philox(2, 251, 0).ravel()[:1003])
    assert np.array_equal(x.cpu().numpy() == 1, u <= p.cpu().numpy())
    assert offset() == 12


def test_permutation() -> None:
    torch.manual_seed(4)
    p = torch.randperm(1000, device="oracle")
    assert torch.equal(p.cpu().sort().values, torch.arange(1000))
    assert offset() == 4 + 1000  # keys, then the kernel that shuffles equal keys


def test_samples_with_replacement() -> None:
    """exact probabilities: 3 rows, thread `sample` of block `row` draws"""
    torch.manual_seed(6)
    p = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 4.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    choice = torch.multinomial(p.to("oracle"), 300, replacement=True)
    assert choice.dtype == torch.int64 and choice.shape == (3, 300) and offset() == 4
    u = uniforms(philox(6, 3 * 384, 0)[:, 0]).reshape(3, 384)[:, :300]
    ends = np.array([[0.25, 0.25, 0.75, 1.0], [0, 1, 1, 1], [0.25, 0.5, 0.75, 1.0]], np.float32)
    assert np.array_equal(choice.cpu().numpy(), [np.searchsorted(e, v) for e, v in zip(ends, u, strict=True)])
    torch.manual_seed(6)
    out = torch.empty(0, dtype=torch.int64, device="oracle")
    torch.multinomial(p.t().contiguous().t().to("oracle"), 300, replacement=True, out=out)
    assert torch.equal(out.cpu(), choice.cpu())


def test_refusals() -> None:
    with pytest.raises((RuntimeError, ValueError), match="generator"):
        torch.rand(3, device="oracle", generator=torch.Generator("cpu"))
    with pytest.raises(NotImplementedError, match="float32"):
        torch.randn(3, device="oracle", dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="look-back"):  # of one row
        torch.multinomial(torch.ones(4, device="oracle"), 2, replacement=True)
    with pytest.raises(NotImplementedError, match="float64"):
        torch.multinomial(torch.ones(2, 4, device="oracle", dtype=torch.float64), 2, replacement=True)
    for bad, why in ((-1.0, "negative"), (0.0, "sum to 0"), (float("nan"), "sum to nan")):
        p = torch.tensor([[0.5, 0.5], [bad, 0.0]], device="oracle")
        with pytest.raises(ValueError, match=f"row 1.*{why}|{why}"):
            torch.multinomial(p, 2, replacement=True)
    with pytest.raises(RuntimeError, match="uniform_ expects"):
        torch.empty(2, device="oracle").uniform_(1, 0)
