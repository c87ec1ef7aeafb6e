"""step-oracle plan: which plan a card takes for a matrix product."""

from __future__ import annotations

import argparse
from typing import Any

from .command import SAME, add_command, print_json, print_table


def register(subparsers: Any) -> None:
    summary = "plan tables of matrix products"
    parser = subparsers.add_parser("plan", help=summary, description=summary + ".",
                                   epilog="example:\n  step-oracle plan show --card rtx-a6000",
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True, parser_class=type(parser))
    show = add_command(parts, "show", "the rows of a card's plan table, with their sources", run_show,
                       example="step-oracle plan show --card rtx-a6000 --plans my-table.json")
    show.add_argument("--card", required=True, help="as `step-oracle cards` lists it")
    show.add_argument("--plans", metavar="FILE", help="a plan table; without one, the table that comes along")


def run_show(args: argparse.Namespace) -> int:
    from step_oracle import cards, plans

    if args.card not in (known := [c.name for c in cards.cards()]):
        raise ValueError(f"there is no card '{args.card}'; give one of: {', '.join(known)}")
    table = plans.show(args.card, args.plans)
    if args.json:
        print_json(table)
        return SAME
    if not table["rows"]:
        print(f"{args.card}: no rows. Every product is a single pass: assumed (docs/limits.md)")
        return SAME
    print(f"{table['card']}, {table['library']}; a product without a row is a single pass: assumed")
    print_table([[r["product"], r["plan"], r["source"]] for r in table["rows"]], ["product", "plan", "source"])
    return SAME
