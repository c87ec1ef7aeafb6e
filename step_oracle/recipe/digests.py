"""Digests, with the virtual card where it is loaded and without it where a process trains on CUDA."""

from __future__ import annotations

import torch

from step_oracle import _record, device


def of_bytes(data: bytes) -> str:
    return str(_record.blake3(data))


def of_tensor(t: torch.Tensor) -> str:
    """Of the logical bytes, row-major."""
    if device.is_loaded() and t.device.type != "cuda":
        return str(device.extension().digest(t.detach()))
    host = t.detach().cpu().contiguous().view(-1)
    return of_bytes(host.view(torch.uint8).numpy().tobytes() if host.numel() else b"")
