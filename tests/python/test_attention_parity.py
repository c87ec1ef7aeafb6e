"""A GPT step with F.scaled_dot_product_attention(is_causal=True, dropout_p=0.1) at 128, 256 and 500 keys on four cards:
it dispatches what CUDA dispatches, and replays to the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from test_dispatch_parity import HERE, PHASES, ROOT, comparable

CARDS = ["t4", "a100-sxm-80gb", "l4", "h100-sxm"]
KEYS = [128, 256, 500]
Step = dict[str, Any]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Step], dict[str, Step]]:
    """What CUDA dispatches, and what the virtual cards do."""
    folder = tmp_path_factory.mktemp("attention")
    out = []
    for device, cards in (("cuda", []), ("oracle", CARDS)):
        line = [sys.executable, str(HERE / "attention_steps.py"), device, str(folder / device), *cards]
        done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr[-3000:]
        out.append(json.loads((folder / device).read_text()))
    return out[0], out[1]


def check(step: Step, cuda: Step, order: list[list[str]]) -> None:
    """``order``: the open choices that each replay finds."""
    assert step["refused"] is None and cuda["refused"] is None and len(step["phases"]) == PHASES
    assert sum(len(names) for names in step["phases"].values()) > 250
    for phase, names in cuda["phases"].items():
        assert comparable(phase, names) == comparable(phase, step["phases"][phase]), phase
    assert [r["mode"] for r in step["replays"]] == ["op-local", "end-to-end"]
    for r in step["replays"]:
        assert r["ok"] and r["divergence"] is None, r
        assert r["counts"]["mismatch"] == r["counts"]["unmodelled"] == r["counts"]["carried"] == r["reads"] == 0, r
        assert r["counts"]["match"] > 40 and r["outputs"] > 40 and r["choices"] == order, r


def check_refusal(step: Step, cuda: Step, operator: str) -> None:
    """Up to the refused operator, CUDA dispatches the same."""
    for phase, names in step["phases"].items():
        wanted, got = comparable(phase, cuda["phases"][phase]), comparable(phase, names)
        if phase != list(step["phases"])[-1]:
            assert wanted == got, phase
            continue
        assert got[:-1] == wanted[: len(got) - 1] and got[-1] == wanted[len(got) - 1].split(" ")[0], phase
        assert got[-1] == operator


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("card", CARDS)
def test_a_float32_step(card: str, keys: int, steps: tuple[dict[str, Step], dict[str, Step]]) -> None:
    """Memory-efficient attention everywhere; beyond two key tiles the default backward is a race, in an order that the
    replay finds and names."""
    cuda, oracle = steps
    step = oracle[f"{card}/float32/{keys}"]
    assert any("_scaled_dot_product_efficient_attention_backward" in name for name in step["phases"]["backward 0"])
    check(step, cuda[f"float32/efficient/{keys}"], [["dq_order", "in step"]] if keys > 128 else [])


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("card", ["a100-sxm-80gb", "l4", "h100-sxm"])
def test_a_bfloat16_step(card: str, keys: int, steps: tuple[dict[str, Step], dict[str, Step]]) -> None:
    """FlashAttention-2. An H100 tries cuDNN's first, which is closed: refused by name, with the switch that avoids it;
    the deterministic mode, here at 500 keys, avoids it too."""
    cuda, oracle = steps
    step = oracle[f"{card}/bfloat16/{keys}"]
    if card == "h100-sxm" and keys <= 256:
        check_refusal(step, cuda[f"bfloat16/cudnn/{keys}"], "aten._scaled_dot_product_cudnn_attention.default")
        assert "sdpa_kernel(SDPBackend.MATH)" in step["refused"]
        step = oracle[f"{card}/bfloat16/{keys}/switched"]
    assert any("_scaled_dot_product_flash_attention_backward" in name for name in step["phases"]["backward 0"])
    check(step, cuda[f"bfloat16/flash/{keys}"], [])


@pytest.mark.parametrize("keys", KEYS)
def test_a_bfloat16_step_on_a_card_without_bfloat16(
    keys: int, steps: tuple[dict[str, Step], dict[str, Step]]
) -> None:
    """No fused kernel of compute capability 7.5 takes bfloat16: attention's math path, and every product an FMA chain
    of widened factors."""
    cuda, oracle = steps
    step = oracle[f"t4/bfloat16/{keys}"]
    names = [name for phase in step["phases"].values() for name in phase]
    assert not any("_scaled_dot_product" in name for name in names)
    assert sum(name.startswith("aten.addmm.default bfloat16") for name in names) >= 8, "four products of two steps"
    check(step, cuda[f"bfloat16/math/{keys}"], [])
