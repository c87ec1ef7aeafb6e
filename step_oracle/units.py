"""Matrix units by name: what one maker's instruction adds, chained over k (docs/plan-table.md, "Units")."""

from __future__ import annotations

from typing import Any

import torch

_TF32 = -0x2000  # the 19 upper bits of a float32


def names() -> list[dict[str, Any]]:
    """The units that can be computed: ``name``, ``terms``, ``arithmetic``, ``grade`` and ``source`` of each."""
    from . import device

    rows: list[dict[str, Any]] = device.extension().units()
    return rows


def product(unit: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """c + a @ b as float32, added as the unit adds: ``product("amd-cdna3-bf16", a, b)`` with bfloat16 a and b.

    The factors must hold values of the unit's type; float32 factors of a TF32 unit are cut to what it reads. A
    library's kernel may cut k otherwise than in one pass: that is a plan, and not known here.
    """
    from . import device

    def values(t: torch.Tensor) -> Any:
        wide = t.detach().cpu().float().contiguous()
        if unit.endswith("tf32") or unit.endswith("xf32"):
            wide = (wide.view(torch.int32) & _TF32).view(torch.float32)
        return wide.numpy()

    out = torch.empty(a.shape[0], b.shape[1]) if c is None else c.detach().cpu().float().contiguous().clone()
    device.extension().unit_product(unit, values(a), values(b), out.numpy(), c is not None)
    return out
