"""The runs of the long suites, each in a process of its own.

python tests/recipe_long/runs.py FOLDER --suite 3m|124m --card NAME --dtype fp32|bf16 [--steps N] [--threads N]
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "python")]

import gpt  # noqa: E402
import recipe_run  # noqa: E402

import step_oracle  # noqa: E402
from step_oracle import recipe  # noqa: E402

SHAPES = {
    "124m": gpt.Shape(vocab=50304, width=768, heads=12, layers=12, tokens=1024, batch=2, tied=True),
    "124m-tiny": gpt.Shape(vocab=512, width=64, heads=2, layers=1, tokens=64, batch=2, tied=True),  # to try the suite
}


def tokens(path: pathlib.Path, vocab: int, count: int = 100_000) -> pathlib.Path:
    """A corpus of 16-bit tokens, from a seed."""
    if not path.exists():
        draw = random.Random(11)
        path.write_bytes(b"".join(draw.randrange(vocab - 47).to_bytes(2, "little") for _ in range(count)))
    return path


def gpt2(folder: pathlib.Path, s: gpt.Shape, card: str, dtype: str, steps: int) -> None:
    step_oracle.set_card(card)
    torch.manual_seed(1337)
    corpus = tokens(folder.parent / "tokens.bin", s.vocab)
    run = recipe.Run(
        folder,
        corpus=corpus,
        promises=range(steps),
        sampler={"kind": "contiguous 1", "tokens": "uint16", "batch": s.batch, "context": s.tokens},
    )

    def make() -> torch.nn.Module:
        model = gpt.GPT(s)
        for p in model.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, 0.0, 0.02)
        return model

    model = run.build(make)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        autocast = torch.autocast("oracle", dtype=torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()
        with sdpa_kernel(SDPBackend.MATH), autocast:
            loss: torch.Tensor = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for n in range(steps):
        loss = run.step(model, optimizer, step)
        print(f"step {n}: loss {float(loss):.6f}", flush=True)
    run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--suite", choices=["3m", *SHAPES], required=True)
    parser.add_argument("--card", default="h100-sxm")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    step_oracle.set_card(args.card)
    step_oracle.device.extension().set_num_threads(args.threads)
    if args.suite == "3m":
        recipe_run.train(args.folder, card=args.card, steps=args.steps, shape="small")
    else:
        gpt2(args.folder, SHAPES[args.suite], args.card, args.dtype, args.steps)


if __name__ == "__main__":
    main()
