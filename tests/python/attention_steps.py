"""A GPT step with fused attention at a real number of keys: the operators it dispatches, phase by phase, and, on the
virtual card, its replays; as JSON. Runs in a process of its own:

    python attention_steps.py cuda OUT.json              fake tensors, no CUDA needed
    python attention_steps.py oracle OUT.json CARD...
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import dispatch_steps  # first: it loads the fake CUDA before torch
import gpt
import torch

KEYS = (128, 256, 500)
BACKENDS = {"math": 0, "flash": 1, "efficient": 2, "cudnn": 3}
DTYPES = {"float32": ("efficient",), "bfloat16": ("math", "flash", "cudnn")}  # and what a card may choose for it
RACING = "_scaled_dot_product_efficient_attention_backward"

gpt.SHAPES |= {str(n): gpt.Shape(width=32, heads=2, layers=1, tokens=n, dropout=0.1, tied=True) for n in KEYS}



def listed(device: str, dtype: str, keys: int) -> dict[str, Any]:
    phases: dict[str, list[str]] = {}
    try:
        dispatch_steps.two_steps(device, "fused", dtype, str(keys), phases)
    except NotImplementedError as error:
        return {"phases": phases, "refused": str(error)}
    return {"phases": phases, "refused": None}


def on_cuda() -> dict[str, Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    dispatch_steps.let_fake_tensors_pass_for_cuda()
    assert dispatch_steps.fake_cuda is not None
    out = {}
    for dtype, backends in DTYPES.items():
        for backend, keys in itertools.product(backends, KEYS):
            dispatch_steps.fake_cuda.fake_cuda_choose_attention(BACKENDS[backend])
            with FakeTensorMode():
                out[f"{dtype}/{backend}/{keys}"] = listed("cuda", dtype, keys)
    return out


@contextlib.contextmanager
def settled(dtype: str, keys: int) -> Iterator[None]:
    """Where the default backward is a race: its blocks in step for the memory-efficient kernel (more than two key tiles
    of 64), the deterministic kernel for FlashAttention-2 (of 128)."""
    import step_oracle

    torch.use_deterministic_algorithms(dtype == "bfloat16" and keys > 256)
    order = [{"call": None, "value": "in step"}]
    races = dtype == "float32" and keys > 128
    with step_oracle.choices({RACING: {"dq_order": order}}) if races else contextlib.nullcontext():
        yield
    torch.use_deterministic_algorithms(False)


def replays(dtype: str, keys: int) -> list[dict[str, Any]]:
    import step_oracle

    reports = []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/step.trace"
        with settled(dtype, keys):
            run = gpt.Training(str(keys), "fused", "oracle")
            with step_oracle.record(path, keep="state", model=run.model, optimizer=run.optimizer):
                with torch.autocast("oracle", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
                    loss = run.model(run.tokens, run.targets)
                loss.backward()
                run.optimizer.step()
        for mode in ("op-local", "end-to-end"):
            r = step_oracle.replay(path, mode=mode)
            reports.append({"mode": mode, "card": r.card, "ok": r.ok, "counts": r.counts, "outputs": r.outputs,
                            "reads": r.reads_from_recording, "divergence": r.divergence and str(r.divergence),
                            "choices": [(c["name"], c["value"]) for c in r.choices]})
    return reports


def on_oracle(cards: list[str]) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import step_oracle

    out = {}
    for card, dtype, keys in itertools.product(cards, DTYPES, KEYS):
        step_oracle.set_card(card)
        for backends in (None, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            with contextlib.nullcontext() if backends is None else sdpa_kernel(backends):
                with settled(dtype, keys):
                    one = listed("oracle", dtype, keys)
                if one["refused"] is None:
                    one["replays"] = replays(dtype, keys)
            out[f"{card}/{dtype}/{keys}" + ("" if backends is None else "/switched")] = one
            if one["refused"] is None or "sdpa_kernel" not in one["refused"]:
                break
    return out


def main() -> None:
    device, target, *cards = sys.argv[1:]
    warnings.simplefilter("ignore")
    results = on_cuda() if device == "cuda" else on_oracle(cards)
    pathlib.Path(target).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
