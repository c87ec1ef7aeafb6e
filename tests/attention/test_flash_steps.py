"""GPT steps in bfloat16 through FlashAttention-2: recorded on the virtual card, replayed to the same bytes."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import forging  # noqa: E402
import gpt  # noqa: E402

FORWARD = "aten._scaled_dot_product_flash_attention"
BACKWARD = "aten._scaled_dot_product_flash_attention_backward"


def train(run: gpt.Training) -> None:
    run.optimizer.zero_grad(set_to_none=True)
    with torch.autocast("oracle", dtype=torch.bfloat16):
        loss = run.model(run.tokens, run.targets)
    loss.backward()
    run.optimizer.step()


def recorded(path: pathlib.Path, card: str, shape: gpt.Shape, keep: str = "state") -> str:
    step_oracle.set_card(card)
    run = gpt.Training(shape, device="oracle")
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        train(run)
        with step_oracle.record(str(path), keep=keep, model=run.model, optimizer=run.optimizer):
            train(run)
    return str(path)


@pytest.fixture
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("card", ["a100-sxm-80gb", "l4", "h100-sxm"])
@pytest.mark.parametrize("tokens", [128, 256, 500])
def test_a_step_replays_to_the_same_bytes(
    tmp_path: pathlib.Path, card: str, tokens: int, deterministic: None
) -> None:
    if tokens <= 256:  # no race: two key tiles at most
        torch.use_deterministic_algorithms(False)
    shape = gpt.Shape(width=128, heads=2, tokens=tokens, dropout=0.1)
    path = recorded(tmp_path / "step.trace", card, shape)
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(path, mode=mode)
        assert report.ok and report.divergence is None, (report.divergence, report.unmodelled[:3])
        assert report.counts["mismatch"] == report.counts["unmodelled"] == report.counts["carried"] == 0
        assert report.counts["match"] > 100 and report.reads_from_recording == 0
    names = [op.op for op in step_oracle.load(path).ops]
    assert names.count(FORWARD) == names.count(BACKWARD) == 2


def test_grouped_heads_and_head_sizes_that_are_padded(tmp_path: pathlib.Path) -> None:
    for width, kv_heads in ((80, 2), (64, 2), (64, 1)):
        shape = gpt.Shape(width=width, heads=4, kv_heads=kv_heads, tokens=77, dropout=0.1)
        report = step_oracle.replay(recorded(tmp_path / f"{width}-{kv_heads}.trace", "l4", shape), mode="end-to-end")
        assert report.ok and report.counts["match"] > 100, (report.divergence, report.unmodelled[:3])


def test_the_default_backward_beyond_two_key_tiles_is_a_race() -> None:
    step_oracle.set_card("a100-sxm-80gb")
    q = torch.randn(1, 2, 300, 64, dtype=torch.bfloat16, device="oracle", requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    message = "_flash_attention_backward.* 3 key tiles .*use_deterministic_algorithms"
    with pytest.raises(NotImplementedError, match=message):
        out.sum().backward()


def without_determinism(path: str, to: pathlib.Path) -> str:
    """The trace of a deterministic step, as if the default algorithm had been recorded."""
    header, records, blobs = forging.read(path)
    changed = 0
    for field in records["environment"][0]["switches"]:
        if field["key"] == "deterministic_algorithms":
            field["value"] = "false" if field["value"] in ("true", "false") else "0"
            changed += 1
    assert changed == 1
    return forging.write(str(to), header, records, blobs)


# 32 heads on 58 multiprocessors: two buffers for four key tiles, another order than one buffer's.
RACING = gpt.Shape(width=128, heads=4, layers=1, batch=8, tokens=400, dropout=0.1)


def test_a_race_is_carried_and_named(tmp_path: pathlib.Path, deterministic: None) -> None:
    path = recorded(tmp_path / "step.trace", "l4", RACING, keep="all")
    assert step_oracle.replay(path).counts["carried"] == 0
    report = step_oracle.replay(without_determinism(path, tmp_path / "default.trace"))
    assert report.ok and report.counts["mismatch"] == report.counts["unmodelled"] == 0, report.divergence
    assert report.counts["carried"] == 1 == sum(op.op == BACKWARD for op in step_oracle.load(path).ops)
    (row,) = report.carried
    assert "flash_attention_backward" in row["op"] and "a race" in row["reason"] and "4 key tiles" in row["reason"]


def test_a_racing_result_whose_bytes_are_not_kept_is_not_verified(tmp_path: pathlib.Path, deterministic: None) -> None:
    path = recorded(tmp_path / "step.trace", "l4", RACING)
    report = step_oracle.replay(without_determinism(path, tmp_path / "default.trace"))
    assert not report.ok and report.counts["mismatch"] == 0 and report.counts["unmodelled"] > 0
    assert "race" in report.unmodelled[0]["reason"]


def test_what_is_refused() -> None:
    step_oracle.set_card("l4")
    q = torch.randn(1, 8, 2, 64, dtype=torch.bfloat16, device="oracle")
    run = torch.ops.aten._flash_attention_forward
    for options, message in (
        ({"window_size_left": 4}, "sliding window"),
        ({"alibi_slopes": torch.zeros(2, device="oracle")}, "ALiBi"),
        ({"num_splits": 2}, "number of splits"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            run(q, q, q, None, None, 8, 8, 0.0, True, False, **options)
    with pytest.raises(NotImplementedError, match="debug mask"):
        run(q, q, q, None, None, 8, 8, 0.1, True, True)
    with pytest.raises(RuntimeError, match="fp16 and bf16"):
        run(q.float(), q.float(), q.float(), None, None, 8, 8, 0.0, True, False)


def test_what_the_operators_return() -> None:
    step_oracle.set_card("a100-sxm-80gb")
    torch.manual_seed(3)
    before = torch.oracle.get_rng_state().view(torch.int64)[-1]
    q, k, v = (torch.randn(2, 16, 3, 40, dtype=torch.float16, device="oracle").transpose(1, 2) for _ in "qkv")
    start = torch.oracle.get_rng_state().view(torch.int64)[-1]
    out, lse, cum_q, cum_k, n_q, n_k, state, unused, mask = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.25, True
    )
    end = torch.oracle.get_rng_state().view(torch.int64)[-1]
    assert before < start and end - start == 2 * 3 * 32  # a Philox block a lane and head
    assert out.shape == q.shape and out.stride() == q.stride() and out.dtype is torch.float16
    assert lse.shape == (2, 3, 16) and lse.dtype is torch.float32 and lse.is_contiguous()
    assert cum_q is None and cum_k is None and (n_q, n_k) == (16, 16)
    assert state.shape == (2,) and unused.shape == () and state.dtype is unused.dtype is torch.uint64
    assert state.cpu().view(torch.int64).tolist() == [3, int(start)] and mask.shape == (0,)
    again = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        out, q, k, v, out, lse, cum_q, cum_k, n_q, n_k, 0.25, True, state, unused
    )
    assert [t.stride() for t in again] == [q.stride(), k.stride(), v.stride()]
    # One query of grouped heads stands as several queries of one head: no causal mask, other tiles, the same numbers.
    k2, v2 = k[:, :1], v[:, :1]
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    one = flash(q[:, :, :1], k2, v2, 0.0, True)
    assert one[0].shape == (2, 3, 1, 40) and one[1].shape == (2, 3, 1)
    each = [flash(q[:, h : h + 1, :1], k2, v2, 0.0, True) for h in range(3)]
    assert torch.equal(torch.cat([e[0] for e in each], 1).view(torch.int16).cpu(), one[0].view(torch.int16).cpu())
    # Nothing to attend to, and no batch.
    empty = torch.ops.aten._scaled_dot_product_flash_attention(q, k[:, :, :0], v[:, :, :0], 0.0, False)
    assert float(empty[0].abs().sum()) == 0.0 and bool((empty[1] == float("inf")).all())
    assert torch.ops.aten._scaled_dot_product_flash_attention(q[:0], k[:0], v[:0], 0.5, True)[0].shape == (0, 3, 16, 40)
