"""step-oracle diff: where two traces part, and why."""

from __future__ import annotations

import argparse
from typing import Any

from .command import DIFFERENT, SAME, add_command, print_json

MOST_ROOTS = 10  # printed; --json has all


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "diff", "find where two traces part, and why", run,
                         example="step-oracle diff a100.trace h100.trace")
    parser.add_argument("a", metavar="A", help="a trace")
    parser.add_argument("b", metavar="B", help="the trace to compare with it")


def run(args: argparse.Namespace) -> int:
    import step_oracle

    report = step_oracle.diff(args.a, args.b)
    if args.json:
        print_json(report)
    else:
        print("\n".join(text_of(report)))
    return SAME if report.equal else DIFFERENT


def place(d: Any) -> str:
    if d.op is None:
        return d.input or d.output or "program"
    where = "op " + (str(d.index) if d.index is not None else f"{d.index_b} of b")
    if d.index is not None and d.index_b is not None and d.index != d.index_b:
        where += f" ({d.index_b} in b)"
    part = d.output or d.input
    return f"{where} {d.op}" + (f" in {d.module}" if d.module else "") + (f", {part}" if part else "")


def element(d: Any) -> str:
    if d.coordinates is None:
        return ""
    ulps = "" if d.ulps is None else f" ({d.ulps} ulps)"
    return f"    at {d.coordinates}: {d.expected} in a, {d.actual} in b{ulps}"


def state_line(what: str, s: Any) -> list[str]:
    if not s.compared:
        return []
    lines = [f"{what}: {s.equal} of {s.compared} named values equal"]
    return lines + [f"    {name}: {text}" for name, text in s.different[:5]]


def text_of(r: Any) -> list[str]:
    lines = ["equal" if r.equal else "different"]
    lines += [f"  {d.field}: {d.a} in a, {d.b} in b" for d in r.environment]
    lines += state_line("before the step", r.start)
    if r.first is not None:
        lines.append(f"first difference: {place(r.first)}")
        lines.append(f"    {r.first.cause}")
        lines += [e for e in [element(r.first)] if e]
    others = [d for d in r.root if d != r.first]
    if others:
        lines.append(f"other roots: {len(others)}")
        for d in others[:MOST_ROOTS]:
            lines += [f"  {place(d)}", f"    {d.cause}"]
        if len(others) > MOST_ROOTS:
            lines.append(f"  ... {len(others) - MOST_ROOTS} more (--json has them)")
    if not r.equal:
        lines.append(f"knock-on: {r.knock_on} ops; equal: {r.equal_ops} of {r.aligned} aligned ops")
    for side in "ab":
        count = r[f"only_{side}_count"]
        if count:
            names = ", ".join(f"{n.index} {n.op}" for n in r[f"only_{side}"][:5])
            lines.append(f"only in {side}: {count} ops: {names}{', ...' if count > 5 else ''}")
    lines += state_line("after the step", r.end)
    lines += [f"layout: op {n.index} {n.op}: {n.text}" for n in r.layouts[:5]]
    lines += [f"unlike argument: op {n.index} {n.op}: {n.text}" for n in r.arguments[:5]]
    for side in "ab":
        lines += [f"never written ({side}): op {n.index}: {n.text}" for n in r[f"never_written_{side}"][:5]]
    return lines + r.not_complete
