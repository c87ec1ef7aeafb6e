"""step-oracle replay: run a trace on the virtual card, and compare every output."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from .command import DIFFERENT, SAME, Refused, add_command, print_json

if TYPE_CHECKING:
    from step_oracle.replay import ReplayReport


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "replay", "run a trace on the virtual card and compare every output", run,
                         example="step-oracle replay step.trace --mode end-to-end")
    parser.add_argument("trace", metavar="TRACE")
    parser.add_argument("--mode", choices=["op-local", "end-to-end"], default="op-local",
                        help="op-local (default): every op gets the recorded inputs; end-to-end: its own")
    parser.add_argument("--card", metavar="NAME", help="another card than the trace's (see: step-oracle cards)")
    parser.add_argument("--plans", metavar="FILE", help="a plan table of the card, or: pinned (docs/plan-table.md)")
    parser.add_argument("--fit-plans", action="store_true",
                        help="search for the plan of a matrix product whose bytes are not the recorded ones")
    parser.add_argument("--save-plans", metavar="FILE", help="write what --fit-plans found as a plan table")
    parser.add_argument("--choices", metavar="FILE",
                        help="what kernels left open, taken and not searched for (docs/recipe-format.md)")
    parser.add_argument("--save-choices", metavar="FILE", help="write the choices that ops took")
    parser.add_argument("--ties", action="store_true",
                        help="try every variant of an open choice, and list those that the bytes do not tell apart")
    parser.add_argument("--strict", action="store_true",
                        help="exit 1 as well where a race's result was carried: it is not verified")
    parser.add_argument("--all", action="store_true", help="print every mismatch, not only the first")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    import step_oracle

    if args.save_plans and not args.fit_plans:
        raise Refused("--save-plans writes what --fit-plans finds; give both")
    for path in (args.save_plans, args.save_choices):
        if path and os.path.realpath(path) == os.path.realpath(args.trace):
            raise Refused(f"{path} is the trace, and would be written over: give another name")

    from .progress import progress_bar

    with progress_bar("replay", quiet=args.quiet or args.json) as advance:
        report = step_oracle.replay(args.trace, mode=args.mode, card=args.card, plans=args.plans,
                                    fit_plans=args.fit_plans, choices=args.choices, ties=args.ties, progress=advance)
    if args.save_plans and report.plan_table:
        pathlib.Path(args.save_plans).write_text(report.plan_table)
    elif args.save_plans:
        why = ("what differs is no product, or no known plan gives it" if report.divergence else
               "every product has the recorded bytes")
        print(f"step-oracle: no plan was fitted ({why}): {args.save_plans} is not written", file=sys.stderr)
    if args.save_choices:
        save_choices(report, args.save_choices)
    if args.json:
        print_json(report.to_json())
    else:
        describe(report, everything=args.all)
    return SAME if report.ok and not (args.strict and report.counts["carried"]) else DIFFERENT


def save_choices(report: ReplayReport, path: str) -> None:
    from step_oracle.choices import dump, taken

    if report.choices:
        pathlib.Path(path).write_text(dump(taken(report.choices)))
    else:
        print(f"step-oracle: no op took an open choice: {path} is not written", file=sys.stderr)


def describe_choices(report: ReplayReport) -> None:
    def short(text: str) -> str:
        return f"'{text}'" if len(text) <= 60 else f"'{text[:57]}...'"

    for c in report.choices:
        how = "given" if c["given"] else f"found by the recorded bytes, {c['tried']} tried"
        print(f"choice: op {c['index']} {c['op']}, call {c['call']}: {c['name']} {short(c['value'])} ({how})")
    for t in report.ties:
        print(f"tie: op {t['index']} {t['op']}, {t['name']} of {t['part']}: {', '.join(map(short, t['variants']))} "
              "give the same bytes")
    if report.tied > len(report.ties):
        print(f"ties: {report.tied} in all")


def describe(report: ReplayReport, everything: bool = False) -> None:
    from step_oracle.plans import assumed_notice

    c = report.counts
    found = len({n["index"] for n in report.choices if not n["given"]})
    by_choice = f" ({found} by a choice)" if found else ""
    print(f"replay ({report.mode}) on {report.card}: {c['match']} match{by_choice}, {c['mismatch']} mismatch, "
          f"{c['unmodelled']} unmodelled, {c['carried']} carried; {report.outputs} outputs compared in "
          f"{report.seconds:.1f} s")
    print(f"read from the recording: {report.declared_inputs} declared inputs, {report.reads_from_recording} others")
    if notice := assumed_notice(report.products):
        print(f"plans: {notice}")
    for f in report.fitted:
        print(f"plan of {f['product']}: {f['plan']} (op {f['index']}, candidate {f['tried']})")
    describe_choices(report)
    if report.divergence:
        print(f"first divergence: {report.divergence}")
    for d in report.mismatches[1:] if everything else []:
        print(f"also: {d}")
    for title, rows in (("unmodelled", report.unmodelled), ("carried", report.carried)):
        counted: dict[tuple[str, str], list[int]] = {}
        for row in rows:
            counted.setdefault((row["op"], row["reason"]), []).append(row["index"])
        for (op, reason), indices in counted.items():
            print(f"{title}: {len(indices)} x {op} (first: op {indices[0]}): {reason}")
    but = f" but the {c['carried']} carried" if c["carried"] else ""
    print("verdict: " + (f"every op{but} has the recorded bytes" if report.ok else "not verified"))
