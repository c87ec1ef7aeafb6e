"""A run that is to become a recipe: a folder with its first steps recorded, all its losses, and its promises.

run = recipe.Run("run", corpus="corpus.txt", sampler={"kind": "contiguous 1", "batch": 8, "context": 128})
model = run.build(lambda: GPT(config))       # on the card, recorded: the recipe's initial state
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(steps):
    run.step(model, optimizer, lambda x, y: train(x, y))
run.close()
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

import step_oracle

from . import sampler as samplers
from .extract import STATE_ROLES
from .walk import loss_bits, state_digest

FORMAT = "step-oracle run 1"
RECORDED = (0, 1, 2)  # a first step, and two alike, from which the numbers that change are found


class Run:
    """``promises``: after which steps the state is digested. ``schedule``: docs/recipe-format.md; constant without."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        corpus: str | os.PathLike[str],
        sampler: dict[str, Any],
        promises: Iterable[int],
        schedule: dict[str, Any] | None = None,
        device: str = "oracle",
        recorded: Iterable[int] = RECORDED,
        keep: str = "state",
    ) -> None:
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "run.json").exists():
            raise ValueError(f"{self.folder} holds a run already: give another folder")
        self.corpus = samplers.Corpus(corpus)
        self.sampler = samplers.Sampler(block := samplers.describe(**sampler), self.corpus)
        self.device, self.schedule, self.keep = device, schedule, keep
        self.promised, self.recorded = set(promises), set(recorded)
        self.about: dict[str, Any] = {
            "format": FORMAT,
            "corpus": {"bytes": self.corpus.size, "blake3": self.corpus.digest},
            "sampler": {key: block.raw(key) for key in block},
            "init": None,
            "generator": None,
            "losses": [],
            "states": {},
            "groups": [],
            "recorded": [],
        }

    def generator(self) -> str:
        return bytes(torch.get_device_module(self.device).get_rng_state().tolist()).hex()

    def build(self, make: Callable[[], torch.nn.Module], seed: int | None = None) -> torch.nn.Module:
        """The model that ``make`` gives, and the recipe's initial state with it.

        It is made on the card, and its making recorded as a program; with ``seed`` (of torch.manual_seed) on the host,
        its draws observed as a term that any host computes, and then moved to the card.
        """
        if seed is not None:
            from step_oracle import initialisation

            with initialisation.observe(seed=seed) as seen:
                model = make()
            self.about["init"] = {"term": seen.term(model)}
            return model.to(self.device)
        before = self.generator()
        recording = step_oracle.record(self.folder / "init.trace")
        with recording, torch.device(self.device):
            model = make()
            recording._paths.add_root(model)
        self.about["init"] = {"generator": before}
        return model

    def batch(self) -> list[torch.Tensor]:
        """The next batches: x, y (and the next two, where a step takes several)."""
        return [t.to(self.device) for t in self.sampler.next().values()]

    def step(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, train: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """``train(x, y)``: forward, backward and optimizer step; gives the loss."""
        number = len(self.about["losses"])
        if number == 0:
            self._note_start(optimizer)
        batch = self.batch()
        if number in self.recorded:
            keep: Any = self.keep if number == 0 or _small(model) else "digests"
            with step_oracle.record(self.folder / f"step-{number}.trace", keep=keep, model=model, optimizer=optimizer):
                loss = train(*batch)
            self.about["recorded"].append(number)
        else:
            loss = train(*batch)
        self.about["losses"].append(loss_bits(loss))
        if number in self.promised:
            self.about["states"][str(number)] = state_digest(named(model, optimizer), self.generator())
        return loss

    def _note_start(self, optimizer: torch.optim.Optimizer) -> None:
        self.about["generator"] = self.generator()
        for group in optimizer.param_groups:
            own: dict[str, Any] = {
                k: float(group[k]) for k in ("eps", "weight_decay", "momentum", "dampening") if k in group
            }
            if "betas" in group:
                own["beta1"], own["beta2"] = map(float, group["betas"])
            own["schedule"] = self.schedule or {"kind": "constant", "lr": float(group["lr"])}
            self.about["groups"].append(own)

    def close(self) -> None:
        (self.folder / "run.json").write_text(json.dumps(self.about, indent=1) + "\n")


def _small(model: torch.nn.Module) -> bool:
    return sum(p.numel() for p in model.parameters()) < 1 << 24


def named(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state by the recorder's names; of two names for one tensor, the first."""
    recorder = step_oracle.record(None, model=model, optimizer=optimizer)
    recorder._roots = [(model, "")]
    out: dict[str, torch.Tensor] = {}
    seen = set()
    for name, role, value in [*recorder._model_names(model, ""), *recorder._optimizer_names([optimizer])]:
        if role not in STATE_ROLES or not isinstance(value, torch.Tensor):
            continue
        where = (value.device, value.untyped_storage()._cdata, value.storage_offset(), value.shape, value.stride())
        if where not in seen:
            seen.add(where)
            out[name] = value.detach()
    return out
