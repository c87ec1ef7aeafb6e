"""A Llama of Hugging Face's transformers, whose attention goes through the dispatcher, recorded and replayed.

Grouped keys: expanded and under an additive mask for padded batches (memory-efficient), or left to torch (math)."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

CODE = """
import json, torch, step_oracle, transformers
step_oracle.set_card("l4")
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=65, max_position_embeddings=64, attention_dropout=0.1, attn_implementation="sdpa")
model = transformers.LlamaForCausalLM(config).to("oracle").train()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens, mask = torch.randint(0, 65, (2, 40)), torch.ones(2, 40, dtype=torch.long)
mask[1, :7] = 0
padding = {{"attention_mask": mask.to("oracle")}} if {padded!r} else {{}}
tokens, dtype = tokens.to("oracle"), getattr(torch, {dtype!r})
with step_oracle.record({path!r}, keep="state", model=model, optimizer=optimizer):
    with torch.autocast("oracle", dtype=dtype, enabled=dtype != torch.float32):
        loss = model(input_ids=tokens, labels=tokens, **padding).loss
    loss.backward()
    optimizer.step()
names = [op.op for op in step_oracle.load({path!r}).ops]
reports = [step_oracle.replay({path!r}, mode=mode) for mode in ("op-local", "end-to-end")]
print(json.dumps(dict(efficient=sum("_scaled_dot_product_efficient_attention" in n for n in names),
                      ok=[r.ok for r in reports], counts=[r.counts for r in reports])))
"""


@pytest.mark.parametrize(
    ("dtype", "padded", "efficient"), [("float32", True, 4), ("bfloat16", True, 4), ("float32", False, 0)]
)
def test_a_llama_step_replays(dtype: str, padded: bool, efficient: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    code = CODE.format(dtype=dtype, padded=padded, path=str(tmp_path / "llama.trace"))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["ok"] == [True, True]
    for counts in result["counts"]:
        assert counts["mismatch"] == 0 and counts["unmodelled"] == 0 and counts["match"] > 500, counts
    assert result["efficient"] == efficient  # two layers, forward and backward
