"""What of a recorded step is less exact, or less portable, than its program says, and what switches each off."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from . import plans
from .cards import PLAN_FOLDER, find_card
from .trace import Record, Trace, load

QUANTILES = (0.5, 0.9, 0.99)
REDUCED_OFF = "torch.backends.cuda.matmul.allow_{}_reduced_precision_reduction = False"
SPLIT_OFF = ("torch.backends.cuda.matmul.allow_{}_reduced_precision_reduction = (False, False), which forbids split K "
             "too; or pin the single pass (docs/plan-table.md)")
FLASH_OFF = "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), whose dropout keeps what is asked for"


@dataclass
class Lint:
    """``reduced``: products whose parts are added in 16 bits; ``split_somewhere``: kinds of product that some cards
    split; ``dropout``: flash attention's keep rates. ``plans_from``: the table that says how the card computed."""

    card: str
    plans_from: str
    products: int = 0
    reduced: list[dict[str, Any]] = field(default_factory=list)
    split_somewhere: list[dict[str, Any]] = field(default_factory=list)
    dropout: list[dict[str, Any]] = field(default_factory=list)

    @property
    def findings(self) -> int:
        return len(self.reduced) + len(self.split_somewhere) + len(self.dropout)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "findings": self.findings}


def lint(trace: str | os.PathLike[str] | Trace, card: str | None = None,
         table: str | os.PathLike[str] | None = None) -> Lint:
    """Reads a trace. ``table``: a plan table of its card; without it, the card's that comes along.

    The share of elements that differ from the exact product, and by how much, needs the product's bytes: a trace with
    keep="all". The exact product is the float64 one, rounded once to the product's type.
    """
    trace = trace if isinstance(trace, Trace) else load(trace)
    plans.require_whole(trace)
    card = find_card(card).name if card else plans.card_of(trace)
    text = plans.plan_text(table, card) if table is not None else plans.shipped_plans(card)
    rows = json.loads(text)["rows"] if text else []
    if text:
        from . import device

        device.extension().plan_table(text)  # checks it
    report = Lint(card, os.fspath(table) if table is not None else "the card's" if text else "none")
    elsewhere = _other_tables(card)
    seen: dict[str, dict[str, Any]] = {}
    for index, op in enumerate(trace.ops):
        if op.op in plans.FITTED:
            report.products += 1
            _product(trace, index, op, rows, elsewhere, report, seen)
        elif "flash_attention" in op.op and not op.op.endswith("backward"):
            _dropout(index, op, report)
    return report


def _other_tables(card: str) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: json.loads(path.read_text())["rows"] for path in sorted(PLAN_FOLDER.glob("*.json"))
            if path.stem != card}


def _row_of(rows: list[dict[str, Any]], key: dict[str, Any]) -> dict[str, Any] | None:
    """A row without the switch holds for both of its settings; the other fields are equal or both left out."""
    wanted = {k: v for k, v in key.items() if k != "reduced_precision"}
    for row in rows:
        fields = {k: v for k, v in row.items() if k not in ("plan", "source", "reduced_precision")}
        setting = key.get("reduced_precision")
        if fields == wanted and row.get("reduced_precision", setting) == setting:
            return row
    return None


def _product(trace: Trace, index: int, op: Record, rows: list[dict[str, Any]],
             elsewhere: dict[str, list[dict[str, Any]]], report: Lint, seen: dict[str, dict[str, Any]]) -> None:
    key, tensors = plans.row_of(trace, op)
    text = json.dumps(key)
    found = _row_of(rows, key)
    plan = found["plan"] if found else {}
    if plan.get("reduction", "compute_type") != "compute_type":
        entry = {"index": index, "op": op.op, "module": op.module, "product": key, "plan": plan,
                 "off": REDUCED_OFF.format("bf16" if key["dtype"] == "bfloat16" else "fp16")}
        report.reduced.append({**entry, **_against_exact(trace, op, tensors)})
    if text in seen:
        seen[text]["times"] += 1
        return
    others = {name: row["plan"] for name, table in elsewhere.items() if (row := _row_of(table, key))}
    splits = {report.card: plan.get("splits", 1)} if found else {}
    splits |= {name: other.get("splits", 1) for name, other in others.items()}
    seen[text] = {"index": index, "op": op.op, "product": key, "splits": splits, "times": 1}
    if len(set(splits.values())) > 1:
        kind = {"float16": "fp16"}.get(key["dtype"], "bf16")
        seen[text]["off"] = SPLIT_OFF.format(kind)
        report.split_somewhere.append(seen[text])


def _against_exact(trace: Trace, op: Record, tensors: list[Record]) -> dict[str, Any]:
    """differing: share of elements; relative: quantiles of the error, over the elements whose exact value is not 0."""
    out = op.tensors[op.returns[0]["tensor"]]
    try:
        factors = [plans.kept(trace, t, "before").double() for t in tensors]
        bias = plans.kept(trace, op.tensors[0], "before").double() if op.op == "aten.addmm" else 0.0
        ours = plans.kept(trace, out, "after")
    except plans.NotFitted:
        return {"differing": None, "relative": None, "why_not": "the trace does not keep its bytes (keep='all')"}
    exact = (factors[0] @ factors[1] + bias).to(ours.dtype)
    different = int((exact != ours).sum())
    error = ((ours.double() - exact.double()).abs() / exact.double().abs())[exact != 0].flatten()
    ordered = error.sort().values
    at = {f"{q:g}": float(ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)]) for q in QUANTILES}
    return {"differing": different / ours.numel(), "relative": {**at, "max": float(ordered[-1])}}


def flash_keep_rate(dropout: float) -> float:
    """FlashAttention-2 keeps an entry where a random byte is at most floor(float32(1 - p) * 255) [paper 5.5]."""
    threshold = math.floor(float(torch.tensor(1 - dropout, dtype=torch.float32) * 255))
    return (threshold + 1) / 256


def _dropout(index: int, op: Record, report: Lint) -> None:
    numbers = [a for a in op.args[3:] if isinstance(a, float)]
    if not numbers or numbers[0] == 0.0:
        return
    p = numbers[0]
    rate = flash_keep_rate(p)
    report.dropout.append({"index": index, "op": op.op, "module": op.module, "dropout": p, "asked": 1 - p, "kept": rate,
                           "scale": rate / (1 - p), "off": FLASH_OFF})
