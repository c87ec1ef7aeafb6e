"""Replay of a trace on the virtual card."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .choices import Choices

MODES = ("op-local", "end-to-end")


@dataclass(frozen=True)
class Divergence:
    """The first output whose bytes differ from the recorded ones.

    ``coordinates`` is the first differing element (None where the trace keeps no bytes of it; ``expected`` and
    ``actual`` are digests then, and bit patterns of that element otherwise). ``ulps`` is actual minus expected.
    """

    index: int
    op: str
    module: str
    output: str
    coordinates: list[int] | None
    expected: str
    actual: str
    ulps: int | None
    differing: int | None
    elements: int | None
    cause: str

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        at = f" at {tuple(self.coordinates)}" if self.coordinates is not None else ""
        ulps = f", {self.ulps:+d} ulp" if self.ulps is not None else ""
        share = f"; {self.differing} of {self.elements} elements differ" if self.differing is not None else ""
        return (
            f"op {self.index} {self.op}{where}, {self.output}{at}: expected {self.expected}, got {self.actual}"
            f"{ulps}{share}. Cause: {self.cause}"
        )


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found. ``ok``: every op was computed and has the recorded bytes."""

    ok: bool
    mode: str
    card: str
    counts: dict[str, int]  # match, mismatch, unmodelled, carried: ops
    divergence: Divergence | None
    mismatches: list[Divergence]  # the first mismatch of each op, at most 1000
    unmodelled: list[dict[str, Any]]  # index, op, reason
    carried: list[dict[str, Any]]
    declared_inputs: int  # initial storages and generator states, read because the program declares them
    reads_from_recording: int  # everything else that was read: 0 end to end unless something was carried
    products: dict[str, Any]  # matrix products: products, assumed (took the class default), kinds (of those)
    fitted: list[dict[str, Any]]  # plans found by digest (fit_plans=True): index, product, plan, tried
    plan_table: str  # a plan table with them, "" where there are none
    choices: list[dict[str, Any]]  # that ops took: index, op, name, call (of calls), value, given (or found), tried
    ties: list[dict[str, Any]]  # of the found ones, at most 100: index, op, name, part, variants that are all equal
    tied: int  # all ties
    outputs: int  # digests compared
    seconds: float
    final: dict[str, torch.Tensor] = field(repr=False)  # parameters, optimizer tensors, loss: by name, on `oracle`

    def to_json(self) -> dict[str, Any]:
        out = {k: v for k, v in vars(self).items() if k not in ("final", "divergence", "mismatches")}
        out["divergence"] = None if self.divergence is None else vars(self.divergence)
        out["mismatches"] = [vars(d) for d in self.mismatches]
        return out


def replay(
    trace: str | os.PathLike[str] | Any,
    mode: str = "op-local",
    card: str | None = None,
    plans: str | os.PathLike[str] | None = None,
    fit_plans: bool = False,
    choices: str | os.PathLike[str] | Choices | None = None,
    ties: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Run a trace's ops on the virtual card and compare every output with its recorded digest.

    ``trace``: a path or what ``step_oracle.load`` returned. ``mode``: "op-local" gives every op the recorded inputs,
    "end-to-end" its own. ``card``: another card than the trace's. ``progress(done, total)`` is called now and then.
    ``plans``: the path of a plan table, or "pinned": every product is a single pass, because the program forced it;
    without it, the card's table. ``fit_plans``: where a matrix product has other bytes, the known plans are tried until
    one gives the recorded digest; it then holds for all products of the kind. ``choices``: what kernels left open, from
    a file that `step-oracle replay --save-choices` wrote or as an object (step_oracle/choices.py); without them, the
    variants of an open choice are tried until one has the recorded bytes, and all of them with ``ties``.
    Raises ValueError for a trace that is not complete or not a trace, NotImplementedError for one that was recorded on
    the CPU or does not keep the bytes a replay starts from.
    """
    from . import _record, device
    from .cards import plan_text
    from .choices import load, rows

    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; give one of {', '.join(map(repr, MODES))}")
    if _record.is_running():
        raise ValueError("a recording is running in this process, and would record the replay: end its block first")
    path = os.fspath(getattr(trace, "path", trace))
    device.ensure_loaded(first_card=card or "h100-sxm")
    text = None if plans is None else plan_text(plans, card or device.extension().card_of_trace(path))
    given = [] if choices is None else rows(load(choices))
    row = device.extension().replay(path, mode, card or "", text or "", fit_plans, given, ties, progress)
    row["divergence"] = None if row["divergence"] is None else Divergence(**row["divergence"])
    row["mismatches"] = [Divergence(**d) for d in row["mismatches"]]
    return ReplayReport(**row)
