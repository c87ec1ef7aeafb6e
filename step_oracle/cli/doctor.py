"""step-oracle doctor: what this machine can do, and what mends what it cannot."""

from __future__ import annotations

import argparse
from typing import Any

from .command import DIFFERENT, SAME, add_command, print_json


def register(subparsers: Any) -> None:
    add_command(subparsers, "doctor", "what this machine can do, and what mends what it cannot", run,
                example="step-oracle doctor")


def run(args: argparse.Namespace) -> int:
    from step_oracle.doctor import examine

    findings = examine()
    broken = [f for f in findings if f.mend]
    if args.json:
        print_json({"ok": not broken, "findings": [vars(f) for f in findings]})
        return DIFFERENT if broken else SAME
    width = max(len(f.name) for f in findings)
    for f in findings:
        print(f"{f.name:{width}s}  {f.value}" + (f"\n{'':{width}s}  mend: {f.mend}" if f.mend else ""))
    print("nothing is missing" if not broken else f"{len(broken)} to mend")
    return DIFFERENT if broken else SAME
