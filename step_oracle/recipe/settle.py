"""What a run's kernels left open, for its recipe: given, or found in the recorded steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from step_oracle.choices import Choices, load, of_a_recipe, taken, texts
from step_oracle.replay import replay
from step_oracle.trace import Trace

from .extract import NotAProgram
from .walk import Walk


def settled(
    recipe: dict[str, Any],
    given: str | os.PathLike[str] | Choices | None,
    traces: dict[int, Trace],
    finish: Callable[[dict[str, Any]], str],
    plans: str | None,
) -> str:
    """``finish(recipe)``, with the given choices; without any, where a step leaves something open, with what replays of
    the recorded steps find, the last one's for all later steps."""
    try:
        return finish(recipe | {"choices": {} if given is None else of_a_recipe(load(given))})
    except NotImplementedError:
        if given is not None or not (found := _found(traces, recipe["card"]["name"], plans)):
            raise
    return finish(recipe | {"choices": found})


def _found(traces: dict[int, Trace], card: str, plans: str | None) -> Choices:
    from step_oracle import device

    open_operators = {f"aten.{op}" for op in device.extension().open_operators()}
    found: dict[int, Choices] = {}
    for step, trace in sorted(traces.items()):
        if any(op.op in open_operators for op in trace.ops):
            found[step] = taken(replay(trace, card=card, plans=plans).choices)
    out: Choices = {}
    for op, names in (found[max(found)] if found else {}).items():
        for name, every in names.items():
            steps = {n: own[op][name] for n, own in found.items() if own.get(op, {}).get(name, every) != every}
            out.setdefault(op, {})[name] = [
                {"step": n, **e} for n, entries in [(None, every), *sorted(steps.items())] for e in entries
            ]
    return out


def refuse_untaken(walk: Walk) -> None:
    """After a walk of the recorded steps."""
    if untaken := [c for c in texts(walk.recipe.choices) if c not in walk.choices_taken]:
        raise NotAProgram(f"choices: no recorded step took {untaken[0]}")
