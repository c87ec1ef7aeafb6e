"""Time to read a split plan off the bytes of a GPT-2 124M product: python tests/bench/fit.py

A 2048 x 768 x 3072 bfloat16 product, split as an RTX A6000 does; the candidates are the
known forms. First from one tile of the output, then from the whole output.
"""

import argparse
import time

import torch

import step_oracle
from step_oracle import plans

M, N, K = 2048, 768, 3072
TRUTH = {"splits": 3, "width": 1024, "reduction": "in_place"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32, help="of the tile")
    parser.add_argument("--cols", type=int, default=64)
    args = parser.parse_args()
    gen = torch.Generator().manual_seed(1)
    a, b = torch.randn(M, K, generator=gen).bfloat16(), torch.randn(K, N, generator=gen).bfloat16()
    with step_oracle.card("rtx-a6000"):
        out = (a.to("oracle") @ b.to("oracle")).cpu()
    tile = a[: args.rows], b[:, : args.cols].contiguous(), out[: args.rows, : args.cols].contiguous()
    for name, product in (("one tile", tile), ("whole output", (a, b, out))):
        start = time.perf_counter()
        found = plans.fit(*product, card="rtx-a6000")
        seconds = time.perf_counter() - start
        assert TRUTH in found["plans"], found
        print(f"{name:12}  {seconds:6.2f} s  {found['tried']} candidates  {len(found['matches'])} matches: "
              f"{found['matches'][0]}")  # fmt: skip


if __name__ == "__main__":
    main()
