"""Speed of the virtual card's elementwise, norm and move kernels against torch's CPU kernels, both in this process:

    python tests/bench/families.py [--threads 1] [--cpu] [--only exp,softmax] [--card a100-sxm-80gb]

The best of several runs of each: seconds of CPU with one thread, wall seconds with more; with --cpu the seconds of CPU
of all threads, for a machine that others use (set OMP_WAIT_POLICY=passive, else threads that wait are counted).
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[], Any]


def best(run: Run, cpu: bool, repeats: int) -> float:
    clock = time.process_time if cpu else time.perf_counter
    run()
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def backward(function: Callable[..., Any], *inputs: Any) -> Run:
    import torch

    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    grad = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True)


def cases(device: str) -> dict[str, Callable[[], Run]]:
    """Name -> what makes a run: tensors live only while their case is measured."""
    import torch
    import torch.nn.functional as F

    def randn(*size: int) -> Any:
        torch.manual_seed(0)
        return torch.randn(*size).to(device)

    def unary(function: Callable[[Any], Any]) -> Callable[[], Run]:
        def make() -> Run:
            x = randn(1 << 22)
            return lambda: function(x)

        return make

    def softmax(rows: int, columns: int) -> Run:
        x = randn(rows, columns)
        return lambda: torch.softmax(x, -1)

    def layer_norm(x: Any, w: Any) -> Any:
        return F.layer_norm(x, (1024,), w, w)

    def norm_forward() -> Run:
        x, w = randn(2048, 1024), randn(1024)
        return lambda: layer_norm(x, w)

    def adamw() -> Run:
        p = torch.nn.Parameter(randn(100_000_000))
        p.grad = randn(100_000_000)
        return torch.optim.AdamW([p], lr=1e-3, fused=True).step

    def embedding() -> Run:
        torch.manual_seed(0)
        ids, grad = torch.randint(0, 50304, (2048,)).to(device), randn(2048, 768)
        return lambda: torch.ops.aten.embedding_dense_backward(grad, ids, 50304, -1, False)

    return {
        "exp, 4 M": unary(torch.exp),
        "tanh, 4 M": unary(torch.tanh),
        "gelu, 4 M": unary(F.gelu),
        "gelu tanh, 4 M": unary(lambda x: F.gelu(x, approximate="tanh")),
        "softmax 2048 x 1024": lambda: softmax(2048, 1024),
        "softmax 2048 x 50,304": lambda: softmax(2048, 50304),
        "softmax backward 2048 x 1024": lambda: backward(lambda x: torch.softmax(x, -1), randn(2048, 1024)),
        "layer norm 2048 x 1024": norm_forward,
        "layer norm backward 2048 x 1024": lambda: backward(layer_norm, randn(2048, 1024), randn(1024)),
        "dropout, 4 M": unary(lambda x: F.dropout(x, 0.1)),
        "embedding backward 2048 of 50,304 x 768": embedding,
        "fused AdamW, 100 M": adamw,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads")
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--card", default="a100-sxm-80gb")
    args = parser.parse_args()
    os.environ["STEP_ORACLE_THREADS"] = str(args.threads)
    import torch

    import step_oracle

    torch.set_num_threads(args.threads)
    step_oracle.set_card(args.card)
    parts = [part for part in args.only.split(",") if part]
    for name in cases("cpu"):
        if parts and not any(part in name for part in parts):
            continue
        repeats = 3 if "50,304" in name or "100 M" in name else 9
        times = {}
        for device in ("cpu", "oracle"):
            times[device] = best(cases(device)[name](), args.cpu or args.threads == 1, repeats)
        print(f"{name:42s} torch {times['cpu'] * 1e3:8.2f} ms, oracle {times['oracle'] * 1e3:8.2f} ms: "
              f"{times['oracle'] / times['cpu']:.2f} x", flush=True)


if __name__ == "__main__":
    main()
