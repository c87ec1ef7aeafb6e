"""A byte-level GPT trained on a virtual card, kept as a run folder, and written as a recipe.

python tests/python/recipe_run.py FOLDER [--card NAME] [--steps N] [--shape tiny|small] [--optimizer foreach|fused]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle
from step_oracle import demo, recipe

# Attention's dropout of more than 4 * 256 * 160 elements fills a T4 and not an H100: the card is in the bytes.
SHAPES = {
    "tiny": demo.Config(width=32, heads=4, layers=2, context=104, batch=4),
    "small": demo.Config(width=256, heads=8, layers=4, context=160, batch=1),  # 3.2 M parameters
}


def corpus(path: pathlib.Path, size: int = 60_000) -> pathlib.Path:
    """Words in an order from a seed: the same bytes everywhere."""
    if not path.exists():
        draw = random.Random(5)
        words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 8))) for _ in range(400)]
        path.write_text(" ".join(draw.choices(words, k=size // 5))[:size])
    return path


def plan_table(path: pathlib.Path, card: str) -> pathlib.Path:
    """A table that splits one product of the tiny shape, so that the plan is in the bytes."""
    row = {
        "op": "addmm", "dtype": "float32", "layout": "nt", "epilogue": "bias", "m": 416, "n": 96, "k": 32,
        "plan": {"splits": 2, "width": 16}, "source": "made up for tests",
    }  # fmt: skip
    table = {"format": "step-oracle plan table 1", "card": card, "library": "none", "source": "made up", "rows": [row]}
    path.write_text(json.dumps(table))
    return path


def promises(steps: int) -> list[int]:
    """Eleven of a run of 300 steps: after 0, 1, 2, 4, 9, 19, 49, 99, 149, 199, 299; fewer of a shorter one."""
    return sorted({s for s in (0, 1, 2, 4, 9, 19, 49, 99, 149, 199, 299) if s < steps} | {steps - 1})


def train(
    folder: pathlib.Path,
    *,
    card: str = "h100-sxm",
    steps: int = 8,
    shape: str = "tiny",
    optimizer: str = "foreach",
    schedule: dict[str, Any] | None = None,
    dropout: float = 0.1,
    build: str = "card",  # where the model is made: card, host (its draws observed), file (its bytes kept)
    plans: pathlib.Path | None = None,
    fused: bool = False,  # attention's own kernels, their deterministic ones
    bf16: bool = False,  # autocast
) -> recipe.Run:
    c = SHAPES[shape]
    step_oracle.set_card(card, plans=plans)
    torch.use_deterministic_algorithms(fused)
    attention = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION] if fused else [SDPBackend.MATH]
    torch.manual_seed(c.seed)
    text = corpus(folder.parent / "corpus.txt")
    run = recipe.Run(
        folder,
        corpus=text,
        promises=promises(steps),
        schedule=schedule,
        sampler={
            "kind": "randint offsets 1",
            "batch": c.batch,
            "context": c.context,
            "seed": 7,
            "bound": text.stat().st_size - c.context,
        },
    )
    config = demo.Config(**{**vars(c), "dropout": dropout})
    if build == "file":
        model = demo.GPT(config).to("oracle")
    else:
        model = run.build(lambda: demo.GPT(config), seed=c.seed if build == "host" else None)
    opt = torch.optim.AdamW(
        model.parameters(), lr=c.learning_rate, **{optimizer: True} if optimizer != "for-loop" else {"foreach": False}
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(attention), torch.autocast("oracle", torch.bfloat16, enabled=bf16):
            loss: torch.Tensor = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if schedule is not None:
            for group in opt.param_groups:
                group["lr"] = rate(schedule, len(run.about["losses"]))
        opt.step()
        return loss.detach()

    for _ in range(steps):
        run.step(model, opt, step)
    run.close()
    return run


def rate(schedule: dict[str, Any], step: int) -> float:
    """As a script would write it."""
    import math

    top, least, warmup, decay = (schedule[k] for k in ("lr", "least", "warmup", "decay"))
    if step < warmup:
        return float(top * (step + 1) / (warmup + 1))
    if step > decay:
        return float(least)
    ratio = (step - warmup) / (decay - warmup)
    return float(least + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (top - least))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--card", default="h100-sxm")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--optimizer", default="foreach")
    parser.add_argument("--fused", action="store_true", help="attention's own kernels")
    parser.add_argument("--bf16", action="store_true", help="under autocast")
    parser.add_argument("--planned", action="store_true", help="with a plan table that splits a product")
    args = parser.parse_args()
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    plans = plan_table(args.folder.with_suffix(".plans.json"), args.card) if args.planned else None
    train(
        args.folder,
        card=args.card,
        steps=args.steps,
        shape=args.shape,
        optimizer=args.optimizer,
        plans=plans,
        fused=args.fused,
        bf16=args.bf16,
    )
    corpus_path = str(args.folder.parent / "corpus.txt")
    text = recipe.write(args.folder, corpus_path, plans=str(plans) if plans else None)
    out = args.folder.with_suffix(".recipe.json")
    out.write_text(text + "\n")
    print(f"{out}: {len(text)} bytes")


if __name__ == "__main__":
    main()
