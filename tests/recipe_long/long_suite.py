"""The long suites' stages; scripts/check_recipes runs them."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
OTHER = {"h100-sxm": "t4", "a100-sxm-80gb": "t4"}  # the card of the swapped control: its dropout grid is another
RUNS = str(ROOT / "tests" / "recipe_long" / "runs.py")
Result = dict[str, Any]


class Suite:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        name = args.suite if args.suite == "3m" else f"{args.suite}-{args.card}-{args.dtype}"
        self.folder = args.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results_path = args.folder / f"{name}.json"
        self.results: dict[str, Result] = {}
        if self.results_path.exists():
            self.results = json.loads(self.results_path.read_text())
        self.recipe = str(self.folder / "run.recipe.json")
        self.corpus = str(self.folder / ("corpus.txt" if args.suite == "3m" else "tokens.bin"))
        self.kept = self.folder / "kept"

    def stage(self, name: str, run: Callable[[], Result]) -> Result:
        """Runs once; its result, with the seconds it took, stands in the results file from then on."""
        if not self.results.get(name, {}).get("ok"):
            print(f"{name} ...", flush=True)
            began = time.monotonic()
            found = run()
            self.results[name] = found | {
                "wall_seconds": round(time.monotonic() - began, 2),
                "load": os.getloadavg()[0],
            }
            partial = self.results_path.with_suffix(".partial")
            partial.write_text(json.dumps(self.results, indent=1) + "\n")
            os.replace(partial, self.results_path)
        result = self.results[name]
        print(
            f"{name}: {'ok' if result['ok'] else 'FAILED'} "
            + json.dumps({k: v for k, v in result.items() if k != "ok"})
        )
        return result

    def command(self, *words: str, expect: int = 0) -> Result:
        """A `step-oracle recipe` in a fresh process: {"ok", "code", "memory_bytes", "report" or "said"}."""
        line = [sys.executable, "-m", "step_oracle.cli", "recipe", *words, "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        out = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        found: Result = {"ok": out.returncode == expect, "code": out.returncode}
        after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if after > before:
            found["memory_bytes"] = after * 1024
        if out.stdout.startswith("{"):
            found["report"] = json.loads(out.stdout)
        if out.stderr:
            found["said"] = out.stderr[-500:]
        return found

    def train(self) -> Result:
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        a = self.args
        line = [sys.executable, RUNS, str(run), "--suite", a.suite, "--card", a.card, "--dtype", a.dtype,
                "--steps", str(a.steps), "--threads", str(a.threads)]  # fmt: skip
        out = subprocess.run(line, capture_output=True, text=True)
        return {"ok": out.returncode == 0, "said": (out.stdout + out.stderr)[-1500:]}

    def write(self) -> Result:
        found = self.command(
            "write", str(self.folder / "run"), "--corpus", self.corpus, "-o", self.recipe, *self.threads()
        )
        limit = 40_000 if self.args.suite == "3m" else 120_000
        found["bytes"] = pathlib.Path(self.recipe).stat().st_size if found["ok"] else None
        found["ok"] = found["ok"] and found["bytes"] <= limit
        return found

    def threads(self) -> list[str]:
        return ["--threads", str(self.args.threads)]

    def verify(self, *more: str) -> Result:
        every = ["--keep-every", "100"] if self.args.suite == "3m" else []
        return self.command(
            "verify", self.recipe, "--corpus", self.corpus, "--folder", str(self.kept), *every, *self.threads(), *more
        )

    def verify_other_threads(self) -> Result:
        words = ["--until", "4"] if self.args.suite == "3m" else ["--until", "0"]
        one = self.command("verify", self.recipe, "--corpus", self.corpus, "--threads", "1", *words)
        two = self.command("verify", self.recipe, "--corpus", self.corpus, "--threads", "3", *words)
        states = {r.get("report", {}).get("state") for r in (one, two)}
        return {"ok": one["ok"] and two["ok"] and len(states) == 1, "states": sorted(map(str, states))}

    def swapped(self) -> Result:
        """The recipe under another card's blocks must fail at its first loss, which must be that card's."""
        from step_oracle.recipe import canonical

        other = self._of_other_card()
        own = json.loads(pathlib.Path(self.recipe).read_text())
        path = self.folder / "swapped.recipe.json"
        path.write_text(canonical.dump(own | {k: other[k] for k in ("card", "class", "plans", "generator")}) + "\n")
        found = self.command("verify", str(path), "--corpus", self.corpus, *self.threads(), expect=1)
        failed = found.get("report", {}).get("first_failed") or {}
        live = other["losses"][int(failed.get("step", 0))]
        same_blobs = own["blobs"] == other["blobs"]
        found["ok"] = found["ok"] and same_blobs and failed.get("step", 9) <= 1 and failed.get("loss") == live
        return found | {"other_cards_loss": live, "one_blob_for_both_cards": same_blobs}

    def _of_other_card(self) -> Result:
        """The recipe of a live run on the other card, of a few steps."""
        run = self.folder / "other" / "run"
        shutil.rmtree(run.parent, ignore_errors=True)
        run.parent.mkdir()
        shutil.copy(self.corpus, run.parent)
        a = self.args
        line = [sys.executable, RUNS, str(run), "--suite", a.suite, "--card", OTHER[a.card]]
        subprocess.run([*line, "--steps", "4", "--threads", str(a.threads)], check=True, capture_output=True)
        out = str(run.parent / "other.recipe.json")
        self.command("write", str(run), "--corpus", self.corpus, "-o", out, *self.threads())
        found: Result = json.loads(pathlib.Path(out).read_text())
        return found

    def resurrect(self) -> Result:
        """Of the checkpoints after steps 99, 199 and 299 the first is kept; the others come back byte for byte."""
        sys.path.insert(0, str(ROOT))
        from step_oracle.recipe import checkpoints

        buried = self.folder / "buried"
        buried.mkdir(exist_ok=True)
        equal = {}
        for step in (199, 299):
            name = f"after-{step:08d}.safetensors"
            if (self.kept / name).exists():
                os.replace(self.kept / name, buried / name)
            out = str(self.folder / f"back-{step}.safetensors")
            found = self.command(
                "resurrect",
                self.recipe,
                "--corpus",
                self.corpus,
                "--step",
                str(step),
                "--folder",
                str(self.kept),
                "-o",
                out,
                *self.threads(),
            )
            if not found["ok"]:
                return found
            a, b = checkpoints.read(out), checkpoints.read(buried / name)
            same = [n for n in b.tensors if a.tensors[n].numpy().tobytes() == b.tensors[n].numpy().tobytes()]
            equal[str(step)] = [len(same), len(b.tensors), a.generator == b.generator and a.loss == b.loss]
            os.replace(out, self.kept / name)  # the next one starts from the resurrected state
        return {"ok": all(n == m and rest for n, m, rest in equal.values()), "equal": equal}

    def audit(self) -> Result:
        """One step from a kept checkpoint, besides loading: at most 1.2 times a walk's step with its promise.

        Both are the first step of a fresh process; ``steady_seconds`` is of a walk under way, without a promise.
        """
        first = self.folder / "first"  # after step 1, since step 2 is promised too
        self.command("verify", self.recipe, "--corpus", self.corpus, "--until", "1", "--folder", str(first))
        path = str(first / "after-00000001.safetensors")
        words = ["audit", self.recipe, "--corpus", self.corpus, "--from", path, "--steps", "1", *self.threads()]
        audits = [self.command(*words) for _ in range(3)]
        walk = ["verify", self.recipe, "--corpus", self.corpus, "--until", "0", *self.threads()]
        walks = [self.command(*walk) for _ in range(3)]
        estimate = self.command("estimate", self.recipe, "--corpus", self.corpus, "--steps", "4", *self.threads())

        def seconds(found: list[Result]) -> float:
            return min(f["report"]["seconds"] - f["report"]["load_seconds"] for f in found)

        ok = all(f["ok"] for f in audits + walks) and seconds(audits) <= 1.2 * seconds(walks)
        about = {k: estimate["report"][k] for k in ("state_bytes", "live_bytes", "peak_memory_bytes")}
        about["load_seconds"] = audits[0]["report"]["load_seconds"]
        about["steady_seconds"] = estimate["report"]["seconds_a_step"]
        return {"ok": ok, "audit_seconds": seconds(audits), "step_seconds": seconds(walks), **about}

    def tampered(self) -> Result:
        """A kept checkpoint with one weight changed by one ulp is refused before any step."""
        import torch

        from step_oracle.recipe import checkpoints

        step = 99 if self.args.suite == "3m" else 3
        saved = checkpoints.read(self.kept / f"after-{step:08d}.safetensors")
        name = sorted(n for n in saved.tensors if n.endswith("weight"))[0]
        saved.tensors[name] = saved.tensors[name].clone()
        saved.tensors[name].view(-1).view(torch.int32)[7] ^= 1
        path = self.folder / "tampered.safetensors"
        checkpoints.write(path, saved.tensors, step=step, generator=saved.generator, loss=saved.loss)
        began = time.monotonic()
        found = self.command(
            "audit", self.recipe, "--corpus", self.corpus, "--from", str(path), expect=2
        )
        path.unlink()
        found["seconds"] = round(time.monotonic() - began, 2)
        found["ok"] = found["ok"] and "was changed" in found.get("said", "")
        return found | {"within_3_s": found["seconds"] <= 3}

    def run(self) -> int:
        stages: dict[str, Callable[[], Result]] = {"train": self.train, "write": self.write, "verify": self.verify}
        if self.args.suite == "3m":
            stages |= {"swapped card": self.swapped, "resurrect": self.resurrect}
        stages |= {"audit": self.audit, "tampered": self.tampered, "other threads": self.verify_other_threads}
        for name, stage in stages.items():
            if not self.stage(name, stage)["ok"]:
                return 1
        return 0


def main(doc: str | None) -> int:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["3m", "124m", "124m-tiny"])
    parser.add_argument("--card", choices=sorted(OTHER), default="h100-sxm")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "recipes")
    parser.add_argument("--steps", type=int, help="300 (3m) or 6 (124m)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.steps = args.steps or (300 if args.suite == "3m" else 6)
    return Suite(args).run()
