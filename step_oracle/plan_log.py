"""cuBLASLt's own log as plans: `CUBLASLT_LOG_LEVEL=2 CUBLASLT_LOG_FILE=lt.log python train.py` writes a line a product.

The log names the algorithm, its tile and stages, the parts of k and how they are added up; plan_facts.py says which
walk of k that is. Where the log leaves it open (a chunk's rounding, above all), several plans come out, and `plan fit`
decides.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .cards import Card
from .plan_facts import Algorithm, NotKnown, plans_of

TYPES = {"R_32F": "float32", "R_16BF": "bfloat16", "R_16F": "float16"}
_HEAD = re.compile(r"\[cublasLt\].*?\[(?:Trace|Api|Info)\]\[(cublasLt\w*Matmul)\]")
_GROUP = re.compile(r"(\w+)=\[([^\]]*)\]")
_FIELD = re.compile(r"(\w+)=(\S+)")


@dataclass
class Call:
    """One line of the log: a product in torch's words, and the algorithm that computed it."""

    line: int
    op: str
    dtype: str
    layout: str
    m: int
    n: int
    k: int
    batch: int
    epilogue: str
    algorithm: Algorithm
    sms: int | None  # smCountTarget, where the line says it
    compute: str

    def key(self) -> dict[str, Any]:
        """The fields of a plan table's row, without the plan."""
        row: dict[str, Any] = {"op": self.op, "dtype": self.dtype, "layout": self.layout}
        if self.epilogue != "none":
            row["epilogue"] = self.epilogue
        row |= {"m": self.m, "n": self.n, "k": self.k}
        if self.batch != 1:
            row["batch"] = self.batch
        return row

    def __str__(self) -> str:
        tail = f" batch {self.batch}" if self.batch != 1 else ""
        return f"{self.op} {self.dtype} {self.layout} m {self.m} n {self.n} k {self.k}{tail}"


@dataclass
class Log:
    """What a log says. ``rows``: decided, as a plan table has them; ``open``: several plans each; ``unknown``: why."""

    card: str
    calls: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    open: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[dict[str, Any]] = field(default_factory=list)
    table: str = ""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


_MOST = 1 << 40  # as in a plan table


def _number(group: dict[str, str], name: str, least: int, otherwise: int | None = None) -> int:
    """A field's whole number; ``otherwise`` where it is left out or, as cuBLASLt spells that, N/A."""
    text = group.get(name)
    if otherwise is not None and (text is None or text == "N/A"):
        return otherwise
    if text is None:
        raise ValueError(f"{name} is missing")
    if not re.fullmatch(r"[+-]?[0-9]{1,13}", text) or not least <= int(text) <= _MOST:
        raise ValueError(f"{name}={text[:40]} is no whole number from {least} to 2^40")
    return int(text)


def parse_line(text: str, number: int) -> Call | None:
    """A line's product; None for a line that is about something else. Raises ValueError for one that is cut off."""
    head = _HEAD.search(text)
    if head is None or "algo=[" not in text:
        return None
    groups = {name: dict(_FIELD.findall(body)) for name, body in _GROUP.findall(text)}
    missing = [g for g in ("Adesc", "Bdesc", "Ddesc", "computeDesc", "algo") if g not in groups]
    if missing:
        raise ValueError(f"line {number} of the log has no {missing[0]}: it is cut off")
    try:
        return _call(groups, dict(_FIELD.findall(_GROUP.sub("", text))), number)
    except (KeyError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"line {number} of the log is damaged: {what}") from None


def _call(groups: dict[str, dict[str, str]], outside: dict[str, str], number: int) -> Call:
    a, d, compute, algo = groups["Adesc"], groups["Ddesc"], groups["computeDesc"], groups["algo"]
    turned = [compute.get(f"trans{x}", compute.get(f"trans{x.upper()}", "OP_N")) != "OP_N" for x in "ab"]
    batch = _number(d, "batchCount", 1, 1)
    bias = "BIAS" in compute.get("epilogue", "")
    beta = outside.get("beta", "0") not in ("0", "0.0")
    op = ("baddbmm" if beta else "bmm") if batch > 1 else "addmm" if bias or beta else "mm"
    stages = algo.get("stages", "").removeprefix("MATMUL_STAGES_")
    inner = _number(a, "rows" if turned[0] else "cols", 1)
    return Call(
        line=number, op=op, dtype=TYPES.get(a["type"], a["type"]),
        # cuBLAS computes the column-major D' = B' A': torch's first factor is its B.
        layout="nt"[turned[1]] + "nt"[turned[0]], m=_number(d, "cols", 1), n=_number(d, "rows", 1), k=inner,
        batch=batch, epilogue="bias" if bias else "beta" if beta else "none",
        algorithm=Algorithm(
            number=_number(algo, "algoId", 0), tile=algo.get("tile", "").removeprefix("MATMUL_TILE_"), stages=stages,
            splits=_splits(algo, inner),
            reduction=algo.get("reductionScheme", "NONE").removeprefix("REDUCTION_SCHEME_"),
            option=_number(algo, "customOption", 0, 0)),
        sms=_number(compute, "smCountTarget", 0, 0) or None, compute=compute.get("computeType", ""))  # fmt: skip


def _splits(algo: dict[str, str], k: int) -> int:
    splits = _number(algo, "numSplitsK", 1, 1)
    if splits > k:
        raise ValueError(f"numSplitsK={splits} is more than k, {k}")
    return splits


def parse(lines: Iterable[str]) -> list[Call]:
    found = (parse_line(text, number) for number, text in enumerate(lines, 1))
    return [call for call in found if call]


def read(path: str | os.PathLike[str], card: Card, library: str = "unknown", also: str | None = None) -> Log:
    """The plans of a log that ``card`` wrote. ``also``: the text of a plan table that the rows are added to.

    Raises ValueError in one sentence for a file without a product, a log of another card, lines or a table that
    contradict each other, and a log none of whose algorithms is known.
    """
    from . import device

    with open(path, encoding="utf-8", errors="replace") as lines:
        calls = parse(lines)
    if not calls:
        raise ValueError(f"{path} has no line of a matrix product with its algorithm; write it with "
                         "CUBLASLT_LOG_LEVEL=2 (or 5) and CUBLASLT_LOG_FILE")
    for call in calls:
        if call.sms and call.sms != card.sms:
            raise ValueError(f"line {call.line} of {path} was written for {call.sms} multiprocessors, and {card.name} "
                             f"has {card.sms}: it is the log of another card")
    log = Log(card.name, len(calls))
    seen: dict[str, tuple[Call, Any]] = {}
    for call in calls:
        key = json.dumps(call.key())
        try:
            plans = _plans(call, card)
        except NotKnown as reason:
            if all(u["product"] != str(call) or u["reason"] != str(reason) for u in log.unknown):
                log.unknown.append({"line": call.line, "product": str(call), "reason": str(reason)})
            continue
        if key in seen:
            if seen[key][1] != plans:
                raise ValueError(f"lines {seen[key][0].line} and {call.line} of {path} give {call} two plans; one log "
                                 "is of one setting of torch's switches")
            continue
        seen[key] = call, plans
        row = {**call.key(), **_switch(call, plans)}
        if len(plans) == 1:
            source = f"cuBLASLt's log, algorithm {call.algorithm.number}: {plans[0].known}"
            log.rows.append({**row, "plan": plans[0].plan, "source": source})
        else:
            log.open.append({**row, "plans": [p.plan for p in plans], "algorithm": call.algorithm.number,
                             "reason": plans[0].known})
    if not seen:
        raise ValueError(f"no product of {path} has a plan that is known: {log.unknown[0]['reason']}")
    log.table = _table(log, card, library, f"read from {os.path.basename(os.fspath(path))}", also)
    log.table = device.extension().format_plan_table(log.table)
    return log


def _plans(call: Call, card: Card) -> list[Any]:
    if call.dtype not in TYPES.values():
        raise NotKnown(f"products of {call.dtype} have no plan tables yet")
    if "FAST" in call.compute or call.compute == "COMPUTE_16F":
        raise NotKnown(f"{call.compute} is another class than the plan tables' {call.dtype}")
    return plans_of(call.algorithm, dtype=call.dtype, m=call.m, n=call.n, k=call.k, bias=call.epilogue == "bias",
                    compute_capability=card.compute_capability, sms=card.sms, threads_per_sm=card.threads_per_sm,
                    layout=call.layout)


def _switch(call: Call, plans: list[Any]) -> dict[str, bool]:
    """Parts reduced in 16 bits are allowed by torch's switch only; what else is taken with it on is not in the log."""
    reduced = any(p.plan.get("reduction", "compute_type") != "compute_type" for p in plans)
    return {"reduced_precision": True} if reduced and call.dtype != "float32" else {}


def _table(log: Log, card: Card, library: str, source: str, also: str | None) -> str:
    table = {"format": "step-oracle plan table 1", "card": card.name, "library": library, "source": source,
             "rows": log.rows}
    if also is None:
        return json.dumps(table)
    other = json.loads(also)
    if other.get("card") != card.name:
        raise ValueError(f"the plan table is of {other.get('card')}, and the log of {card.name}; give a table of this "
                         "card")
    return json.dumps({**other, "rows": other["rows"] + log.rows})
