"""Which card stands behind an index, and what torch.oracle says of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import step_oracle


@pytest.fixture(autouse=True)
def two_cards() -> Iterator[None]:
    step_oracle.set_card("h100-sxm")
    step_oracle.set_card("l40s", index=1)
    yield
    torch.oracle.set_device(0)


def test_the_cards_of_the_contract_are_there() -> None:
    names = {card.name for card in step_oracle.cards.cards()}
    contract = "t4 l4 l40 l40s rtx-a6000 rtx-3090 rtx-4090 a100-pcie-40gb a100-sxm-80gb h100-pcie h100-sxm h200 b200"
    assert set(contract.split()) <= names
    assert all(card.source and card.sms > 0 for card in step_oracle.cards.cards())


def test_two_cards_in_one_process() -> None:
    assert torch.oracle.device_count() == 2 and torch.oracle.is_available()
    a = torch.ones(3).to("oracle:1")
    assert a.to("oracle:0").cpu().tolist() == [1.0, 1.0, 1.0]
    assert torch.oracle.get_device_name(0) == "NVIDIA H100 80GB HBM3"
    assert torch.oracle.get_device_name(1) == "NVIDIA L40S"
    with pytest.raises(RuntimeError, match="two devices, oracle:1 and oracle:0"):
        torch.mm(a.view(1, 3), torch.ones(3, 1).to("oracle:0"))
    with pytest.raises(RuntimeError, match="two devices, oracle:1 and cpu"):
        torch.mm(a.view(1, 3), torch.ones(3, 1))


def test_current_device() -> None:
    assert torch.empty(1, device="oracle").device.index == 0
    with torch.oracle.device(1):
        assert torch.oracle.current_device() == 1 and torch.empty(1, device="oracle").device.index == 1
    torch.oracle.set_device("oracle:1")
    assert torch.empty(1, device="oracle").device.index == 1
    assert torch.empty(1, device="oracle:0").device.index == 0
    with pytest.raises(ValueError, match="not among them"):
        torch.empty(1, device="oracle:5")


def test_card_context_restores() -> None:
    with step_oracle.card("t4") as card:
        assert card.sms == 40 and torch.oracle.get_device_capability(0) == (7, 5)
        assert not torch.oracle.is_bf16_supported(including_emulation=False)
    assert step_oracle.get_card(0).name == "h100-sxm"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: step_oracle.set_card("h100"), ValueError, "no card is called 'h100'; the cards are: t4"),
        (lambda: step_oracle.set_card("t4", index=5), ValueError, "index from 0 to 2, not to 5"),
        (lambda: step_oracle.set_card("t4", plans="no/such.json"), FileNotFoundError, "no/such.json"),
    ],
)
def test_errors_name_the_remedy(call: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()  # type: ignore[operator]


def test_memory_is_counted() -> None:
    before = torch.oracle.memory_allocated(0)
    torch.oracle.reset_peak_memory_stats(0)
    a = torch.empty(1000, 1000, device="oracle:0")
    held = torch.oracle.memory_allocated(0) - before
    assert 4_000_000 <= held <= 4_500_000 and a.data_ptr() % 512 == 0
    del a
    assert torch.oracle.memory_allocated(0) == before
    assert torch.oracle.max_memory_allocated(0) == before + held
    assert torch.oracle.memory_reserved(0) >= before
    torch.oracle.empty_cache()
    assert torch.oracle.memory_reserved(0) >= torch.oracle.memory_allocated(0)


def test_streams_and_events_do_nothing() -> None:
    stream, event = torch.Stream(device="oracle"), torch.Event(device="oracle")
    event.record(stream)
    event.synchronize()
    assert event.query() and stream.query()
    torch.oracle.synchronize()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_accelerator() == torch.device("oracle")
