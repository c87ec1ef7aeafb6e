"""Sections 6 and 7: real training steps, recorded; and what recording costs.

A unit of section 6 is a configuration MODEL/DTYPE/RUNG, in a process of its own (CUBLAS_WORKSPACE_CONFIG is read once
a process): six steps, a trace with digests; a trace of the demo's step 0 with state. The 124 M model's state is its
seed's. A unit of section 7 is a configuration bare, under the empty recorder, with digests on card and host.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from .context import ROOT, Context

SECONDS, COST_SECONDS = 150, 50
STEPS = 6
RUNGS = ("stock", "pinned")


@dataclass(frozen=True)
class Size:
    width: int
    heads: int
    layers: int
    context: int
    batch: int


VOCABULARY = 50304  # GPT-2's, up to a multiple of 64
SIZES = {"demo": Size(128, 4, 4, 64, 12), "124m": Size(768, 12, 12, 1024, 4), "dry": Size(16, 2, 1, 8, 2)}


def units(ctx: Context) -> list[str]:
    if ctx.dry:
        return ["dry/float32/stock", "dry/bfloat16/pinned"]
    return [f"{m}/{d}/{r}" for m in ("demo", "124m") for d in ("float32", "bfloat16") for r in RUNGS]


def cost_units(ctx: Context) -> list[str]:
    return ["dry/float32/stock"] if ctx.dry else ["demo/float32/stock", "124m/float32/stock", "124m/bfloat16/stock"]


def run(ctx: Context, unit: str) -> dict[str, Any]:
    return child(ctx, unit, "record")


def run_cost(ctx: Context, unit: str) -> dict[str, Any]:
    return child(ctx, unit, "cost")


def child(ctx: Context, unit: str, what: str) -> dict[str, Any]:
    settings = dict(os.environ)
    settings["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if unit.endswith("/pinned"):
        settings["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    left = max(10.0, ctx.deadline - time.monotonic() + 20)
    command = [sys.executable, "-m", "probe.steps", what, unit, ctx.device, str(ctx.work)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=left)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{unit} was not done after {left:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{unit}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- in the child ---------------------------------------------------------------------------------------------------


def pinned() -> list[str]:
    """What 'pinned' sets; returns what this torch could not set."""
    missing = []
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    m = torch.backends.cuda.matmul
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        try:
            setattr(m, name, (False, False))  # no reduced precision, no split-K
        except (TypeError, RuntimeError, AttributeError):
            setattr(m, name, False)
            missing.append(f"{name}: split-K stays")
    return missing


def training(model: str, device: str) -> Any:
    """The demo's training; the 124 M model has GPT-2's width, depth and vocabulary."""
    from step_oracle.demo import Config, Training

    s = SIZES[model]
    config = Config(width=s.width, heads=s.heads, layers=s.layers, context=s.context, batch=s.batch)
    if model != "124m":
        return Training(config, device)
    t = Training(config, "cpu")
    tokens = torch.nn.Embedding(VOCABULARY, s.width)
    torch.nn.init.normal_(tokens.weight, 0.0, 0.02)
    t.model.tokens, t.model.head = tokens, torch.nn.Linear(s.width, VOCABULARY, bias=False)
    t.model.head.weight = tokens.weight
    t.model.to(device)
    t.device, t.optimizer = device, torch.optim.AdamW(t.model.parameters(), lr=config.learning_rate)
    return t


def attention(rung: str, device: str) -> Any:
    """Torch's own choice on stock; the math path where it is pinned, and on the virtual card."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH) if rung == "pinned" or device == "oracle" else contextlib.nullcontext()


def step(t: Any, dtype: str, rung: str, device: str) -> Any:
    amp = torch.autocast(device, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
    x, y = t.batch()
    with amp, attention(rung, device):
        loss = t.model(x, y)
    t.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(t.model.parameters(), 1.0)
    t.optimizer.step()
    return loss.detach()


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def record_steps(unit: str, device: str, work: pathlib.Path) -> dict[str, Any]:
    import step_oracle
    from step_oracle.demo import corpus

    model, dtype, rung = unit.split("/")
    missing = pinned() if rung == "pinned" else []
    name = unit.replace("/", "-")
    t = training(model, device)
    text = hashlib.sha256(corpus()).hexdigest()  # Python's own manual: it differs between versions
    result: dict[str, Any] = {"traces": [], "losses": [], "not_set": missing, "seed": t.config.seed, "text": text}

    def record(path: pathlib.Path, steps: int, keep: str) -> None:
        with step_oracle.record(path, keep=keep, model=t.model, optimizer=t.optimizer) as rec:  # type: ignore[arg-type]
            losses = [step(t, dtype, rung, device) for _ in range(steps)]
        result["losses"] += [float(x).hex() for x in losses]
        summary = rec.summary()
        result["traces"].append(
            {
                "name": path.name,
                "steps": steps,
                "keep": keep,
                "ops": summary["ops"],
                "complete": summary["complete"],
                "reason": summary["reason"],
                "bytes": path.stat().st_size,
            }
        )

    steps = 2 if model == "dry" else STEPS
    if model == "124m":
        record(work / f"{name}.trace", steps, "digests")
    else:
        record(work / f"{name}.step0.trace", 1, "state")
        record(work / f"{name}.trace", steps - 1, "digests")
    return result


def cost(unit: str, device: str) -> dict[str, Any]:
    """Milliseconds a step: the median of five after two."""
    import step_oracle
    from step_oracle import _record

    model, dtype, rung = unit.split("/")
    t = training(model, device)
    count, warm = (1, 1) if model == "dry" else (5, 2)

    def timed() -> float:
        times = []
        for i in range(count + warm):
            synchronise(device)
            begun = time.perf_counter()
            step(t, dtype, rung, device)
            synchronise(device)
            if i >= warm:
                times.append(time.perf_counter() - begun)
        return round(1e3 * sorted(times)[len(times) // 2], 3)

    found: dict[str, Any] = {"bare": timed()}
    _record.set_empty(True)
    found["empty recorder"] = timed()
    _record.set_empty(False)
    ways = {"metadata": {"digests": False}, "digests on the host": {"card_digests": False}}
    if device == "cuda":
        ways["digests on the card"] = {}
    for name, options in ways.items():
        rec = step_oracle.record(None, model=t.model, optimizer=t.optimizer, **options)  # type: ignore[arg-type]
        with rec:
            found[name] = timed()
        found[f"{name}: launches"] = rec.summary()["card_launches"]
    return found


def main() -> None:
    what, unit, device, work = sys.argv[1:]
    import step_oracle  # noqa: F401
    from step_oracle import plans

    if device == "oracle":
        plans.quiet()
        step_oracle.set_card("h100-pcie")
    result = record_steps(unit, device, pathlib.Path(work)) if what == "record" else cost(unit, device)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
