"""step-oracle cards: the virtual cards and what of them enters the bytes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from .command import SAME, add_command, print_json, print_table

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "host")


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "cards", "the virtual cards", run, example="step-oracle cards --evidence")
    parser.add_argument("--evidence", action="store_true",
                        help="how each result is known: family by type and compute capability, with its grade")


def run(args: argparse.Namespace) -> int:
    from step_oracle.cards import DEFAULT_CARD, cards

    if args.evidence:
        return evidence(args.json)
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


def evidence(as_json: bool) -> int:
    """step_oracle/data/evidence.json, the source of docs/evidence.md, as a grid."""
    rows = json.loads((resources.files("step_oracle.data") / "evidence.json").read_text(encoding="utf-8"))
    if as_json:
        print_json({"evidence": rows})
        return SAME
    shown = [c for c in CAPABILITIES if any(c in row["cards"] for row in rows)]
    names = [c if c == "host" else f"sm_{c.replace('.', '')}" for c in shown]
    cells = [[row["family"], row["dtype"], *(row["grade"] if c in row["cards"] else "-" for c in shown), row["what"]]
             for row in rows]
    print_table(cells, ["family", "type", *names, "what"])
    print("the grades, strongest first: card, vendor code, published, peer, source, fit; witnesses: docs/evidence.md")
    return SAME
