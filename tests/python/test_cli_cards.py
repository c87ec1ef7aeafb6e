"""step-oracle cards."""

from __future__ import annotations

import json

import pytest

from step_oracle.cli import main


def test_cards_lists_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cards"]) == 0
    out = capsys.readouterr().out
    assert "h100-pcie" in out and " 114 " in out and "default: h100-sxm" in out


def test_cards_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cards", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["default"] in {card["name"] for card in read["cards"]}
    assert {"name", "product", "sms", "threads_per_sm", "compute_capability", "source"} <= set(read["cards"][0])
