"""The demo: a byte-level GPT, trained for some steps on a virtual card, recorded, replayed, broken and moved.

Everything here is what a user would write, so the file also serves as an example of the API.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import pathlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class Config:
    """Shape of the model and of a batch."""

    width: int = 128
    heads: int = 4
    layers: int = 4
    context: int = 64
    batch: int = 12
    dropout: float = 0.1
    learning_rate: float = 1e-3
    seed: int = 1234


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.dropout = c.heads, c.dropout
        self.ln1 = nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.proj = nn.Linear(c.width, c.width)
        self.ln2 = nn.LayerNorm(c.width)
        self.fc1 = nn.Linear(c.width, 4 * c.width)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(4 * c.width, c.width)
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.ln1(x)).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, w)))
        return x + self.drop(self.fc2(self.act(self.fc1(self.ln2(x)))))


class GPT(nn.Module):
    """Bytes in, logits over the next byte out; input and output embeddings are tied."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, c.width)
        self.positions = nn.Embedding(c.context, c.width)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, 256, bias=False)
        self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("proj.weight", "fc2.weight"))
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * c.layers) if residual else 0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def corpus() -> bytes:
    """English text that ships with Python: the manual's topics behind ``help()``."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("this Python has no pydoc_data/topics.py, whose text the demo trains on")
    return pathlib.Path(spec.origin).read_bytes()


class Training:
    """A training run on device "oracle"; the card is whichever step_oracle.set_card chose."""

    def __init__(self, config: Config = Config(), device: str = "oracle", **optimizer: Any) -> None:  # noqa: B008
        self.config, self.device = config, device
        torch.manual_seed(config.seed)
        self.model = GPT(config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate, **optimizer)
        self.text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8).long()
        self.sampler = torch.Generator().manual_seed(config.seed)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        starts = torch.randint(len(self.text) - c.context - 1, (c.batch,), generator=self.sampler)
        rows = torch.stack([self.text[s : s + c.context + 1] for s in starts])
        return rows[:, :-1].contiguous().to(self.device), rows[:, 1:].contiguous().to(self.device)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            loss: torch.Tensor = self.model(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def run(self, steps: int, seen: Callable[[int, float], None] = lambda step, loss: None) -> None:
        for i in range(steps):
            seen(i, float(self.step(*self.batch())))


@contextlib.contextmanager
def faulty(module: nn.Module, op: str, element: int, bit: int) -> Iterator[None]:
    """A card with a fault: within, ``op`` computes as ever and then has one bit of its result flipped, in the first
    call of ``module``. The kernel itself is replaced, so the recorder sees what it would see on such a card."""
    kernel = torch.library.get_kernel(op, "PrivateUse1")
    inside = False

    def enter(*_: Any) -> None:
        nonlocal inside
        inside = True

    def leave(*_: Any) -> None:
        nonlocal inside
        inside = False

    def with_fault(keys: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        out = kernel.call_boxed(keys, *args, **kwargs)
        if inside:
            ctypes.c_uint32.from_address(out.data_ptr() + 4 * element).value ^= 1 << bit
            inside = False
        return out

    hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave)
    library = torch.library.Library(op.split("::")[0], "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the replaced kernel, which is the point
            library.impl(op.split("::")[1], with_fault, "PrivateUse1", with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()
        for hook in hooks:
            hook.remove()
