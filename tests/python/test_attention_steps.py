"""Training steps through the dispatcher's own attention: recorded, replayed op by op and end to end, on four cards."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent

CODE = """
import json, sys, torch, step_oracle
import torch.nn.functional as F
from torch import nn
sys.path.insert(0, {folder!r})
import gpt
dtype, model = getattr(torch, {dtype!r}), {model!r}
step_oracle.set_card({card!r})

class Llama(nn.Module):  # grouped keys, expanded as transformers does it; an additive mask of causality and padding
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(65, 128), nn.Linear(128, 65, bias=False)
        self.q, self.kv, self.out = nn.Linear(128, 128), nn.Linear(128, 64), nn.Linear(128, 128)
    def forward(self, tokens, targets):
        b, t = tokens.shape
        x = self.embed(tokens)
        q = self.q(x).view(b, t, 4, 32).transpose(1, 2)
        k, v = (y.view(b, t, 1, 32).transpose(1, 2).expand(b, 4, t, 32).reshape(b, 4, t, 32)
                for y in self.kv(x).split(32, dim=2))
        mask = torch.full((t, t), float("-inf"), device=x.device).triu(1).expand(b, 1, t, t).clone()
        mask[1, :, :, :7] = float("-inf")  # padding on the left: the first rows see nothing
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), dropout_p=0.1)
                         .transpose(1, 2).reshape(b, t, 128))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

def training(tokens):
    torch.manual_seed(tokens)
    run = gpt.Training(gpt.Shape(width=128, heads=2, layers=1, tokens=tokens, batch=2, dropout=0.1), "fused", "oracle")
    if model == "llama":
        run.model = Llama().to("oracle")
        run.optimizer = torch.optim.AdamW(run.model.parameters(), fused=True)
    return run

results = []
for tokens in {tokens}:
    # Up to 128 keys: two thread blocks a head. More: their order is a race, and one block takes all keys.
    torch.use_deterministic_algorithms(tokens > 128)
    run, path = training(tokens), {path!r} + f"/{{tokens}}.trace"
    with step_oracle.record(path, keep="state", model=run.model, optimizer=run.optimizer):
        with torch.autocast("oracle", dtype=dtype, enabled=dtype != torch.float32):
            loss = run.model(run.tokens, run.targets)
        loss.backward()
        run.optimizer.step()
    names = [op.op for op in step_oracle.load(path).ops]
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(path, mode=mode)
        results.append(dict(tokens=tokens, mode=mode, ok=report.ok, counts=report.counts,
                            reads=report.reads_from_recording, divergence=str(report.divergence),
                            loss=float(loss), outputs=report.outputs,
                            attention=sum("_scaled_dot_product_efficient_attention" in n for n in names)))
print(json.dumps(results))
"""


def steps(card: str, dtype: str, model: str, tokens: tuple[int, ...], path: pathlib.Path) -> list[dict[str, Any]]:
    code = CODE.format(folder=str(HERE), card=card, dtype=dtype, model=model, tokens=tokens, path=str(path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def check(results: list[dict[str, Any]], expected: int) -> None:
    assert len(results) == expected
    for r in results:
        assert r["ok"] and r["divergence"] == "None", r
        assert r["counts"]["mismatch"] == 0 and r["counts"]["unmodelled"] == 0, r
        assert r["counts"]["match"] > 40 and r["outputs"] > 40 and r["reads"] == 0, r
        assert r["attention"] == 2, r  # a layer's forward and backward


@pytest.mark.parametrize("card", ["t4", "a100-sxm-80gb", "l4", "h100-pcie"])
def test_a_gpt_step_with_fused_attention_replays(card: str, tmp_path: pathlib.Path) -> None:
    check(steps(card, "float32", "gpt", (128, 256, 500), tmp_path), 6)


def test_a_float16_step_on_a_t4(tmp_path: pathlib.Path) -> None:
    check(steps("t4", "float16", "gpt", (128, 256), tmp_path), 4)


@pytest.mark.parametrize(("card", "dtype"), [("t4", "float32"), ("l4", "float32"), ("l4", "bfloat16")])
def test_grouped_keys_and_an_additive_mask(card: str, dtype: str, tmp_path: pathlib.Path) -> None:
    check(steps(card, dtype, "llama", (100, 200), tmp_path), 4)
