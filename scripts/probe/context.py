"""Where the sections run: a CUDA card, or the virtual card of a dry run."""

from __future__ import annotations

import pathlib
import time
from dataclasses import dataclass, field
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass
class Context:
    dry: bool
    work: pathlib.Path
    deadline: float = 0.0  # time.monotonic(), of the section that runs
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        return "oracle" if self.dry else "cuda"

    @property
    def capability(self) -> tuple[int, int]:
        found: tuple[int, int] = getattr(torch, self.device).get_device_capability()
        return found

    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def digest(self, t: torch.Tensor) -> str:
        """BLAKE3 of the logical bytes: by the card's own kernel where there is one, else by the host."""
        from step_oracle import _record

        if not self.dry and t.is_cuda:
            found = _record.card_digests([t])
            if found is not None:
                return str(found[0])
        return host_digest(t)

    def fill(self, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Values in [-1, 1) from integers, so that they are the same bytes everywhere: multiples of 2^-23."""
        n = 1
        for size in shape:
            n *= size
        at = "cpu" if self.dry else "cuda"
        x = torch.arange(n, dtype=torch.int64, device=at) + (seed * 0x9E3779B1 & 0xFFFFFFFF)
        x = (x * 0x85EBCA6B) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0xC2B2AE35) & 0xFFFFFFFF
        x = (x ^ (x >> 13)) >> 8
        y = (x.to(torch.float32) * 2.0**-23 - 1.0).view(shape)
        return y.to(dtype).to(self.device)


def host_digest(t: torch.Tensor) -> str:
    from step_oracle import _record

    flat = t.detach().cpu().contiguous().flatten()
    return str(_record.blake3(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""))


def bits(t: torch.Tensor) -> torch.Tensor:
    """As integers of the same width, on the host."""
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.detach().cpu().contiguous().flatten().view(view)


def first_differences(got: torch.Tensor, want: torch.Tensor, most: int = 8) -> list[Any]:
    """[index, got, want] as hexadecimal bit patterns."""
    if got.element_size() != want.element_size():
        return [["bytes", got.element_size(), want.element_size()]]
    a, b = bits(got), bits(want)
    if a.numel() != b.numel():
        return [["elements", a.numel(), b.numel()]]
    mask = (1 << 8 * got.element_size()) - 1
    at = (a != b).nonzero().flatten()[:most].tolist()
    return [[i, f"{int(a[i]) & mask:x}", f"{int(b[i]) & mask:x}"] for i in at]
