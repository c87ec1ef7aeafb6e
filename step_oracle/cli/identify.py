"""step-oracle identify: which virtual cards print the numbers that a real card printed."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
from concurrent import futures
from typing import Any

from .command import DIFFERENT, SAME, Refused, add_command, one_line, print_json, print_table
from .progress import progress_bar

NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b")
FIRST_SEED = 67280421310721  # torch's, before any manual_seed [src c10/core/GeneratorImpl.h default_rng_seed_val]


def register(subparsers: Any) -> None:
    parser = add_command(subparsers, "identify", "the cards that would print given numbers", run,
                         example="step-oracle identify program.py printed.txt")
    parser.add_argument("program", help="a Python program; its \"cuda\" is the virtual card")
    parser.add_argument("values", help="what a card printed, as text; - for standard input")
    parser.add_argument("--card", action="append", metavar="NAME", help="try only this card (may be repeated)")


def numbers(text: str) -> list[str]:
    """The numbers in a text as printed, but for a final point: `tensor([1., 0.5000])` is 1 and 0.5000."""
    return [token[:-1] if token.endswith(".") else token for token in NUMBER.findall(text)]


def on_oracle(source: str) -> str:
    source = re.sub(r"""(["'])cuda(:\d+)?\1""", r"\1oracle\2\1", source)
    source = re.sub(r"\.cuda\(\)", '.to("oracle")', source)
    return re.sub(r"\btorch\.cuda\.(manual_seed(?:_all)?)\(", "torch.manual_seed(", source)


# One card's run, in a process of its own: nothing that a program sets (print options, default types) reaches the next.
RUNNER = """
import sys
import torch, step_oracle
card, path = sys.argv[1:3]
sys.argv[1:] = []
step_oracle.set_card(card)
torch.manual_seed(FIRST_SEED)
exec(compile(sys.stdin.read(), path, "exec"), {"__name__": "__main__", "__file__": path})
""".replace("FIRST_SEED", str(FIRST_SEED))


def printed(source: str, path: str, card: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", RUNNER, card, path], input=source, capture_output=True, text=True,
                          env={**os.environ, "STEP_ORACLE_ASSUMED": "quiet"}, check=False)
    if done.returncode != 0:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise Refused(f"{path} failed on {card}: {one_line(last)}")
    return numbers(done.stdout)


def run(args: argparse.Namespace) -> int:
    from step_oracle.cards import cards

    source = pathlib.Path(args.program).read_text(encoding="utf-8")
    program = on_oracle(source)
    try:
        compile(program, args.program, "exec")
    except SyntaxError as error:
        raise Refused(f"{args.program}, line {error.lineno}: {error.msg}") from error
    wanted = numbers(sys.stdin.read() if args.values == "-" else pathlib.Path(args.values).read_text(encoding="utf-8"))
    if not wanted:
        raise Refused(f"no numbers in {args.values}: give the text that the card printed")
    known = {card.name: card for card in cards()}
    for name in args.card or ():
        if name not in known:
            raise Refused(f"no card is called '{name}'; the cards are {', '.join(known)}")

    rows: list[dict[str, Any]] = []
    chosen = [known[name] for name in args.card] if args.card else list(known.values())
    alike: dict[tuple[Any, ...], str] = {}  # cards that are alike in what enters the bytes run once
    for card in chosen:
        alike.setdefault((card.sms, card.threads_per_sm, card.compute_capability), card.name)
    with progress_bar("identify", quiet=args.json) as advance, futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(printed, program, args.program, name): name for name in alike.values()}
        results = {}
        for done in futures.as_completed(running):
            results[running[done]] = done.result()
            advance(len(results), len(running))
    for card in chosen:
        got = results[alike[card.sms, card.threads_per_sm, card.compute_capability]]
        if len(got) != len(wanted):
            raise Refused(f"{args.program} prints {len(got)} numbers, {args.values} has {len(wanted)}: print the same "
                          "numbers in the same form")
        same = sum(a == b for a, b in zip(got, wanted, strict=True))
        first = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b), None)
        rows.append({"card": card.name, "equal": same, "of": len(wanted), "first_different": None if first is None
                     else {"index": first, "card": got[first], "given": wanted[first]}})
    rows.sort(key=lambda row: -row["equal"])
    matches = [row["card"] for row in rows if row["first_different"] is None]
    if args.json:
        print_json({"matches": matches, "cards": rows})
        return SAME if matches else DIFFERENT
    print_table([[row["card"], row["equal"], row["of"], "" if row["first_different"] is None else
                  "number {index}: {card}, given {given}".format(**row["first_different"])] for row in rows],
                ["card", "equal", "of", "first difference"])
    print(f"cards that print these numbers: {', '.join(matches)}" if matches else
          "no virtual card prints these numbers (the torch version, a plan or an operator may be another)")
    return SAME if matches else DIFFERENT
