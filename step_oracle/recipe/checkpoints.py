"""States as safetensors files, and a folder of them with an index of their digests."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from . import seal
from .canonical import dump, is_digest

FORMAT = "step-oracle checkpoints 1"
GENERATOR = 32  # hexadecimal digits: seed and offset, little endian


@dataclass
class Saved:
    tensors: dict[str, torch.Tensor]
    step: int | None  # after which step; None for an initial state
    generator: str
    loss: str


def write(path: pathlib.Path, state: dict[str, torch.Tensor], *, step: int | None, generator: str, loss: str) -> None:
    """Whole or not at all: a process that is killed leaves no half file under this name."""
    meta = {"format": FORMAT, "generator": generator, "loss": loss} | ({} if step is None else {"step": str(step)})
    partial = path.with_name(path.name + ".partial")
    save_file({n: t.detach().cpu().contiguous() for n, t in state.items()}, str(partial), meta)
    _settle(partial, path)


def _settle(partial: pathlib.Path, path: pathlib.Path) -> None:
    with open(partial, "rb") as f:
        os.fsync(f.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: str | os.PathLike[str]) -> Saved:
    """Raises ValueError for a file that is no state; the tensors are digested by the caller before they are used."""
    if not os.path.exists(path):
        raise ValueError(f"there is no file {os.fspath(path)}")
    try:
        with safe_open(os.fspath(path), "pt") as f:
            meta = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise ValueError(f"{os.fspath(path)} is no safetensors file: {error}") from None
    generator = meta.get("generator", "")
    if generator and (len(generator) != GENERATOR or set(generator) - set("0123456789abcdef")):
        raise ValueError(f"{os.fspath(path)} states a generator that is none")
    step = meta.get("step")
    if step is not None and (not step.isdecimal() or len(step) > 18):
        raise ValueError(f"{os.fspath(path)} states the step '{step[:40]}'")
    return Saved(tensors, None if step is None else int(step), generator, meta.get("loss", ""))


def check_target(path: str | os.PathLike[str], *others: str | None) -> None:
    """Before anything is computed: can a file be put there, which is none of the others? ValueError where not."""
    for other in others:
        if other and os.path.realpath(other) == os.path.realpath(path):
            raise ValueError(f"{os.fspath(path)} would be written over another file of this command: give another name")
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise ValueError(f"{os.fspath(path)} is there and is no regular file: give another name")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.basename(path) or not os.path.isdir(folder):
        raise ValueError(f"{os.fspath(path)}: there is no folder {folder} to write a file to")


@dataclass
class Reads:
    """What a walk read of its recipe: fields, and, each as its canonical text, exceptions, plan rows and choices."""

    fields: set[str] = field(default_factory=set)
    exceptions: set[str] = field(default_factory=set)
    plans: set[str] = field(default_factory=set)
    choices: set[str] = field(default_factory=set)

    def __or__(self, other: Reads) -> Reads:
        return Reads(*(vars(self)[k] | vars(other)[k] for k in vars(self)))

    def to_json(self) -> dict[str, list[str]]:
        return {k: sorted(v) for k, v in vars(self).items()}


class Folder:
    """Checkpoints of one recipe's walk. The index names every state that was walked to, its file there or deleted.

    Only an index that this user's own verification sealed (seal.py) says anything: ``note`` has the sentence about
    any other, whose losses and states are not taken.
    """

    def __init__(self, path: str | os.PathLike[str], recipe: str) -> None:
        self.path = pathlib.Path(path)
        self.recipe = recipe
        self.losses: list[str] = []
        self.states: dict[int, str] = {}  # after step -> state digest
        self.saved: set[int] = set()  # after which steps a file was written
        self.reads = Reads()
        self.note = ""
        index = self.path / "index.json"
        if index.exists():
            self._read(index)

    def _read(self, index: pathlib.Path) -> None:
        try:
            value = json.loads(index.read_text())
            known = value["format"] == FORMAT
            of = value["recipe"]
            losses, states = list(value["losses"]), {int(k): v for k, v in value["states"].items()}
            by = value.pop("seal", None)
            sealed = seal.is_sealed(dump(value), by)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{index} is no index of checkpoints; delete the folder to walk from the start") from None
        if not known:
            raise ValueError(f"{index} has the format {str(value['format'])[:40]!r}, and this version reads '{FORMAT}'")
        if of != self.recipe:
            raise ValueError(
                f"{self.path} holds checkpoints of another recipe ({str(of)[:16]}...): give another folder"
            )
        if not all(isinstance(x, str) for x in losses) or not all(is_digest(d) and s >= 0 for s, d in states.items()):
            raise ValueError(f"{index} is damaged: delete the folder to walk from the start")
        if not sealed:
            self.note = (
                f"{index} was not written by a verification of yours with this version: nothing in {self.path} is taken"
            )
            return
        self.losses, self.states, self.saved = losses, states, set(value["saved"])
        self.reads = Reads(**{k: set(v) for k, v in value["read"].items()})

    def file(self, step: int) -> pathlib.Path:
        return self.path / f"after-{step:08d}.safetensors"

    def kept(self) -> list[int]:
        """Steps whose file is there."""
        return sorted(s for s in self.saved if self.file(s).exists())

    def resumable(self, last: int, keep: Callable[[int], bool]) -> int | None:
        """The last step up to ``last`` that a walk can go on from, every checkpoint that is wanted before it written
        (and there or deleted)."""
        here = {s for s in self.kept() if s <= last and s < len(self.losses)}
        found = None
        for step in range(max(here, default=-1) + 1):
            if keep(step) and step not in self.saved:
                break
            found = step if step in here else found
        return found

    def _write(self) -> None:
        partial = self.path / "index.json.partial"
        value: dict[str, Any] = {
            "format": FORMAT,
            "recipe": self.recipe,
            "losses": self.losses,
            "states": {str(k): v for k, v in sorted(self.states.items())},
            "saved": sorted(self.saved),
            "read": self.reads.to_json(),
        }
        value["seal"] = seal.seal(dump(value))
        partial.write_text(json.dumps(value, indent=1) + "\n")
        _settle(partial, self.path / "index.json")

    def save(
        self,
        step: int,
        state: dict[str, torch.Tensor],
        generator: str,
        losses: list[str],
        states: dict[int, str],
        reads: Reads,
    ) -> None:
        """``states``: of this step, and of the promises on the way to it."""
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.file(step), state, step=step, generator=generator, loss=losses[step])
        if self.losses[: len(losses)] != losses:  # an earlier walk may have gone further
            self.losses = list(losses)
        self.states |= states
        self.saved.add(step)
        self.reads |= reads
        self._write()
