"""Small GPTs for tests and benches: one class, its shapes, its optimizers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    vocab: int = 65
    width: int = 32
    heads: int = 4
    kv_heads: int | None = None  # fewer than heads: grouped-query attention
    layers: int = 2
    tokens: int = 16
    batch: int = 2
    dropout: float = 0.0
    bias: bool = True
    tied: bool = False


SHAPES = {
    "plain": Shape(),
    "tied": Shape(tied=True, dropout=0.1),
    "ragged": Shape(width=96, heads=3, tokens=77, batch=3, vocab=101),
    "gqa": Shape(width=64, heads=4, kv_heads=2, bias=False),
}
# The two of the recorder's bench: 0.8 M and 10.8 M parameters.
SMALL = Shape(width=128, heads=4, layers=4, tokens=64, batch=12, tied=True)
LARGE = Shape(width=384, heads=6, layers=6, tokens=256, batch=4, tied=True)


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s, self.head = s, s.width // s.heads
        kv = (s.kv_heads or s.heads) * self.head
        self.widths = [s.width, kv, kv]
        self.ln1 = nn.LayerNorm(s.width, bias=s.bias)
        self.qkv = nn.Linear(s.width, sum(self.widths), bias=s.bias)
        self.proj = nn.Linear(s.width, s.width, bias=s.bias)
        self.ln2 = nn.LayerNorm(s.width, bias=s.bias)
        self.fc = nn.Linear(s.width, 4 * s.width, bias=s.bias)
        self.fc2 = nn.Linear(4 * s.width, s.width, bias=s.bias)
        self.drop = nn.Dropout(s.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, -1, self.head).transpose(1, 2)
                   for y in self.qkv(self.ln1(x)).split(self.widths, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.s.dropout if self.training else 0.0, is_causal=True,
                                           enable_gqa=k.shape[1] != q.shape[1])
        x = x + self.drop(self.proj(y.transpose(1, 2).contiguous().view(b, t, c)))
        return x + self.drop(self.fc2(F.gelu(self.fc(self.ln2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(s.vocab, s.width), nn.Embedding(s.tokens, s.width)
        self.drop = nn.Dropout(s.dropout)
        self.h = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.lnf = nn.LayerNorm(s.width, bias=s.bias)
        self.head = nn.Linear(s.width, s.vocab, bias=False)
        if s.tied:
            self.wte.weight = self.head.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.lnf(x)).flatten(0, 1), targets.flatten())


OPTIMIZERS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}


class Training:
    """A model, its AdamW and its batch, from a seed."""

    def __init__(
        self, shape: str | Shape = "plain", optimizer: str = "foreach", device: str = "cpu", seed: int = 0
    ) -> None:
        s = SHAPES[shape] if isinstance(shape, str) else shape
        torch.manual_seed(seed)
        self.model = GPT(s).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **OPTIMIZERS[optimizer])
        g = torch.Generator().manual_seed(seed + 1)
        size = (s.batch, s.tokens)
        self.tokens, self.targets = (torch.randint(0, s.vocab, size, generator=g).to(device) for _ in "xy")
        self.losses: list[torch.Tensor] = []

    def step(self) -> torch.Tensor:
        loss = self.model(self.tokens, self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())
        return loss.detach()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of everything that a step changes."""
        out = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        for i, s in enumerate(self.optimizer.state.values()):
            out |= {f"{i}.{k}": torch.as_tensor(v).clone() for k, v in s.items()}
        return out | {f"loss.{i}": x.clone() for i, x in enumerate(self.losses)}


def without_dropout(shape: Shape) -> Shape:
    return replace(shape, dropout=0.0)
