"""Which attention kernel a card would choose, and the refusals of those that are not modelled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle

MATH, FLASH, EFFICIENT, CUDNN = (int(b.value) for b in (
    SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION
))  # fmt: skip


def choice(card: str, dtype: torch.dtype, head: int = 16, grad: bool = False, keys: int = 8, **options: object) -> int:
    with step_oracle.card(card):
        q = torch.zeros(2, 4, 8, head, dtype=dtype).to("oracle").requires_grad_(grad)
        k, v = (torch.zeros(2, 4, keys, head, dtype=dtype).to("oracle").requires_grad_(grad) for _ in range(2))
        mask = options.pop("mask", None)
        mask = torch.zeros(8, keys, dtype=dtype).to("oracle") if mask else None
        return torch._fused_sdp_choice(q, k, v, mask, **{"dropout_p": 0.0, "is_causal": False, **options})


@pytest.fixture(autouse=True)
def card() -> None:
    step_oracle.set_card("h100-sxm")


@pytest.mark.parametrize("card", ["t4", "a100-sxm-80gb", "l40s", "h100-pcie", "b200"])
def test_float32_is_efficient_everywhere(card: str) -> None:
    assert choice(card, torch.float32) == EFFICIENT
    assert choice(card, torch.float32, mask=True) == EFFICIENT
    assert choice(card, torch.float32, is_causal=True, dropout_p=0.1) == EFFICIENT
    assert choice(card, torch.float64) == MATH


def test_alignment_of_the_head_size() -> None:
    assert choice("l40s", torch.float32, head=6) == MATH  # sm_80 and later load four floats at once
    assert choice("t4", torch.float32, head=6) == EFFICIENT
    assert choice("t4", torch.float16, head=12) == MATH
    assert choice("l40s", torch.bfloat16, head=12) == FLASH  # padded in the composite


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    assert choice("a100-sxm-80gb", dtype) == FLASH
    assert choice("h100-pcie", dtype) == CUDNN
    assert choice("l40s", dtype, mask=True) == EFFICIENT
    assert choice("l40s", dtype, is_causal=True, keys=9) == EFFICIENT
    assert choice("t4", dtype) == (EFFICIENT if dtype is torch.float16 else MATH)
    assert choice("l40s", dtype, head=256) == FLASH
    assert choice("l40s", dtype, head=208) == FLASH and choice("l40s", dtype, head=208, grad=True) == EFFICIENT
    assert choice("a100-sxm-80gb", dtype, head=208, grad=True) == FLASH


def test_switches() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert choice("h100-sxm", torch.bfloat16) == MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        assert choice("h100-sxm", torch.bfloat16) == EFFICIENT
        assert choice("h100-sxm", torch.float64) == MATH
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert choice("h100-sxm", torch.bfloat16) == MATH
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        choice("h100-sxm", torch.float32)


@pytest.mark.parametrize(
    ("card", "dtype", "name"),
    [
        ("h100-sxm", torch.bfloat16, "cudnn"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_fused_kernel_is_refused_with_the_switch(card: str, dtype: torch.dtype, name: str, grad: bool) -> None:
    q = torch.zeros(1, 2, 8, 16, dtype=dtype).to("oracle").requires_grad_(grad)
    message = rf"{card} would run 'aten::_scaled_dot_product_{name}_attention'.*sdpa_kernel\(SDPBackend.MATH\)"
    with step_oracle.card(card), pytest.raises(NotImplementedError, match=message):
        F.scaled_dot_product_attention(q, q, q)


def test_rows_that_tensor_cores_cannot_load_are_refused_as_on_a_card() -> None:
    rows = torch.zeros(1, 1, 8, 11).to("oracle")[..., :8]
    whole = torch.zeros(1, 1, 8, 8).to("oracle")
    for q, k, v, name in ((rows, whole, whole, "query"), (whole, rows, whole, "key"), (whole, whole, rows, "value")):
        with step_oracle.card("a100-sxm-80gb"), pytest.raises(RuntimeError, match=f"{name} is not correctly aligned"):
            F.scaled_dot_product_attention(q, k, v)
    with step_oracle.card("t4"):  # no tensor cores for float32
        F.scaled_dot_product_attention(torch.zeros(1, 1, 8, 11).to("oracle")[..., :8], *[whole.cpu().to("oracle")] * 2)
