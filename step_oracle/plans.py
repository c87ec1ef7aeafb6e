"""Plan tables, and reading a plan off the bytes of a matrix product (docs/plan-table.md)."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from .cards import shipped_plans


def show(card: str, plans: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The rows of a plan table: ``card``, ``library``, ``rows`` with ``product``, ``plan`` and ``source``.

    Without a path, the table that comes with step-oracle for the card; no rows where there is none.
    """
    from . import device

    text = pathlib.Path(plans).read_text() if plans is not None else shipped_plans(card)
    if text is None:
        return {"card": card, "library": None, "rows": []}
    table: dict[str, Any] = device.extension().plan_table(text)
    if table["card"] != card:
        raise ValueError(f"{plans} is a plan table of {table['card']}, not of {card}; give a table of this card")
    return table


def fit(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None, *, card: str,
        progress: Callable[[int, int], bool] | None = None) -> dict[str, Any]:
    """Which plans turn ``a @ b`` (plus ``bias``) into exactly ``out``, as a card gave it.

    ``matches`` (in words), ``plans`` (as a table's rows spell them), ``ties`` (the matches, where there are several),
    ``tried``, and without a match ``nearest`` with the share of equal elements. ``progress(done, all)`` may return
    False to stop.
    """
    from . import device

    host = [t.detach().cpu() if t is not None else None for t in (a, b, out, bias)]
    found: dict[str, Any] = device.extension().fit_plan(*host, card, progress)
    found["plans"] = [json.loads(p) for p in found["plans"]]
    found["ties"] = found["matches"] if len(found["matches"]) > 1 else []
    return found
