"""Speed of the products against torch.mm and oneDNN in float32 on the same CPU, all in this process.

    python tests/bench/gemm.py [--dtype bfloat16] [--card h100-pcie] [--threads 1 2]

GPT-2 124M with 4 x 256 tokens: forward (nt), input gradients (nn), weight gradients (tn), attention's batches.
`inf` repeats a shape with one inf and one NaN among the operands: a special value must not cost time.
The sides take turns, and each keeps its best turn: of wall time, and of CPU time, which other processes disturb less.
"""

import argparse
import os
import time
from collections.abc import Callable

import torch

import step_oracle
from step_oracle import _oracle

TOKENS = 1024
SHAPES = [  # layout, batch, m, n, k
    *[("nt", 1, TOKENS, n, k) for n, k in [(2304, 768), (768, 768), (3072, 768), (768, 3072), (50257, 768)]],
    *[("nn", 1, TOKENS, n, k) for n, k in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50257)]],
    *[("tn", 1, m, n, TOKENS) for m, n in [(768, 2304), (768, 768), (768, 3072), (3072, 768), (50257, 768)]],
    ("nt", 48, 256, 256, 64), ("nn", 48, 256, 64, 256), ("tn", 48, 256, 64, 256),
    ("nt", 256, 64, 64, 32), ("nn", 256, 64, 32, 64), ("nn", 256, 16, 16, 16),
]  # fmt: skip


class Best:
    """The shortest run, in wall time and in CPU time of all threads."""

    def __init__(self) -> None:
        self.wall = self.cpu = float("inf")

    def take(self, run: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        self.cpu = min(self.cpu, time.process_time() - cpu)
        self.wall = min(self.wall, time.perf_counter() - wall)


def in_turns(sides: list[Callable[[], object]], seconds: float) -> list[Best]:
    for run in sides:
        run()
    out = [Best() for _ in sides]
    end, turns = time.perf_counter() + seconds * len(sides), 0
    while turns < 3 or time.perf_counter() < end:
        for side, run in zip(out, sides, strict=True):
            side.take(run)
        turns += 1
    return out


def operand(batch: int, rows: int, cols: int, transposed: bool) -> torch.Tensor:
    shape = (batch, cols, rows) if transposed else (batch, rows, cols)
    x = torch.randn(shape)
    x = x.transpose(1, 2) if transposed else x
    return x[0] if batch == 1 else x


def measure(shape: tuple[str, int, int, int, int], special: bool, seconds: float, dtype: torch.dtype) -> str:
    layout, batch, m, n, k = shape
    a, b = operand(batch, m, k, layout[0] == "t"), operand(batch, k, n, layout[1] == "t")
    if special:
        a[..., m // 2, k // 2], b[..., k // 3, n // 3] = float("inf"), float("nan")
    product = torch.mm if batch == 1 else torch.bmm
    x, y = a.to(dtype).to("oracle"), b.to(dtype).to("oracle")
    torch_out = torch.empty(product(a, b).shape)
    ours_out = torch.empty(torch_out.shape, device="oracle", dtype=dtype)
    sides: list[Callable[[], object]] = [
        lambda: product(x, y, out=ours_out),
        lambda: product(a, b, out=torch_out),
    ]
    if batch == 1:  # torch's way to oneDNN's sgemm
        sides.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], ""))
    ours, *theirs = in_turns(sides, seconds)
    flops = 2e-9 * batch * m * n * k
    name = f"{layout} {batch:4} {m:6} {n:6} {k:6}" + (" inf" if special else "    ")
    each = 2 * ours.cpu / flops
    rivals = "  ".join(f"{rival} {side.wall / ours.wall:5.2f} (CPU {side.cpu / ours.cpu:5.2f})"
                       for rival, side in zip(["torch", "oneDNN"], theirs, strict=False))  # fmt: skip
    return f"{name}  {flops / ours.wall:7.1f} GFLOP/s, {each:.4f} ns x thread a product  {rivals}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3, help="a shape and side")
    parser.add_argument("--match", default="", help="only shapes whose line starts with this")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--card", default="l4", help="whose adder: l4 takes 8 products at once, h100-pcie 16")
    args = parser.parse_args()
    step_oracle.set_card(args.card)
    dtype = getattr(torch, args.dtype)
    for threads in args.threads:
        torch.set_num_threads(threads)
        _oracle.set_num_threads(threads)
        instruction_set = os.environ.get("STEP_ORACLE_ISA", "best instruction set")
        print(f"{threads} threads, {args.dtype} on {args.card}, {instruction_set}")
        for shape in SHAPES:
            if shape[0].startswith(args.match):
                print(measure(shape, False, args.seconds, dtype), flush=True)
        print(measure(SHAPES[1], True, args.seconds, dtype), flush=True)


if __name__ == "__main__":
    main()
