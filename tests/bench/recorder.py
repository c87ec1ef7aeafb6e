"""What recording costs: bare, recorded and DebugMode's hash of the same step, in turn, in one run.

    python tests/bench/recorder.py [--rounds N] [--large-rounds N]

Limits: every input and output digested costs at most 1.5 x for the 10.8 M GPT and 2.2 x for the 0.83 M one; an empty
recorder less than 0.5 us an op. Exits 1 where a limit is broken.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from torch.utils._debug_mode import DebugMode

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/python")]
import gpt  # noqa: E402

import step_oracle  # noqa: E402
from step_oracle import _record  # noqa: E402


def timed(f: Callable[[], object]) -> float:
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def debug_mode(step: Callable[[], object]) -> None:
    with DebugMode() as mode, DebugMode.log_tensor_hashes("hash_tensor", hash_inputs=True):
        step()
    del mode


class Case:
    """A training step, run bare and under each recorder in turn, so that the machine's moods meet all alike."""

    def __init__(self, name: str, shape: gpt.Shape, rounds: int, limit: float, folder: str) -> None:
        self.name, self.limit, self.rounds = name, limit, rounds
        self.training = gpt.Training(shape)
        self.parameters = sum(p.numel() for p in self.training.model.parameters())
        self.path = f"{folder}/{name}.trace"
        self.summary: dict[str, object] = {}

    def recorded(self) -> float:
        rec = step_oracle.record(self.path, model=self.training.model, optimizer=self.training.optimizer)
        with rec:
            seconds = timed(self.training.step)
        self.summary = rec.summary()
        return seconds

    def metadata(self) -> float:
        with step_oracle.record(None, digests=False):
            return timed(self.training.step)

    def whole(self) -> float:
        """Entering, leaving and writing the file included."""
        return timed(self.recorded)

    def run(self) -> bool:
        step = self.training.step
        ways = {"bare": lambda: timed(step), "recorded": self.recorded, "with the file closed": self.whole,
                "metadata only": self.metadata, "DebugMode hash": lambda: timed(lambda: debug_mode(step))}
        for way in ways.values():
            way()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, way in ways.items():
                times[name].append(way())
        bare = statistics.median(times["bare"])
        print(f"\n{self.name}: {self.parameters / 1e6:.2f} M parameters, {self.summary['ops']} ops, "
              f"{self.summary['digests']} digests of {int(str(self.summary['bytes_digested'])) / 1e6:.0f} MB")
        for name, values in times.items():
            paired = statistics.median(v / b for v, b in zip(values, times["bare"], strict=True))
            print(f"  {name:22s} {statistics.median(values) * 1e3:9.2f} ms   {paired:5.2f} x")
        ratio = statistics.median(v / b for v, b in zip(times["recorded"], times["bare"], strict=True))
        print(f"  limit {self.limit} x: {'kept' if ratio <= self.limit else 'BROKEN'} (bare {bare * 1e3:.1f} ms)")
        return ratio <= self.limit


def empty_recorder(limit: float = 0.5) -> bool:
    x = torch.ones(8)
    count = 20_000

    def loop() -> None:
        for _ in range(count):
            torch.add(x, x)

    def on() -> float:
        _record.set_empty(True)
        try:
            return timed(loop)
        finally:
            _record.set_empty(False)

    loop()
    pairs = [(timed(loop), on()) for _ in range(7)]
    cost = statistics.median(b - a for a, b in pairs) / count * 1e6
    print(f"\nempty recorder: +{cost:.3f} us an op (bare {min(a for a, _ in pairs) / count * 1e6:.3f} us): "
          f"{'kept' if cost < limit else 'BROKEN'} (limit {limit} us)")
    return cost < limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--large-rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        good = [empty_recorder(), Case("small", gpt.SMALL, args.rounds, 2.2, folder).run(),
                Case("large", gpt.LARGE, args.large_rounds, 1.5, folder).run()]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
