"""step-oracle lint: what of a step is less exact or less portable than it looks, and what switches it off."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .command import DIFFERENT, SAME, add_command, print_json

if TYPE_CHECKING:
    from step_oracle.lint import Lint


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "lint", "what of a step is less exact or less portable than it looks", run,
                         example="step-oracle lint step.trace")
    parser.add_argument("trace", metavar="TRACE", help="recorded with keep='all', for the shares of elements")
    parser.add_argument("--card", metavar="NAME", help="the card that computed; as recorded, when left out")
    parser.add_argument("--plans", metavar="FILE", help="a plan table of the card; else the one that comes along")


def run(args: argparse.Namespace) -> int:
    from step_oracle.lint import lint

    report = lint(args.trace, args.card, args.plans)
    if args.json:
        print_json(report.to_json())
    else:
        print("\n".join(text_of(report)))
    return DIFFERENT if report.findings else SAME


def text_of(report: Lint) -> list[str]:
    lines = [f"{report.products} matrix products on {report.card}; plan table: {report.plans_from}"]
    if report.plans_from == "none":
        lines.append("without a plan table no split is known: see step-oracle plan fit and plan from-log")
    if report.reduced:
        lines.append(f"{len(report.reduced)} products are reduced in 16 bits; off: {report.reduced[0]['off']}")
    for r in report.reduced:
        what = "{m} x {n} x {k}".format(**r["product"])
        if r["differing"] is None:
            lines.append(f"  op {r['index']} {r['op']} {what}: {r['why_not']}")
            continue
        errors = ", ".join(f"{q} {v:.2%}" for q, v in r["relative"].items())
        lines.append(f"  op {r['index']} {r['op']} {what}: {r['differing']:.1%} of the elements differ from the exact "
                     f"product; relative error: {errors}")
    if report.split_somewhere:
        off = report.split_somewhere[0]["off"]
        lines.append(f"{len(report.split_somewhere)} kinds of product split k on some cards only; off: {off}")
    for s in report.split_somewhere:
        cards = ", ".join(f"{name} {count}" for name, count in s["splits"].items())
        what = "{op} {dtype} {layout} {m} x {n} x {k}".format(**s["product"])
        lines.append(f"  op {s['index']} {what} ({s['times']} times): parts: {cards}")
    for d in report.dropout:
        lines.append(f"op {d['index']} {d['op']}: dropout {d['dropout']:g} keeps {d['kept']:.4f}, not "
                     f"{d['asked']:.4f}: every output carries a factor {d['scale']:.4f}; off: {d['off']}")
    return lines if report.findings else [*lines, "nothing found"]
