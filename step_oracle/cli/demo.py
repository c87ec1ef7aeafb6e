"""step-oracle demo: the main job on one page, in a few minutes."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

from .command import DIFFERENT, SAME, add_command, print_json, print_table


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "demo", "train, record, replay, break and move a small GPT", run,
                         example="step-oracle demo --steps 20 --card h100-sxm --other t4")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="steps to train; the last is recorded")
    parser.add_argument("--card", default="h100-sxm", metavar="NAME")
    parser.add_argument("--other", default="t4", metavar="NAME", help="the second card")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("step-oracle-demo"), metavar="FOLDER",
                        help="where the traces go")


def run(args: argparse.Namespace) -> int:
    from step_oracle.cards import cards

    known = {card.name for card in cards()}
    for name in (args.card, args.other):
        if name not in known:
            raise ValueError(f"no card is called '{name}'; see: step-oracle cards")
    if args.card == args.other:
        raise ValueError(f"--card and --other are both {args.card}; the last stage moves the step to another card")
    if args.steps < 1:
        raise ValueError(f"--steps is {args.steps}; give 1 or more")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {args.out} cannot be made: {error.strerror}; give another folder") from error
    begin = time.perf_counter()
    demo = Demo(args)
    rows = demo.run()
    ok = all(row["ok"] for row in rows)
    if args.json:
        print_json({"ok": ok, "seconds": time.perf_counter() - begin, "stages": rows})
    else:
        print()
        print_table([[r["stage"], "yes" if r["ok"] else "NO", round(r["seconds"], 1)] for r in rows],
                    ["stage", "as expected", "seconds"])
        print(f"\n{'All of it as expected' if ok else 'NOT as expected'}, in {time.perf_counter() - begin:.0f} s. "
              f"The traces are in {args.out}/; try: step-oracle trace ops {args.out}/step.trace")
    return SAME if ok else DIFFERENT


class Demo:
    """The stages in order; each adds a row to the summary."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows: list[dict[str, Any]] = []
        self.step, self.broken, self.moved = (args.out / f"{n}.trace" for n in ("step", "fault", args.other))

    def run(self) -> list[dict[str, Any]]:
        self.stage("train", self.train)
        self.stage("replay, op-local", lambda: self.replay(self.step, "op-local", expect_ok=True))
        self.stage("replay, end to end", lambda: self.replay(self.step, "end-to-end", expect_ok=True))
        self.stage("a planted bit", self.plant)
        self.stage(f"the same step on {self.args.other}", self.move)
        return self.rows

    def stage(self, name: str, work: Any) -> None:
        if not self.args.json:
            print(f"* {name} ...", flush=True)
        begin = time.perf_counter()
        ok, result = work()
        if not self.args.json:
            print(f"  {result}", flush=True)
        self.rows.append({"stage": name, "ok": ok, "result": result, "seconds": time.perf_counter() - begin})

    def train_and_record(self, path: pathlib.Path, title: str, fault: bool = False, last_on: str = "") -> list[float]:
        """args.steps steps from the seed; the last one is recorded, on another card where last_on names it."""
        import contextlib

        import step_oracle
        from step_oracle.demo import Training, faulty

        from .progress import progress_bar

        losses: list[float] = []
        with step_oracle.card(self.args.card), progress_bar(title, quiet=self.args.json) as advance:
            training = Training()

            def seen(i: int, loss: float) -> None:
                losses.append(loss)
                advance(i + 1, self.args.steps)

            training.run(self.args.steps - 1, seen)
            x, y = training.batch()
            target = training.model.get_submodule("blocks.1.act")
            with (faulty(target, "aten::gelu", element=4321, bit=17) if fault else contextlib.nullcontext(),
                  step_oracle.card(last_on or self.args.card),
                  step_oracle.record(path, keep="all", model=training.model, optimizer=training.optimizer)):
                loss = training.step(x, y)
            losses.append(float(loss))
        return losses

    def train(self) -> tuple[bool, str]:
        losses = self.train_and_record(self.step, "train")
        size = self.step.stat().st_size / 1e6
        fell = losses[-1] < losses[0] or len(losses) < 3
        return fell, (f"{self.args.steps} steps on {self.args.card}, loss {losses[0]:.4f} -> {losses[-1]:.4f}; "
                      f"the last step is in {self.step} ({size:.0f} MB)")

    def command(self, *words: str) -> tuple[int, dict[str, Any]]:
        """A subcommand in a fresh process, as JSON."""
        line = [sys.executable, "-m", "step_oracle.cli", *words, "--json"]
        out = subprocess.run(line, capture_output=True, text=True, check=False)
        if out.returncode not in (SAME, DIFFERENT):
            raise ValueError(f"step-oracle {' '.join(words)}: {out.stderr.strip()}")
        return out.returncode, json.loads(out.stdout)

    def replay(self, path: pathlib.Path, mode: str, expect_ok: bool) -> tuple[bool, str]:
        _, report = self.command("replay", str(path), "--mode", mode)
        c = report["counts"]
        text = (f"{c['match']} ops match, {c['mismatch']} mismatch, {c['unmodelled']} unmodelled, "
                f"{c['carried']} carried; {report['reads_from_recording']} reads of answers")
        return report["ok"] is expect_ok, text

    def plant(self) -> tuple[bool, str]:
        self.train_and_record(self.broken, "train, with a fault", fault=True)
        _, report = self.command("replay", str(self.broken), "--mode", "op-local")
        d = report["divergence"]
        if d is None:
            return False, "the flipped bit was not found"
        found = (report["counts"]["mismatch"] == 1 and d["op"].startswith("aten.gelu") and d["module"] == "blocks.1.act"
                 and d["cause"] == "one bit")
        return found, (f"op {d['index']} {d['op']} in {d['module']} at {tuple(d['coordinates'])}: "
                       f"{d['expected']} recorded, {d['actual']} computed ({d['cause']})")

    def move(self) -> tuple[bool, str]:
        self.train_and_record(self.moved, f"train, last step on {self.args.other}", last_on=self.args.other)
        code, report = self.command("diff", str(self.step), str(self.moved))
        first = report["first"]
        if first is None:
            return code == SAME, "both cards give the same bytes"
        return code == DIFFERENT, (f"they part at op {first['index']} {first['op']} in {first['module'] or '-'} "
                                   f"({first['kind']}); root {len(report['root'])}, knock-on {report['knock_on']}")
