"""Batches of a corpus by a run's own sampler: versioned, so that a recipe names one (docs/recipe-format.md)."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch

from step_oracle import device

from . import digests
from .canonical import Block, Malformed

KINDS = {
    "randint offsets 1": "kind tokens batch context micro seed skip bound",
    "contiguous 1": "kind tokens batch context micro start",
}
MOST_SKIPPED = 1 << 34
TOKENS = {"bytes": (torch.uint8, 1), "uint16": (torch.uint16, 2)}


def check(s: Block) -> None:
    kind = s.raw("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise s.fail("kind", f"give one of {', '.join(KINDS)}")
    s.only(KINDS[kind])
    if s.raw("tokens") not in list(TOKENS):
        raise s.fail("tokens", f"give one of {', '.join(TOKENS)}")
    for field, least in (
        ("batch", 1),
        ("context", 1),
        ("micro", 1),
        ("seed", 0),
        ("skip", 0),
        ("bound", 1),
        ("start", 0),
    ):
        value = s.raw(field)
        if field in s and (not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 62):
            raise s.fail(field, f"give a whole number from {least}")
    if "seed" in s and s.raw("seed") >= 1 << 32:
        raise s.fail("seed", f"torch's generator takes 32 bits: give {s.raw('seed') % (1 << 32)}, which draws the same")
    if "skip" in s and s.raw("skip") > MOST_SKIPPED:
        raise s.fail("skip", f"a sampler draws after at most {MOST_SKIPPED} outputs: its generator has to make each")
    if int(s.raw("batch")) * int(s.raw("context")) * int(s.raw("micro")) > 1 << 30:
        raise s.fail("batch", "give at most 2^30 tokens a step")


class Corpus:
    """The file's tokens, mapped and not read; its digest is taken once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        if not self.path.is_file():
            raise ValueError(f"the corpus {self.path} is no file")
        self.size = self.path.stat().st_size
        if self.size == 0:
            raise ValueError(f"the corpus {self.path} is empty")
        self.bytes = torch.from_file(str(self.path), shared=False, size=self.size, dtype=torch.uint8)
        self.digest = digests.of_tensor(self.bytes)

    def tokens(self, kind: str) -> torch.Tensor:
        dtype, width = TOKENS[kind]
        if self.size % width:
            raise ValueError(f"the corpus {self.path} has {self.size} bytes, which are no whole {kind} tokens")
        return self.bytes.view(dtype)


class TorchOffsets:
    """extension().Offsets by torch itself: for a process that trains on CUDA."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def skip(self, outputs: int) -> None:
        torch.randint(1 << 20, (outputs,), generator=self._generator)  # one 32-bit output each

    def next(self, count: int, bound: int) -> list[int]:
        return [int(n) for n in torch.randint(bound, (count,), generator=self._generator)]


def offsets(seed: int) -> Any:
    return device.extension().Offsets(seed) if device.is_loaded() else TorchOffsets(seed)


class Sampler:
    """``next()`` gives the batches of step 0, 1, ...: {"x.0": tokens, "y.0": the next tokens, "x.1": ...}, int64."""

    def __init__(self, block: Block, corpus: Corpus, first: int = 0) -> None:
        self._kind = block.text("kind")
        self._tokens = corpus.tokens(block.text("tokens"))
        self._batch, self._context, self._micro = (block.integer(f, 1) for f in ("batch", "context", "micro"))
        n = len(self._tokens)
        if self._kind == "contiguous 1":
            self._at = block.integer("start")
            if self._at + self._batch * self._context + 1 > n:
                raise Malformed(f"{n} tokens are too few for one batch from token {self._at}")
            for _ in range(first * self._micro):
                self._advance()
            return
        self._bound = block.integer("bound", 1)
        if self._bound > n - self._context:
            raise Malformed(
                f"sampler.bound is {self._bound}, and a corpus of {n} tokens holds {n - self._context} rows of "
                f"{self._context} tokens and the next one"
            )
        self._offsets = offsets(block.integer("seed"))
        words = 2 if self._bound >= 1 << 28 else 1
        self._offsets.skip(block.integer("skip") + first * self._micro * self._batch * words)

    def _advance(self) -> int:
        at, span = self._at, self._batch * self._context
        self._at += span
        if self._at + span + 1 > len(self._tokens):
            self._at = 0
        return at

    def next(self) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = {}
        for i in range(self._micro):
            if self._kind == "contiguous 1":
                at = self._advance()
                span = self._tokens[at : at + self._batch * self._context + 1].to(torch.int64)
                x, y = (t.reshape(self._batch, self._context) for t in (span[:-1], span[1:]))
            else:
                starts: list[int] = self._offsets.next(self._batch, self._bound)
                rows = torch.stack([self._tokens[s : s + self._context + 1].to(torch.int64) for s in starts])
                x, y = rows[:, :-1], rows[:, 1:]
            out[f"x.{i}"], out[f"y.{i}"] = (t.clone(memory_format=torch.contiguous_format) for t in (x, y))
        return out


def describe(**fields: Any) -> Block:
    """A sampler's block from keyword arguments, checked: kind, batch, context, seed, ..."""
    block = Block(
        {
            "tokens": "bytes",
            "micro": 1,
            **({"skip": 0} if "randint" in fields.get("kind", "") else {"start": 0}),
            **fields,
        },
        "sampler",
    )
    check(block)
    return block
