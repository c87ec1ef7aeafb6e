"""Speed of the products against torch.mm float32 on the same CPU, both in this process: python tests/bench/gemm.py

GPT-2 124M with 4 x 256 tokens: forward (nt), input gradients (nn), weight gradients (tn), attention's batches.
`inf` repeats a shape with one inf and one NaN among the operands: a special value must not cost time.
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


def best(run: Callable[[], object], seconds: float) -> float:
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


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
    ours = best(lambda: product(x, y, out=ours_out), seconds)
    theirs = best(lambda: product(a, b, out=torch_out), seconds)
    flops = 2e-9 * batch * m * n * k
    name = f"{layout} {batch:4} {m:6} {n:6} {k:6}" + (" inf" if special else "    ")
    each = 2e9 * ours * torch.get_num_threads() / (flops * 1e9)
    return (f"{name}  {flops / ours:7.1f} GFLOP/s, {each:.4f} ns x thread a product  torch {flops / theirs:7.1f}  "
            f"ratio {theirs / ours:5.2f}")  # fmt: skip


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
