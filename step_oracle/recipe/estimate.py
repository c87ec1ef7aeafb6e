"""What verifying costs on this machine: measured by walking a few steps."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from .document import Recipe
from .verification import Progress, _open
from .walk import Walk, card_of, check_corpus, initial


def estimate(
    recipe: Recipe | str | os.PathLike[str],
    corpus: str | None,
    *,
    steps: int = 3,
    init: str | None = None,
    keep_every: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Seconds, bytes of memory and bytes of disk, from ``steps`` steps (the first does not count for speed)."""
    if steps < 1:
        raise ValueError(f"--steps {steps}: give a number of steps to measure, from 1")
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"--keep-every {keep_every}: give a number of steps from 1")
    opened, begin = _open(recipe), time.monotonic()
    steps = min(max(2, steps), opened.steps)
    with card_of(opened):
        walk = Walk(opened, check_corpus(opened, corpus), initial(opened, init))
        loaded = time.monotonic() - begin
        seconds = []
        for n in range(steps):
            at = time.monotonic()
            walk.advance()
            seconds.append(time.monotonic() - at)
            if progress:
                progress(n + 1, steps)
        at = time.monotonic()
        walk.digest()
        digest_seconds = time.monotonic() - at
        state = sum(t.numel() * t.element_size() for t in walk.state.values())
    steady = sorted(seconds[1:] or seconds)
    step = steady[len(steady) // 2]
    promises = len(opened.promises)
    gaps = [b - a for a, b in zip([-1, *opened.promises], opened.promises, strict=False)]
    kept = promises if keep_every is None else opened.steps // keep_every
    return {
        "measured_steps": steps,
        "seconds_a_step": step,
        "load_seconds": loaded,
        "state_bytes": state,
        "live_bytes": max(p.live_bytes for p in opened.programs.values()),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "verify": {"steps": opened.steps, "seconds": loaded + step * opened.steps + digest_seconds * promises},
        "audit": {
            "of_one_step_seconds": loaded + step + 2 * digest_seconds,
            "of_one_promise_seconds": loaded + step * max(gaps) + 2 * digest_seconds,
            "disk_bytes": state,
        },
        "keep": {
            "every": keep_every,
            "checkpoints": kept,
            "disk_bytes": kept * state,
            "resurrect_seconds_at_most": loaded + step * (max(gaps) if keep_every is None else keep_every),
        },
    }
