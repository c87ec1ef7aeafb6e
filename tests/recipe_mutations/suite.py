"""Attacks a recipe, its programs, its corpus and its checkpoints, and says what became of each change (README.md).

python tests/recipe_mutations/suite.py [--seed N] [--per-program N] [--verbose]
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import mutations  # noqa: E402
import published  # noqa: E402
import states  # noqa: E402

import step_oracle  # noqa: E402
from step_oracle.recipe import document, verification, walk  # noqa: E402

STEPS = 6
SENTENCES = (ValueError, NotImplementedError, step_oracle.StepOracleError, OSError)
# What may verify besides a program's text, whose bytes the promises confirm: it decides no byte.
CHANGES_NO_BYTE = {"packing", "published"}
ROUNDED_AWAY = ("optimizer.groups", "one ulp up")  # an ulp of a double, in kernels that take it as a float32


class Computed:
    """Counts the steps that are begun."""

    def __init__(self) -> None:
        self.steps = 0
        original = walk.Walk.advance

        def advance(own: walk.Walk) -> str:
            self.steps += 1
            return original(own)

        walk.Walk.advance = advance  # type: ignore[method-assign]


class Suite:
    def __init__(self, verbose: bool) -> None:
        self.computed, self.verbose = Computed(), verbose
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        self.faults: list[str] = []
        self.verified: list[str] = []

    def judge(self, kind: str, name: str, run: Callable[[], verification.Verdict]) -> None:
        self.computed.steps = 0
        began = time.monotonic()
        try:
            verdict = run()
        except SENTENCES as error:
            outcome = "refused" if self.computed.steps == 0 else "stopped"
            said = " ".join(str(error).split())
            if not said or "\n" in str(error).strip() or len(said) > 1500:
                self.faults.append(f"{kind}: {name}: not one sentence: {said[:300]}")
        except Exception:
            outcome, said = "a stack trace", traceback.format_exc()
            self.faults.append(f"{kind}: {name}: {said}")
        else:
            outcome, said = self._of(verdict, kind, name)
        self.outcomes[kind, outcome.split()[0]] += 1
        if self.verbose or kind == "published":
            print(f"{kind:11s}{name:60s}{outcome:10s}{said[:150]}", flush=True)
        if (took := time.monotonic() - began) > 60:
            self.faults.append(f"{kind}: {name}: took {took:.0f} s")

    def _of(self, verdict: verification.Verdict, kind: str, name: str) -> tuple[str, str]:
        if not verdict.ok:
            failed = verdict.first_failed
            if failed is None:
                self.faults.append(f"{kind}: {name}: not verified, and nothing named")
                return "nothing", ""
            return f"{failed.what} {failed.step}", str(failed)
        self.verified.append(f"{kind}: {name}")
        if kind == "index" and verdict.note and verdict.resumed_from is None:
            return "verifies", "from step 0: the index is not sealed"
        rounded_away = name.startswith(ROUNDED_AWAY[0]) and name.endswith(ROUNDED_AWAY[1])
        if kind != "program" and kind not in CHANGES_NO_BYTE and not rounded_away:
            self.faults.append(f"{kind}: {name}: VERIFIES, and is changed")
        return "verifies", "every promise holds: it changes no byte"

    def report(self) -> int:
        kinds = sorted({k for k, _ in self.outcomes})
        columns = ["refused", "stopped", "loss", "state", "verifies"]
        print(f"\n{'':12s}" + "".join(f"{c:>10s}" for c in columns))
        for kind in kinds:
            print(f"{kind:12s}" + "".join(f"{self.outcomes[kind, c]:10d}" for c in columns))
        for line in self.verified:
            print(f"verifies: {line}")
        for fault in self.faults:
            print(f"FAULT: {fault}")
        total = sum(self.outcomes.values())
        print(f"{total} changes: {len(self.faults)} faults")
        return 1 if self.faults or total == 0 else 0


def make(folder: pathlib.Path) -> pathlib.Path:
    script = HERE.parent / "python" / "recipe_run.py"
    words = [sys.executable, str(script), str(folder / "run"), f"--steps={STEPS}", "--planned"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return folder / "run.recipe.json"


def attack(suite: Suite, folder: pathlib.Path, draw: random.Random, per_program: int) -> None:
    path = make(folder)
    corpus = str(folder / "corpus.txt")
    recipe: dict[str, Any] = json.loads(path.read_text())
    kept = folder / "kept"
    own = verification.verify(str(path), corpus, folder=str(kept), keep_every=1)
    assert own.ok and own.kept == len(recipe["promises"]), "the unchanged recipe does not verify"

    def verify(text: str, where: str = corpus) -> Callable[[], verification.Verdict]:
        return lambda: verification.verify(document.Recipe(text.encode()), where)

    groups = (
        published_edits(suite, recipe, folder, verify),
        mutations.texts(recipe),
        mutations.fields(recipe, draw),
        mutations.packing(recipe),
        mutations.programs(recipe, draw, per_program),
    )
    for group in groups[1:]:
        for kind, name, text in group:
            suite.judge(kind, name, verify(text))
    corpora(suite, path.read_text(), pathlib.Path(corpus).read_bytes(), folder, verify)
    folders(suite, path, corpus, kept, folder)


def published_edits(suite: Suite, recipe: dict[str, Any], folder: pathlib.Path, verify: Any) -> None:
    data = (folder / "corpus.txt").read_bytes()
    edits = list(published.edits(recipe, data))
    assert len(edits) == 17
    for n, (name, text, corpus) in enumerate(edits):
        where = folder / f"published-{n}"
        where.write_bytes(corpus)
        suite.judge("published", name, verify(text, str(where)))


def corpora(suite: Suite, text: str, data: bytes, folder: pathlib.Path, verify: Any) -> None:
    half = len(data) // 2
    cases = {
        "first byte": bytes([data[0] ^ 1]) + data[1:],
        "last byte": data[:-1] + bytes([data[-1] ^ 128]),
        "one more": data + b" ",
        "one less": data[:-1],
        "empty": b"",
        "exchanged halves": data[half:] + data[:half],
    }
    for name, changed in cases.items():
        where = folder / f"corpus-{name.replace(' ', '-')}"
        where.write_bytes(changed)
        suite.judge("corpus", name, verify(text, str(where)))
    suite.judge("corpus", "not there", verify(text, str(folder / "none")))
    suite.judge("corpus", "a folder", verify(text, str(folder)))


def folders(suite: Suite, path: pathlib.Path, corpus: str, kept: pathlib.Path, folder: pathlib.Path) -> None:
    (folder / "states").mkdir()
    for name, changed in states.files(kept, 2, folder / "states"):
        suite.judge("checkpoint", name, lambda c=changed: verification.audit(str(path), corpus, str(c)))
        suite.judge("resurrect", name, lambda c=changed: resurrected(path, corpus, c, folder))
    (folder / "indices").mkdir()
    for name, changed in states.indices(kept, 2, folder / "indices"):
        suite.judge("index", name, lambda c=changed: verification.verify(str(path), corpus, folder=str(c)))


def resurrected(path: pathlib.Path, corpus: str, kept: pathlib.Path, folder: pathlib.Path) -> verification.Verdict:
    out = folder / "resurrected"
    found = verification.resurrect(str(path), corpus, 4, str(out), kept=str(kept))
    failed = None if found["ok"] else verification.Failure(**found["first_failed"])
    assert out.exists() == found["ok"]
    return verification.Verdict(found["ok"], 0, 0, failed, 0, 0, 0, None, 0, 0, "", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-program", type=int, default=60, help="single changes to each program's text")
    parser.add_argument("--verbose", action="store_true", help="print every change")
    args = parser.parse_args()
    suite = Suite(args.verbose)
    step_oracle.set_card("h100-sxm")
    with tempfile.TemporaryDirectory() as folder:
        attack(suite, pathlib.Path(folder), random.Random(args.seed), args.per_program)
    return suite.report()


if __name__ == "__main__":
    sys.exit(main())
