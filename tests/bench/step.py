"""A training step of the 10.8 M GPT: device "oracle" against torch's CPU kernels, both sides in one run.

    python tests/bench/step.py [--steps N] [--threads N] [--shape small|large] [--optimizer foreach|fused|for-loop]

Prints the ratio of the medians of the step time, sides alternating, and the ratio of the peak memory of two fresh
processes that run one side each.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import gpt  # noqa: E402


def training(device: str, args: argparse.Namespace) -> gpt.Training:
    return gpt.Training(gpt.LARGE if args.shape == "large" else gpt.SMALL, args.optimizer, device)


def timed(run: gpt.Training) -> float:
    begin = time.perf_counter()
    with sdpa_kernel(SDPBackend.MATH):
        float(run.step())
    return time.perf_counter() - begin


def peak_memory() -> float:
    """MiB of this process (getrusage's figure is the parent's where that was larger)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=["small", "large"], default="large")
    parser.add_argument("--optimizer", choices=sorted(gpt.OPTIMIZERS), default="foreach")
    parser.add_argument("--memory-of", choices=["cpu", "oracle"], help=argparse.SUPPRESS)
    args = parser.parse_args()

    import step_oracle

    torch.set_num_threads(args.threads)
    if args.memory_of != "cpu":
        step_oracle.set_card("h100-sxm")
        step_oracle.device.extension().set_num_threads(args.threads)
    if args.memory_of:
        run = training(args.memory_of, args)
        for _ in range(3):
            timed(run)
        print(peak_memory())
        return

    runs = {device: training(device, args) for device in ("cpu", "oracle")}
    seconds: dict[str, list[float]] = {device: [] for device in runs}
    for i in range(args.steps + 1):
        for device, run in runs.items():
            t = timed(run)
            if i:
                seconds[device].append(t)
    median = {device: statistics.median(s) for device, s in seconds.items()}
    same = ["--threads", str(args.threads), "--shape", args.shape, "--optimizer", args.optimizer]
    memory = {}
    for device in runs:
        words = [sys.executable, __file__, *same, "--memory-of", device]
        memory[device] = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    parameters = sum(p.numel() for p in runs["cpu"].model.parameters()) / 1e6
    print(f"{parameters:.1f} M parameters, AdamW {args.optimizer}, {args.threads} threads, medians of {args.steps}")
    print(f"step:        cpu {median['cpu']:.3f} s, oracle {median['oracle']:.3f} s, "
          f"ratio {median['oracle'] / median['cpu']:.2f}")
    print(f"peak memory: cpu {memory['cpu']:.0f} MiB, oracle {memory['oracle']:.0f} MiB, "
          f"ratio {memory['oracle'] / memory['cpu']:.2f}")


if __name__ == "__main__":
    main()
