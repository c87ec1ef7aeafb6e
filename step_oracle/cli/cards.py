"""step-oracle cards: the virtual cards and what of them enters the bytes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from .command import SAME, add_command, print_json


def register(subparsers: Any) -> None:
    add_command(subparsers, "cards", "the virtual cards", run, example="step-oracle cards --json")


def run(args: argparse.Namespace) -> int:
    from step_oracle.cards import DEFAULT_CARD, cards

    rows = cards()
    if args.json:
        print_json({"default": DEFAULT_CARD, "cards": [asdict(card) for card in rows]})
        return SAME
    print(f"{'name':17s} {'product':26s} {'sm':>4s} {'SMs':>4s} {'threads/SM':>10s}  SMs from")
    for card in rows:
        sm = card.compute_capability.replace(".", "")
        print(f"{card.name:17s} {card.product:26s} {sm:>4s} {card.sms:4d} {card.threads_per_sm:10d}  {card.source}")
    print(f"default: {DEFAULT_CARD}; choose with step_oracle.set_card(name)")
    return SAME
