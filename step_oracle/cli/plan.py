"""step-oracle plan: which plan a card takes for a matrix product."""

from __future__ import annotations

import argparse
import json
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
    fit.add_argument("trace", metavar="TRACE", help="recorded with keep='all'; or 'state': then digests decide, for "
                     "products whose factors the step did not compute (replay --fit-plans does the others)")
    fit.add_argument("--op", metavar="INDEX", type=int, help="one product, as `trace ops` numbers it")
    fit.add_argument("--card", help="the card whose adder computed; as recorded, when left out")
    fit.add_argument("--all", action="store_true", help="all known plans, some hundreds; else the likely ones")
    fit.add_argument("--tile", type=tile, metavar="ROWSxCOLUMNS", help="compare this corner of the results only")
    fit.add_argument("-o", "--out", metavar="FILE", help="write what was decided as a plan table")

    family = add_command(parts, "family", "the pinned arm: a program's products, and what computes each in one pass",
                         run_family, example="step-oracle plan family step.trace -o pinned.json")
    family.add_argument("trace", metavar="TRACE")
    family.add_argument("--card", help="as recorded, when left out")
    family.add_argument("-o", "--out", metavar="FILE", help="write it as a plan table")
    log = add_command(parts, "from-log", "read plans from cuBLASLt's own log", run_from_log,
                      example="CUBLASLT_LOG_LEVEL=2 CUBLASLT_LOG_FILE=lt.log python train.py\n"
                              "  step-oracle plan from-log lt.log --card l40 -o l40-plans.json")
    log.add_argument("log", metavar="FILE", help="written with CUBLASLT_LOG_LEVEL=2 (or 5) and CUBLASLT_LOG_FILE")
    log.add_argument("--card", required=True, help="the card that the program ran on")
    log.add_argument("--library", default="unknown", help="the cuBLASLt that wrote it, for the table")
    log.add_argument("--also", metavar="TABLE", help="a plan table of the card that the rows are added to")
    log.add_argument("-o", "--out", metavar="FILE", help="write what is decided as a plan table")


    query = add_command(parts, "query", "ask cuBLASLt's heuristic on this machine's card about one product", run_query,
                        example="step-oracle plan query --card h100-sxm --m 2048 --n 768 --k 3072 --layout nt --bias")
    for size in "mnk":
        query.add_argument(f"--{size}", type=int, required=True)
    query.add_argument("--card", required=True, help="this machine's card")
    query.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    query.add_argument("--layout", choices=["nn", "nt", "tn", "tt"], default="nn")
    query.add_argument("--bias", action="store_true")
    query.add_argument("--no-reduced-precision", action="store_true", help="as torch asks with its switch off")


def tile(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"{text} is no tile: give rows and columns, as 32x64")
    return int(rows), int(columns)


def run_query(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from step_oracle import cards, plan_facts, plan_query

    card = cards.find_card(args.card)
    answer = plan_query.query(args.m, args.n, args.k, dtype=args.dtype, layout=args.layout, bias=args.bias,
                              reduced_precision=not args.no_reduced_precision)
    known, reason = [], ""
    try:
        known = plan_facts.plans_of(answer.algorithm, dtype=args.dtype, m=args.m, n=args.n, k=args.k, bias=args.bias,
                                    compute_capability=card.compute_capability, sms=card.sms,
                                    threads_per_sm=card.threads_per_sm, layout=args.layout)
    except plan_facts.NotKnown as error:
        reason = str(error)
    if args.json:
        print_json({"library": answer.version, "algorithm": asdict(answer.algorithm), "plans": [p.plan for p in known],
                    "reason": reason})
    else:
        print(f"cuBLASLt {answer.version}: {answer.algorithm}")
        for p in known:
            print(f"  {json.dumps(p.plan)} ({p.known})")
        if reason:
            print(f"  {reason}")
    return SAME if known else DIFFERENT


def run_family(args: argparse.Namespace) -> int:
    import step_oracle
    from step_oracle import cards, plans

    found = plans.family(step_oracle.load(args.trace), cards.find_card(args.card).name if args.card else None)
    if args.out:
        pathlib.Path(args.out).write_text(found["table"])
    if args.json:
        print_json(found)
        return SAME
    print(f"{found['card']}: {len(found['kinds'])} kinds of product; pinned to these configurations, a step is "
          "replayed without a plan table (--plans pinned)")
    rows = []
    for kind in found["kinds"]:
        key, how = kind["row"], kind["configurations"]
        what = " ".join(str(key[name]) for name in ("op", "dtype", "layout", "m", "n", "k"))
        numbers = ", ".join(map(str, how["algorithms"]))
        rows.append([what, kind["times"], f"algorithms {numbers} with numSplitsK 1, without {how['without']}",
                     how["source"]])
    print_table(rows, ["op, type, layout, m, n, k", "times", "computed as the class by", "source"])
    return SAME


def run_from_log(args: argparse.Namespace) -> int:
    from step_oracle import cards, plan_log, plan_table

    card = cards.find_card(args.card)
    also = plan_table.read(args.also) if args.also else None
    log = plan_log.read(args.log, card, args.library, also)
    if args.out:
        pathlib.Path(args.out).write_text(log.table)
    if args.json:
        print_json(log.to_json())
        return DIFFERENT if log.unknown else SAME
    print(f"{args.log}: {log.calls} products of {card.name}; {len(log.rows)} kinds decided, {len(log.open)} open, "
          f"{len(log.unknown)} unknown")
    for row in plans_in_words(log.table):
        print(f"  {row['product']}: {row['plan']} ({row['source']})")
    for kind in log.open:
        what = " ".join(f"{name} {kind[name]}" for name in ("op", "dtype", "layout", "m", "n", "k"))
        print(f"  open: {what}: one of {len(kind['plans'])} plans: {kind['reason']}; "
              "decide it with step-oracle plan fit")
    for kind in log.unknown:
        print(f"  unknown: line {kind['line']}, {kind['product']}: {kind['reason']}")
    return DIFFERENT if log.unknown else SAME


def plans_in_words(table: str) -> list[dict[str, Any]]:
    from step_oracle import device

    rows: list[dict[str, Any]] = device.extension().plan_table(table)["rows"]
    return rows


def run_fit(args: argparse.Namespace) -> int:
    import step_oracle
    from step_oracle import plans

    from .progress import progress_bar

    trace = step_oracle.load(args.trace)
    how = {"card": args.card, "everything": args.all, "tile": args.tile}
    if args.op is not None:
        with progress_bar("plans", quiet=args.json) as advance:
            found = plans.fit_op(trace, args.op, **how, progress=lambda done, all_: advance(done, all_) is None)
        if args.json:
            print_json(found)
        else:
            print(f"op {found['index']} {found['op']}: {verdict(found, args.all)}; {found['tried']} candidates tried, "
                  f"by {found['compared']}")
        return SAME if found["matches"] else DIFFERENT
    with progress_bar("products", quiet=args.json) as advance:
        report = plans.fit_trace(trace, **how, progress=advance)
    if report["ops"] and all("error" in o for o in report["ops"]):
        raise Refused(f"no product of {args.trace} can be fitted: {report['ops'][0]['error']}")
    if args.out:
        pathlib.Path(args.out).write_text(report["table"])
    if args.json:
        print_json(report)
    else:
        rows = [[o["index"], o["op"], o.get("error") or verdict(o, args.all)] for o in report["ops"]]
        print_table(rows, ["index", "op", "plan"])
        print(f"{report['decided']} kinds of product decided, {report['tied']} tied, {report['none']} without a match")
    return SAME if report["none"] == 0 else DIFFERENT


def verdict(found: dict[str, Any], everything: bool) -> str:
    if not found["matches"]:
        rest = "" if everything else " (--all tries the rest)"
        none = f"none of {found['tried']}{rest}"
        if not found["nearest"]:
            return none
        at = tuple(found["nearest_at"])
        return (f"{none}; nearest: {found['nearest']}, {found['nearest_equal']:.1%} of the compared elements equal, "
                f"the first other one at {at}")
    more = len(found["matches"]) - 1
    return str(found["matches"][0]) + (f"; tied with {more} more" if more else "")


def run_show(args: argparse.Namespace) -> int:
    from step_oracle import cards, plans

    found = cards.find_cards(args.card)
    if args.plans:
        found = [cards.find_card(args.card)]
    tables = [plans.show(card.name, args.plans) for card in found]
    if args.json:
        print_json(tables[0] if len(tables) == 1 else {"card": args.card, "tables": tables})
        return SAME
    for table in tables:
        print_plan_table(table)
    return SAME


def print_plan_table(table: dict[str, Any]) -> None:
    rows = [[r["product"], r["plan"], r["source"]] for r in table["rows"] + table["defaults"]]
    print(f"{table['card']}{', ' + table['library'] if table['library'] else ''}: {len(table['rows'])} rows")
    print_table(rows, ["product", "plan", "source"])
