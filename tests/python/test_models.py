"""One training step of models that no one here wrote, small, random weights: recorded on the virtual card, replayed."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle

transformers = pytest.importorskip("transformers", reason="the models come from it: pip install transformers")

WIDTH, TOKENS, VOCABULARY = 48, 17, 211
Built = tuple[nn.Module, dict[str, torch.Tensor]]


def text(padded: bool = False) -> dict[str, torch.Tensor]:
    ids = torch.randint(2, VOCABULARY, (3, TOKENS))
    batch = {"input_ids": ids, "labels": ids.clone()}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][1, 11:] = 0
    return batch


def pictures() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 3, 16, 16), "y": torch.randint(0, 10, (3,))}


def bert() -> Built:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    return transformers.BertForMaskedLM(config), text(padded=True)


def gpt2() -> Built:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config), text()


def llama() -> Built:
    """RMS norm, SwiGLU, rotary positions, two heads of keys for four of queries."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), text()


def t5() -> Built:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=12, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), text()


class Patches(nn.Module):
    """Pictures to rows of patches, through unfold and a linear layer; then `body`, a norm, a head."""

    def __init__(self, width: int, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(48, width), body
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        rows = self.body(self.embed(F.unfold(x, 4, stride=4).transpose(1, 2)))
        return (F.cross_entropy(self.head(self.norm(rows).mean(1)), y, label_smoothing=0.1),)


class ViTLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=16,
            patch_size=4,
        )  # fmt: skip
        model = transformers.ViTModel(config)
        self.layers = model.layers if hasattr(model, "layers") else model.encoder.layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = layer(rows)
            rows = rows[0] if isinstance(rows, tuple) else rows
        return rows


def vit() -> Built:
    return Patches(WIDTH, ViTLayers()), pictures()


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()

        def mlp(n: int) -> nn.Module:
            return nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * n, n))

        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = mlp(tokens), mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


def mixer() -> Built:
    return Patches(40, nn.Sequential(MixerBlock(16, 40), MixerBlock(16, 40))), pictures()


MODELS: list[Callable[[], Built]] = [bert, gpt2, llama, t5, vit, mixer]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_a_step_replays(build: Callable[[], Built], precision: str, tmp_path: pathlib.Path) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    step_oracle.set_card("a100-sxm-80gb")
    model, batch = build()
    model.train().to("oracle")
    on_card: dict[str, Any] = {name: tensor.to("oracle") for name, tensor in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with step_oracle.record(tmp_path / "step.trace", model=model, optimizer=optimizer, keep="state"):
        with sdpa_kernel(SDPBackend.MATH), torch.autocast("oracle", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model(**on_card)[0]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert 1.0 < float(loss.detach()) < 8.0
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(tmp_path / "step.trace", mode=mode)
        assert report.ok, report.divergence
        counts = report.counts
        assert counts["match"] > 300 and not counts["mismatch"] and not counts["unmodelled"] and not counts["carried"]
