"""What every subcommand shares: one-line refusals, --json, --debug, an example in its help."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

SAME, DIFFERENT, REFUSED = 0, 1, 2  # exit codes: equal or verified; different or failed; refused or bad input


class Refused(Exception):
    """What was asked cannot be done: one sentence that says what, why and what to do."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"step-oracle: {one_line(message)}. See: {self.prog} --help\n")


def one_line(text: object) -> str:
    if isinstance(text, OSError) and text.strerror and text.filename is not None:
        text = f"{os.fsdecode(text.filename) or repr('')}: {text.strerror}"
    return " ".join(str(text).split())


def add_command(subparsers: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int], *, example: str,
                reports: bool = True) -> argparse.ArgumentParser:
    """A subcommand `name`. `run(args)` returns an exit code; `reports` adds --json, which `run` then honours."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, description=summary, epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    if reports:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--debug", action="store_true", help="on an error, print the Python traceback")
    parser.set_defaults(run=run)
    return parser


def json_ready(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(v) for v in value]
    return value


def print_json(value: Any) -> None:
    json.dump(json_ready(value), sys.stdout, indent=1)
    print()


def print_table(rows: list[list[Any]], header: list[str]) -> None:
    """Columns as wide as they need; numbers to the right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(header[i]), *(len(row[i]) for row in cells), 0) if cells else len(header[i])
              for i in range(len(header))]
    right = [all(isinstance(row[i], (int, float)) for row in rows) and bool(rows) for i in range(len(header))]

    def line(row: list[str]) -> str:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    print(line(header))
    for row in cells:
        print(line(row))
