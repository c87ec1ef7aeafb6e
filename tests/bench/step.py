"""A training step of a GPT: device "oracle" against torch's CPU kernels, both sides in one run.

    python tests/bench/step.py [--shape small|large|124m] [--attention math|fused] [--card h100-sxm] [--steps N]
                               [--threads N] [--optimizer foreach|fused|for-loop]

Prints the ratios of the medians and of the least step times, sides alternating, in wall seconds and in seconds of CPU
of all threads (which a loaded machine disturbs least), and the ratio of the peak memory of two fresh processes that run
one side each. `fused` leaves the kernel of F.scaled_dot_product_attention to the dispatcher; shape 124m has batch 2,
1,024 tokens, and takes 13 GB with both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import gpt  # noqa: E402

SHAPES = {
    "small": gpt.SMALL,
    "large": gpt.LARGE,
    "124m": gpt.Shape(vocab=50304, width=768, heads=12, layers=12, tokens=1024, batch=2, tied=True),
}


def training(device: str, args: argparse.Namespace) -> gpt.Training:
    return gpt.Training(SHAPES[args.shape], args.optimizer, device)


def timed(run: gpt.Training, attention: str) -> tuple[float, float]:
    begin, cpu = time.perf_counter(), time.process_time()
    with sdpa_kernel(SDPBackend.MATH) if attention == "math" else contextlib.nullcontext():
        float(run.step())
    return time.perf_counter() - begin, time.process_time() - cpu


def peak_memory() -> float:
    """MiB of this process (getrusage's figure is the parent's where that was larger)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="large")
    parser.add_argument("--attention", choices=["math", "fused"], default="math")
    parser.add_argument("--card", default="h100-sxm")
    parser.add_argument("--optimizer", choices=sorted(gpt.OPTIMIZERS), default="foreach")
    parser.add_argument("--memory-of", choices=["cpu", "oracle"], help=argparse.SUPPRESS)
    args = parser.parse_args()

    import step_oracle

    torch.set_num_threads(args.threads)
    if args.attention == "fused":  # else the order in which a query's gradient is added up is open on the card
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if args.memory_of != "cpu":
        step_oracle.set_card(args.card)
        step_oracle.device.extension().set_num_threads(args.threads)
    if args.memory_of:
        run = training(args.memory_of, args)
        for _ in range(3):
            timed(run, args.attention)
        print(peak_memory())
        return

    runs = {device: training(device, args) for device in ("cpu", "oracle")}
    seconds: dict[str, list[tuple[float, float]]] = {device: [] for device in runs}
    for i in range(args.steps + 1):
        for device, run in runs.items():
            t = timed(run, args.attention)
            if i:
                seconds[device].append(t)
    parameters = sum(p.numel() for p in runs["cpu"].model.parameters()) / 1e6
    devices = list(runs)
    runs.clear()  # before the memory of other processes is measured
    run = None  # type: ignore[assignment]
    memory = {}
    for device in devices:
        words = [sys.executable, __file__, "--memory-of", device]
        for name in ("threads", "shape", "attention", "card", "optimizer"):
            words += [f"--{name}", str(getattr(args, name))]
        memory[device] = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    print(f"{parameters:.1f} M parameters, AdamW {args.optimizer}, attention {args.attention} on {args.card}, "
          f"{args.threads} threads, {args.steps} steps")
    for clock, name in ((0, "wall"), (1, "CPU")):
        for what, of in (("median", statistics.median), ("least", min)):
            cpu, oracle = (of([s[clock] for s in seconds[device]]) for device in devices)
            print(f"step, {name} {what}: cpu {cpu:.3f} s, oracle {oracle:.3f} s, ratio {oracle / cpu:.2f}")
    print(f"peak memory: cpu {memory['cpu']:.0f} MiB, oracle {memory['oracle']:.0f} MiB, "
          f"ratio {memory['oracle'] / memory['cpu']:.2f}")


if __name__ == "__main__":
    main()
