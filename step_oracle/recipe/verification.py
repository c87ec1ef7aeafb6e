"""Verify, audit, resurrect: walks that are compared with what a recipe promises."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from step_oracle.choices import texts

from . import checkpoints
from .canonical import Malformed, dump
from .document import Recipe, load
from .walk import State, Walk, card_of, check_corpus, generator_state, initial, place, set_generator, state_digest

Progress = Callable[[int, int], None]


@dataclass
class Failure:
    """The first thing that is not as promised."""

    step: int
    what: str  # "loss" or "state"
    expected: str
    actual: str
    loss: str  # of that step, as computed

    def __str__(self) -> str:
        return f"after step {self.step} the {self.what} is {self.actual}, and the recipe promises {self.expected}"


@dataclass
class Verdict:
    """``ok``: every promise that was asked for holds, with every loss up to it."""

    ok: bool
    kept: int
    total: int
    first_failed: Failure | None
    losses: int  # compared and equal
    first: int  # first and last step that were walked
    last: int
    resumed_from: int | None
    seconds: float
    load_seconds: float
    digest: str  # of the recipe
    state: str  # digest after the last step
    note: str = ""  # why a folder's index was not taken

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "promises": {"kept": self.kept, "total": self.total},
            "first_failed": None if self.first_failed is None else vars(self.first_failed),
            "losses": self.losses,
            "first_step": self.first,
            "last_step": self.last,
            "resumed_from": self.resumed_from,
            "seconds": self.seconds,
            "load_seconds": self.load_seconds,
            "recipe": self.digest,
            "state": self.state,
            "note": self.note,
        }


class _Run:
    """A walk from one step to another, compared with the recipe as it goes."""

    def __init__(
        self,
        recipe: Recipe,
        walk: Walk,
        losses: list[str],
        folder: checkpoints.Folder | None,
        keep: Callable[[int], bool],
    ) -> None:
        self.recipe, self.walk, self.losses, self.folder, self.keep = recipe, walk, losses, folder, keep
        self.kept: list[int] = []
        self.state = ""
        self.unsaved: dict[int, str] = {}  # promised states since the last checkpoint

    def to(self, last: int, progress: Progress | None) -> Failure | None:
        begin, promised = self.walk.step, self.recipe.root.blocks("promises")
        expected_losses = self.recipe.root.get("losses")
        states = {p.get("step"): p.get("state") for p in promised}
        for p in promised:
            p.get("loss")
        if progress:
            progress(0, last + 1 - begin)
        while self.walk.step <= last:
            step = self.walk.step
            loss = self.walk.advance()
            self.losses.append(loss)
            if loss != expected_losses[step]:
                return Failure(step, "loss", expected_losses[step], loss, loss)
            saves = self.folder is not None and self.keep(step)
            if step in states or saves or step == last:
                self.state = self.walk.digest()
            if step in states:
                if self.state != states[step]:
                    return Failure(step, "state", states[step], self.state, loss)
                self.kept.append(step)
                self.unsaved[step] = self.state
            if saves and self.folder is not None:
                walked, self.unsaved = self.unsaved | {step: self.state}, {}
                reads = _reads(self.recipe, self.walk)
                self.folder.save(step, self.walk.state, generator_state(), self.losses, walked, reads)
            if progress:
                progress(self.walk.step - begin, last + 1 - begin)
        return None


def _open(recipe: Recipe | str | os.PathLike[str]) -> Recipe:
    opened = recipe if isinstance(recipe, Recipe) else load(recipe)
    opened.root.forget_reads()
    return opened


def _last(recipe: Recipe, until: int | None) -> int:
    if until is None:
        return recipe.steps - 1
    if not 0 <= until < recipe.steps:
        raise ValueError(f"--until {until}: the recipe has the steps 0 to {recipe.steps - 1}")
    if not any(step <= until for step in recipe.promises):
        raise ValueError(f"--until {until}: the first promise is after step {min(recipe.promises)}")
    return until


def verify(
    recipe: Recipe | str | os.PathLike[str],
    corpus: str | None,
    *,
    until: int | None = None,
    init: str | None = None,
    folder: str | None = None,
    keep_every: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Walks from step 0 and compares every loss and every promise (up to step ``until``).

    ``folder``: checkpoints go there (at each promise, or every ``keep_every`` steps), and an interrupted walk goes on
    from the last one, where the folder's index has this user's seal: what a folder says else is no evidence.
    """
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"--keep-every {keep_every}: give a number of steps from 1")
    opened, begin = _open(recipe), time.monotonic()
    last = _last(opened, until)
    store = None if folder is None else checkpoints.Folder(folder, opened.digest)
    with card_of(opened):
        text = check_corpus(opened, corpus)
        resumed = store.resumable(last, lambda s: _keeps(opened, s, keep_every)) if store else None
        if store is not None and resumed is not None:
            state = _load(opened, store.file(resumed), resumed, store.states[resumed])
            _init_reads(opened)
            losses = store.losses[: resumed + 1]
        else:
            state, losses = initial(opened, init), []
        walk = Walk(opened, text, state, 0 if resumed is None else resumed + 1)
        loaded = time.monotonic() - begin
        run = _Run(opened, walk, losses, store, lambda s: _keeps(opened, s, keep_every))
        failure = _earlier(opened, store, resumed, losses) or run.to(last, progress)
        if failure is None and last == opened.steps - 1:
            _all_read(opened, walk, store.reads if store and resumed is not None else checkpoints.Reads())
    asked = [s for s in opened.promises if s <= last]
    before = [s for s in asked if resumed is not None and s <= resumed]
    kept = [s for s in asked if s in run.kept or (s in before and (failure is None or failure.step > s))]
    return Verdict(
        failure is None and bool(asked) and kept == asked,
        len(kept),
        len(asked),
        failure,
        _equal(opened, losses),
        0 if resumed is None else resumed + 1,
        walk.step - 1,
        resumed,
        time.monotonic() - begin,
        loaded,
        opened.digest,
        run.state if resumed != last or store is None else store.states[last],
        store.note if store else "",
    )


def _equal(recipe: Recipe, losses: list[str]) -> int:
    return sum(a == b for a, b in zip(losses, recipe.losses, strict=False))


def _keeps(recipe: Recipe, step: int, every: int | None) -> bool:
    return step in recipe.promises if every is None else (step + 1) % every == 0


def _earlier(
    recipe: Recipe, store: checkpoints.Folder | None, resumed: int | None, losses: list[str]
) -> Failure | None:
    """What an interrupted walk had computed before its checkpoint is compared again."""
    if store is None or resumed is None:
        return None
    if len(losses) != resumed + 1:
        raise ValueError(
            f"{store.path}/index.json holds {len(losses)} losses and a checkpoint after step {resumed}: delete "
            "the folder to walk from the start"
        )
    for step, loss in enumerate(losses):
        if loss != recipe.losses[step]:
            return Failure(step, "loss", recipe.losses[step], loss, loss)
        if step in recipe.promises and store.states.get(step) != recipe.promises[step]:
            return Failure(step, "state", recipe.promises[step], str(store.states.get(step)), loss)
    return None


def _init_reads(recipe: Recipe) -> None:
    """The blocks that a walk from a checkpoint does not need."""
    for field in ("init", "generator"):
        recipe.root.get(field)


def _reads(recipe: Recipe, walk: Walk) -> checkpoints.Reads:
    plans: set[str] = set()
    if recipe.root.raw("plans") is not None:
        used = _used_plans()
        plans = {dump(row) for row in used["rows"]} | ({dump(used["otherwise"])} if "otherwise" in used else set())
    exceptions = {dump(list(e)) for e in walk.functions.used}
    return checkpoints.Reads(recipe.root.reads(), exceptions, plans, walk.choices_taken)


def _used_plans() -> dict[str, Any]:
    import json

    from step_oracle import device

    used: dict[str, Any] = json.loads(device.extension().used_plans(0))
    return used


def _all_read(recipe: Recipe, walk: Walk, before: checkpoints.Reads) -> None:
    """``before``: what was read up to the checkpoint that the walk went on from."""
    read = before | _reads(recipe, walk)
    unread = [f for f in recipe.root.unread() if f not in read.fields]
    if unread:
        raise Malformed(
            f"the whole run was walked, and nothing read {', '.join(unread[:5])}: a field that decides nothing "
            "is no part of a recipe"
        )
    if untaken := [e for e in walk.functions.unused() if dump(list(e)) not in read.exceptions]:
        raise Malformed(f"optimizer.exceptions: no step took {untaken[0]}")
    if unused := [c for c in texts(recipe.choices) if c not in read.choices]:
        raise Malformed(f"choices: no call of the run took {unused[0]}")
    plans = recipe.root.raw("plans")
    if plans is not None:
        extra = [r for r in plans["rows"] if dump(r) not in read.plans]
        otherwise = "otherwise" in plans and dump(plans["otherwise"]) not in read.plans
        if extra or otherwise or (not before.fields and _used_plans() != plans):
            raise Malformed(f"plans: no product of the run took the row {extra[0] if extra else plans}")


def _load(recipe: Recipe, path: pathlib.Path | str, step: int, digest: str) -> State:
    """The state after ``step`` from a checkpoint whose own digest is right; also sets the card's generator."""
    saved = checkpoints.read(path)
    if saved.step != step:
        raise ValueError(f"{path} says that it is {_of_step(saved.step)}, not the one after step {step}")
    if (found := state_digest(saved.tensors, saved.generator)) != digest:
        raise ValueError(
            f"{path} has the state digest {found}, and the state after step {step} has {digest}: the checkpoint "
            "was changed"
        )
    set_generator(saved.generator)
    places = recipe.state_places(step + 1)
    if set(saved.tensors) != set(places):
        raise ValueError(
            f"{path} holds other tensors than the recipe's programs: {sorted(set(saved.tensors) ^ set(places))[:3]}"
        )
    return {name: place(saved.tensors[name], where, name, str(path)) for name, where in places.items()}


def _of_step(step: int | None) -> str:
    return "an initial state" if step is None else f"the state after step {step}"


# --- audit ------------------------------------------------------------------------------------------------------------


def audit(
    recipe: Recipe | str | os.PathLike[str],
    corpus: str | None,
    checkpoint: str,
    *,
    steps: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Walks ``steps`` steps (to the next promise, without it) from a checkpoint that a promise names.

    The checkpoint's own digest is compared before anything is computed.
    """
    opened, begin = _open(recipe), time.monotonic()
    saved = checkpoints.read(checkpoint)
    if saved.step not in opened.promises:
        raise ValueError(
            f"{checkpoint} says that it is {_of_step(saved.step)}, which no promise names; the recipe "
            f"promises {', '.join(map(str, opened.promises))}"
        )
    first = int(saved.step) + 1
    del saved
    later = [s for s in opened.promises if s >= first]
    if first >= opened.steps or (steps is None and not later):
        raise ValueError(f"{checkpoint} is the state after step {first - 1}: the recipe promises nothing later")
    if steps is not None and steps < 1:
        raise ValueError(f"an audit walks at least one step, not {steps}")
    last = later[0] if steps is None else first + steps - 1
    if last >= opened.steps:
        raise ValueError(f"{steps} steps from step {first}: the recipe has {opened.steps} steps")
    if not later or later[0] > last:
        remedy = f"give --steps {later[0] - first + 1}, or leave it out" if later else "none is later"
        raise ValueError(f"{steps} steps from step {first} reach no promise, and would prove nothing: {remedy}")
    with card_of(opened):
        text = check_corpus(opened, corpus)
        state = _load(opened, checkpoint, first - 1, opened.promises[first - 1])
        _init_reads(opened)
        walk = Walk(opened, text, state, first)
        loaded = time.monotonic() - begin
        losses: list[str] = []
        run = _Run(opened, walk, losses, None, lambda s: False)
        failure = run.to(last, progress)
    asked = [s for s in opened.promises if first <= s <= last]
    equal = sum(a == b for a, b in zip(losses, opened.losses[first:], strict=False))
    return Verdict(
        failure is None and bool(asked) and run.kept == asked,
        len(run.kept),
        len(asked),
        failure,
        equal,
        first,
        walk.step - 1,
        None,
        time.monotonic() - begin,
        loaded,
        opened.digest,
        run.state,
    )


def _audit_job(recipe: str, corpus: str | None, checkpoint: str, steps: int | None, threads: int) -> dict[str, Any]:
    """One audit in a worker process, as a dict: {"checkpoint", "verdict" or "refused"}."""
    from step_oracle import StepOracleError, device
    from step_oracle import plans as plan_notes

    plan_notes.quiet()  # what was assumed stands in the recipe
    device.extension().set_num_threads(threads)
    try:
        return {"checkpoint": checkpoint, "verdict": audit(recipe, corpus, checkpoint, steps=steps).to_json()}
    except (ValueError, NotImplementedError, StepOracleError, OSError) as error:
        return {"checkpoint": checkpoint, "refused": str(error)}


def audits(
    recipe: str,
    corpus: str | None,
    paths: list[str],
    *,
    steps: int | None = None,
    jobs: int = 1,
    engine: str = "joblib",
    threads: int = 1,
) -> list[dict[str, Any]]:
    """One audit for each checkpoint, ``jobs`` at a time, by an engine that spreads calls over processes or machines."""
    load(recipe)  # refused once, and not by each audit
    work = [(recipe, corpus, path, steps, threads) for path in paths]
    if engine == "joblib":
        joblib = _engine("joblib")
        done: list[dict[str, Any]] = joblib.Parallel(n_jobs=jobs)(joblib.delayed(_audit_job)(*w) for w in work)
    elif engine == "ray":
        ray = _engine("ray")
        ray.init(num_cpus=jobs, ignore_reinit_error=True, log_to_driver=False)
        job = ray.remote(_audit_job)
        done = ray.get([job.remote(*w) for w in work])
    elif engine == "dask":
        distributed = _engine("distributed", "dask[distributed]")
        with distributed.Client(n_workers=jobs, threads_per_worker=1) as client:
            done = client.gather([client.submit(_audit_job, *w, pure=False) for w in work])
    else:
        raise ValueError(f"there is no engine '{engine}'; give joblib, ray or dask")
    return done


def _engine(module: str, package: str | None = None) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the engine needs the package {package or module}, which cannot be imported ({error}): "
            f"pip install {package or module}"
        ) from None


# --- resurrect ------------------------------------------------------------------------------------------------------


def resurrect(
    recipe: Recipe | str | os.PathLike[str],
    corpus: str | None,
    step: int,
    out: str,
    *,
    kept: str | None = None,
    init: str | None = None,
    folder: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Computes the state after ``step`` again and writes it to ``out``.

    It starts from ``kept``, or from the nearest earlier checkpoint of ``folder``, or from the initial state. What it
    starts from and what it arrives at are compared with the digests that the recipe, or the folder's index, names; a
    state that neither names is walked on to the next promise, and written only when that holds.
    """
    opened, begin = _open(recipe), time.monotonic()
    if not 0 <= step < opened.steps:
        raise ValueError(f"step {step}: the recipe has the steps 0 to {opened.steps - 1}")
    store = None if folder is None else checkpoints.Folder(folder, opened.digest)
    known = (store.states if store else {}) | opened.promises
    if step not in known and not any(s > step for s in opened.promises):
        raise ValueError(
            f"no promise names the state after step {step} or a later one: it cannot be verified"
            + (f"; {store.note}" if store and store.note else "")
        )
    checkpoints.check_target(out)
    if kept is None and store is not None:
        earlier = [s for s in store.kept() if s < step]
        kept = str(store.file(earlier[-1])) if earlier else None
    with card_of(opened):
        text = check_corpus(opened, corpus)
        state, first = _start(opened, kept, known, step, init)
        walk = Walk(opened, text, state, first)
        run = _Run(opened, walk, [], None, lambda s: False)
        failure = run.to(step, progress)
        found, target = run.state, pathlib.Path(out)
        if failure is None and step in known and found != known[step]:
            failure = Failure(step, "state", known[step], found, run.losses[-1])
        partial = target.with_name(target.name + ".unverified")
        if failure is None:
            checkpoints.write(partial, walk.state, step=step, generator=generator_state(), loss=run.losses[-1])
            if step not in known:
                failure = _confirm(opened, run, step, progress)
            if failure is None:
                os.replace(partial, target)
            else:
                partial.unlink()
    return {
        "ok": failure is None,
        "step": step,
        "state": found,
        "out": str(target) if failure is None else None,
        "from_step": first - 1,
        "named_by": _named_by(opened, known, step),
        "first_failed": None if failure is None else vars(failure),
        "seconds": time.monotonic() - begin,
        "note": store.note if store else "",
    }


def _named_by(recipe: Recipe, known: dict[int, str], step: int) -> str:
    return "a promise" if step in recipe.promises else "the folder's index" if step in known else "the next promise"


def _start(recipe: Recipe, kept: str | None, known: dict[int, str], step: int, init: str | None) -> tuple[State, int]:
    if kept is None:
        return initial(recipe, init), 0
    saved = checkpoints.read(kept)
    if saved.step is None or saved.step >= step:
        raise ValueError(f"{kept} is the state after step {saved.step}: give one from before step {step}")
    if saved.step not in known:
        raise ValueError(
            f"{kept} is the state after step {saved.step}, whose digest neither the recipe nor an index names"
        )
    first = saved.step
    del saved
    state = _load(recipe, kept, first, known[first])
    _init_reads(recipe)
    return state, first + 1


def _confirm(recipe: Recipe, run: _Run, step: int, progress: Progress | None) -> Failure | None:
    return run.to(min(s for s in recipe.promises if s > step), progress)
