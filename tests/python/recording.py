"""How the recorder's tests record: into memory, looked at as plain dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blake3
import torch

import step_oracle


def recorded(block: Callable[[], object], **options: Any) -> dict[str, Any]:
    """The records of ``block()``: ops, events, names, settled; and the summary."""
    rec = step_oracle.record(None, **options)
    with rec:
        result = block()
    return {**rec._recording.records(), "summary": rec.summary(), "result": result}


def digest(t: torch.Tensor) -> str:
    """BLAKE3 of the logical bytes, by the public implementation."""
    flat = t.detach().cpu().contiguous().flatten()
    return str(blake3.blake3(bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b"").hexdigest())


def names(records: dict[str, Any]) -> list[str]:
    return [op["name"] for op in records["ops"]]


def find(records: dict[str, Any], name: str, nth: int = 0) -> dict[str, Any]:
    found = [op for op in records["ops"] if op["name"] == name]
    assert len(found) > nth, f"no {name} #{nth} among {names(records)}"
    op: dict[str, Any] = found[nth]
    return op


def texts(records: dict[str, Any]) -> str:
    return "\n".join(e["text"] for e in records["events"])
