"""Speed of the virtual card's attention against torch's CPU attention, both in this process:

    python tests/bench/attention.py [--card t4] [--dtype float32] [--batch 4] [--heads 12] [--keys 1024] [--width 64]
                                    [--efficient]

Forward and backward, causal; `--efficient`: the memory-efficient kernel, where the dispatcher would take
another. Times are seconds of CPU of all threads, which a loaded machine disturbs least, and wall seconds; the peak is
what the forward and the backward added to the process's resident memory.
"""

import argparse
import contextlib
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle


def resident() -> int:
    """Peak resident bytes since the last reset."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def once(args: argparse.Namespace, device: str, dtype: torch.dtype) -> tuple[float, float, int]:
    torch.manual_seed(0)
    size = (args.batch, args.heads, args.keys, args.width)
    q, k, v, grad = (torch.randn(size).to(dtype).to(device).requires_grad_(i < 3) for i in range(4))
    reset_peak()
    before = resident()
    choice = args.efficient and device == "oracle"
    cpu, wall = time.process_time(), time.perf_counter()
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION) if choice else contextlib.nullcontext():
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
    return time.process_time() - cpu, time.perf_counter() - wall, resident() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="t4")
    parser.add_argument("--dtype", default="float32")
    for name, default in [("batch", 4), ("heads", 12), ("keys", 1024), ("width", 64), ("rounds", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--efficient", action="store_true")
    args = parser.parse_args()
    step_oracle.set_card(args.card)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(step_oracle.device.extension().isas()["threads"])
    rounds = [
        [once(args, device, dtype)
         for device, dtype in (("oracle", getattr(torch, args.dtype)), ("cpu", torch.float32))]
        for _ in range(args.rounds)
    ]  # fmt: skip
    (cpu, wall, peak), (torch_cpu, torch_wall, torch_peak) = (
        [min(r[side][i] for r in rounds) for i in range(3)] for side in (0, 1)
    )
    print(f"{args.card} {args.dtype} {args.batch} x {args.heads} heads x {args.keys} keys x {args.width}: "
          f"{cpu:.2f} s of CPU, {wall:.2f} s, {peak >> 20} MiB; torch float32 {torch_cpu:.2f} s, {torch_wall:.2f} s, "
          f"{torch_peak >> 20} MiB; ratio {cpu / torch_cpu:.2f} (wall {wall / torch_wall:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
