"""Full-precision values that cards printed and that test_published_random.py and gemm/ do not recompute."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import step_oracle

RECORDS: dict[str, dict[str, Any]] = {
    record["id"]: record
    for record in json.loads((Path(__file__).parents[1] / "data/published/values.json").read_text(encoding="utf-8"))[
        "records"
    ]
}
CARDS = ("t4", "l4", "a100-sxm-80gb", "h100-sxm")  # the records name no card: what they show is the same on every one

# Records that this test does not recompute, each with the reason.
LEFT_OUT = {
    "a-linspace-1080ti": "torch 1.5.1: later releases fill the second half of a linspace from its end",
    "a-bf16-logcumsumexp": "logcumsumexp is not modelled",
    "a-cumsum-1e4": "cumsum of a whole float tensor is CUB's look-back scan, whose order is not defined",
    "a-fp16-bmm-digest": "its inputs are attachments of the issue",
    "a-mm-row-drop-a100": "its inputs are attachments of the issue",
    "a-bmm-vs-mm-tf32": "the plans of its products on a card that is not named are unknown",
}
# Records that are recomputed and come out otherwise: what this release gives, and why.
DIFFERENT = {
    "a-pow-scalar-base": (
        [[1.1547819375991821] * 2],
        "printed in 2023; torch 2.13.0's compiled kernel (CUDA 13.0's powf) gives the other neighbour",
    ),
}
RECIPES: dict[str, Callable[[], list[list[float]]]] = {}


def recipe(name: str) -> Callable[[Callable[[], list[list[float]]]], Callable[[], list[list[float]]]]:
    def add(fn: Callable[[], list[list[float]]]) -> Callable[[], list[list[float]]]:
        RECIPES[name] = fn
        return fn

    return add


def ascending_mean(x: torch.Tensor) -> float:
    """The mean of 40 floats as torch 2.9 and before adds them: 32 lanes fold by 1, 2, 4, 8, 16 (2.13: by 16 to 1)."""
    assert x.numel() == 40 and x.dtype == torch.float32
    lanes = x[:32].clone()
    lanes[:8] += x[32:]
    for offset in (1, 2, 4, 8, 16):
        folded = lanes.clone()
        folded[: 32 - offset] += lanes[offset:]
        lanes = folded
    return (lanes[0] * torch.tensor(1 / 40)).item()


def fused(m: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """m(x) with one rounding, as the printed losses have it; `linear` takes the assumed plan and rounds twice"""
    return torch.addcmul(m.bias, x, m.weight)


@recipe("a-linear-l1-sgd")
def line() -> list[list[float]]:
    """200 steps of a line fitted by L1 loss and SGD: every tenth loss of training and test, and the line"""
    torch.manual_seed(42)
    m = torch.nn.Linear(1, 1).to("oracle")
    x = torch.arange(0, 1, 0.02).unsqueeze(1)
    y = 0.7 * x + 0.3
    xt, yt, xs, ys = (t.to("oracle") for t in (x[:40], y[:40], x[40:], y[40:]))
    optimizer, criterion = torch.optim.SGD(m.parameters(), lr=0.01), torch.nn.L1Loss()
    losses: list[list[float]] = [[], []]
    for epoch in range(200):
        guess = fused(m, xt)
        elements, loss = (guess.detach() - yt).abs().cpu().flatten(), criterion(guess, yt)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.inference_mode():
            test = criterion(fused(m, xs), ys)
        if epoch % 10 == 0:
            losses[0].append(ascending_mean(elements))
            losses[1].append(test.item())
    return [*losses, [m.weight.item(), m.bias.item()]]


@recipe("a-pow-scalar-base")
def powers() -> list[list[float]]:
    one = 10000 ** torch.tensor(0.015625, dtype=torch.float32, device="oracle")
    return [[one.item(), (10000 ** (torch.tensor(2.0, device="oracle") / 128)).item()]]


@recipe("a-fp16-sum-72")
def sums() -> list[list[float]]:
    rows = RECORDS["a-fp16-sum-72"]["program"].split("tensor(")[1].split(",dtype")[0]
    x = torch.tensor(json.loads(rows), dtype=torch.half, device="oracle")
    return [[torch.sum(x, dtype=torch.half).item(), torch.sum(x.bfloat16()).item()]]


def same(printed: str, value: float, kind: str) -> bool:
    if kind == "exact":
        return float(printed) == value
    if kind == "decimals":
        return f"{value:.4f}" == printed
    return struct.pack("<f", float(printed)) == struct.pack("<f", value)


def pairs(name: str, outputs: list[list[float]]) -> list[tuple[str, float, str]]:
    lists = zip(RECORDS[name]["printed"], outputs, strict=True)
    return [(t, v, want["digits_kind"]) for want, got in lists for t, v in zip(want["values"], got, strict=True)]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", RECIPES)
def test_record(name: str, card: str) -> None:
    with step_oracle.card(card):
        outputs = RECIPES[name]()
    if name in DIFFERENT:
        assert outputs == DIFFERENT[name][0] and not any(same(*pair) for pair in pairs(name, outputs)), DIFFERENT[name][
            1
        ]
        return
    printed = RECORDS[name]["printed"]
    assert len(outputs) == len(printed)
    for want, got in zip(printed, outputs, strict=True):
        assert len(want["values"]) == len(got)
        wrong = [
            f"{want['what']} {k}: printed {text}, computed {value!r}"
            for k, (text, value) in enumerate(zip(want["values"], got, strict=True))
            if not same(text, value, want["digits_kind"])
        ]
        assert not wrong, "\n".join(wrong)


def test_every_record_is_accounted_for() -> None:
    assert set(RECORDS) == set(RECIPES) | set(LEFT_OUT)
    assert not set(RECIPES) & set(LEFT_OUT)
