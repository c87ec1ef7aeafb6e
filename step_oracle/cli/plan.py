"""step-oracle plan: which plan a card takes for a matrix product."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from .command import DIFFERENT, SAME, Refused, add_command, print_json, print_table


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
    fit = add_command(parts, "fit", "read the plans of a trace's products off their bytes", run_fit,
                      example="step-oracle plan fit step.trace -o l4-plans.json")
    fit.add_argument("trace", metavar="TRACE", help="recorded with keep='all'")
    fit.add_argument("--op", metavar="INDEX", type=int, help="one product, as `trace ops` numbers it")
    fit.add_argument("--card", help="the card whose adder computed; as recorded, when left out")
    fit.add_argument("-o", "--out", metavar="FILE", help="write what was decided as a plan table")


def run_fit(args: argparse.Namespace) -> int:
    import step_oracle
    from step_oracle import plans

    from .progress import progress_bar

    trace = step_oracle.load(args.trace)
    if args.op is not None:
        found = plans.fit_op(trace, args.op, card=args.card)
        if args.json:
            print_json(found)
        else:
            print(f"op {found['index']} {found['op']}: {verdict(found)}; {found['tried']} candidates tried")
        return SAME if found["matches"] else DIFFERENT
    with progress_bar("products", quiet=args.json) as advance:
        report = plans.fit_trace(trace, card=args.card, progress=advance)
    if report["ops"] and all("error" in o for o in report["ops"]):
        raise Refused(f"no product of {args.trace} can be fitted: {report['ops'][0]['error']}")
    if args.out:
        pathlib.Path(args.out).write_text(report["table"])
    if args.json:
        print_json(report)
    else:
        rows = [[o["index"], o["op"], o.get("error") or verdict(o)] for o in report["ops"]]
        print_table(rows, ["index", "op", "plan"])
        print(f"{report['decided']} kinds of product decided, {report['tied']} tied, {report['none']} without a match")
    return SAME if report["none"] == 0 else DIFFERENT


def verdict(found: dict[str, Any]) -> str:
    if not found["matches"]:
        return f"none; nearest: {found['nearest']}, {found['nearest_equal']:.1%} of the compared elements equal"
    more = len(found["matches"]) - 1
    return str(found["matches"][0]) + (f"; tied with {more} more" if more else "")


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
