"""From the tape to the term: what the tensors need, in order; what they do not need, as words to skip."""

from __future__ import annotations

from typing import Any

import torch

from . import term as terms
from .compute import tensors
from .tape import Event, Memory, Tape, View

NEVER_WRITTEN = "its first bytes are memory that no watched op wrote"


def write(tape: Tape, named: dict[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, str]]:
    """(term, name -> reason of the tensors that are carried). The term was computed and compared."""
    names = _Names(tape, named)
    term = _Writer(tape, names).term()
    for _ in range(2):
        differing = _differing(term, named)
        if not differing:
            return term, {name: names.carried[id(m)] for name, m in names.memory_of.items() if id(m) in names.carried}
        for name in differing:
            names.carried[id(names.memory_of[name])] = (
                "the bytes that its draws and ops state are not the host's: its libm, or an op that was not watched"
            )
        term = _Writer(tape, names).term()
    raise RuntimeError(f"the term does not give the bytes of {', '.join(differing)} even when it carries them")


def _differing(term: dict[str, Any], named: dict[str, torch.Tensor]) -> list[str]:
    computed = tensors(term)
    return [name for name, t in named.items() if not _same_bytes(computed[name], t.detach().cpu())]


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    return torch.equal(_raw(a), _raw(b))


def _raw(t: torch.Tensor) -> torch.Tensor:
    return t.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


class _Names:
    """Which memory is which slot, and which names are views."""

    def __init__(self, tape: Tape, named: dict[str, torch.Tensor]) -> None:
        self.memory_of: dict[str, Memory] = {}
        self.slot: dict[int, str] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.geometry: dict[str, dict[str, Any]] = {}
        self.memories: dict[int, Memory] = {}
        self.carried: dict[int, str] = {}
        viewed: dict[str, View] = {}
        for name, t in named.items():
            if not tape.here(t):
                raise ValueError(
                    f"{name} is on {t.device}, and the ops on {tape.device} were watched; ask before it is moved"
                )
            view = tape.view(t)
            if view is None:
                raise NotImplementedError(f"{name} overlaps itself or is read as another type: it cannot be named")
            viewed[name], self.memory_of[name] = view, view.memory
            self.memories[id(view.memory)] = view.memory
            if view.whole and id(view.memory) not in self.slot and not name.startswith("%"):
                self.slot[id(view.memory)] = name
                self.geometry[name] = {"shape": view.shape, "dtype": _dtype(view.memory)}
                if not view.contiguous:
                    self.geometry[name]["stride"] = view.stride
        for name, view in viewed.items():
            slot = self.slot_of(view.memory)
            if slot != name:
                self.views[name] = {"of": slot, **_geometry(view)}
        for memory in self.memories.values():
            if memory.opaque is not None:
                self.carried[id(memory)] = memory.opaque

    def slot_of(self, memory: Memory) -> str:
        if id(memory) not in self.slot:
            name = f"%{sum(1 for s in self.slot.values() if s[:1] == '%')}"
            self.slot[id(memory)] = name
            self.geometry[name] = {"shape": [memory.elements], "dtype": _dtype(memory)}
        return self.slot[id(memory)]


def _dtype(memory: Memory) -> str:
    return str(memory.dtype).removeprefix("torch.")


def _geometry(view: View) -> dict[str, Any]:
    return {"offset": view.offset, "shape": view.shape, "stride": view.stride}


class _Writer:
    def __init__(self, tape: Tape, names: _Names) -> None:
        self.tape = tape
        self.names = names
        self.steps: list[dict[str, Any]] = []
        self.blobs: dict[str, str] = {}

    def term(self) -> dict[str, Any]:
        host = self.tape.device == "cpu"
        for event, live in zip(self.tape.events, self._live(), strict=True):
            if live:
                self._step(event)
            elif event.fn in terms.DRAWS:
                self._drawn_away(event, host)
            elif event.fn in ("seed", "offset"):
                self.steps.append({"fn": event.fn, **event.args})
            elif event.fn == "state":
                self.steps.append({"fn": "state", "blob": self._blob(event.args["bytes"]),
                                   "reason": event.args["reason"]})  # fmt: skip
        for memory in self.names.memories.values():
            self._carry(memory)
        written = {step["to"] for step in self.steps if "to" in step} | {s["from"] for s in self.steps if "from" in s}
        for memory in self.names.memories.values():
            if memory.elements == 0:
                self.steps.append({"fn": "fill", "to": self.names.slot_of(memory), "value": 0})
            elif self.names.slot_of(memory) not in written:  # its bytes are memory as it came
                self.names.carried[id(memory)] = NEVER_WRITTEN
                self._carry(memory)
        return self._document(host)

    def _document(self, host: bool) -> dict[str, Any]:
        used = {step["to"] for step in self.steps if "to" in step} | {s["from"] for s in self.steps if "from" in s}
        generator: dict[str, Any] = {"kind": "host" if host else "card", "seed": self.tape.seed}
        if host:
            from .observe import host_dispatch

            generator["dispatch"] = host_dispatch()
        else:
            from .. import device

            generator["card"] = device.get_device_properties("oracle:0").card
        term = {
            "version": terms.VERSION,
            "generator": generator,
            "tensors": {slot: g for slot, g in self.names.geometry.items() if slot in used},
            "steps": self.steps,
        }
        if self.names.views:
            term["views"] = self.names.views
        if self.blobs:
            term["blobs"] = self.blobs
        return term

    def _live(self) -> list[bool]:
        """Backwards: an event lives when its memory is needed after it."""
        needed = {key for key in self.names.memories if key not in self.names.carried}
        live = [False] * len(self.tape.events)
        for index in range(len(self.tape.events) - 1, -1, -1):
            event = self.tape.events[index]
            if event.to is None or id(event.to.memory) not in needed:
                continue
            live[index] = True
            if not event.reads:
                needed.discard(id(event.to.memory))
            if event.source is not None:
                needed.add(id(event.source.memory))
        return live

    def _step(self, event: Event) -> None:
        assert event.to is not None
        step: dict[str, Any] = {"fn": event.fn, "to": self.names.slot_of(event.to.memory)}
        if not self._is_slot(event.to, step["to"]):
            step["view"] = _geometry(event.to)
        if event.source is not None:
            step["from"] = self.names.slot_of(event.source.memory)
            if not self._is_slot(event.source, step["from"]):
                step["from_view"] = _geometry(event.source)
        self.steps.append({**step, **event.args})

    def _is_slot(self, view: View, slot: str) -> bool:
        g = self.names.geometry[slot]
        if not view.whole or view.shape != g["shape"]:
            return False
        return view.stride == g["stride"] if "stride" in g else view.contiguous

    def _drawn_away(self, event: Event, host: bool) -> None:
        assert event.to is not None
        view = event.to
        n, dtype = terms.elements(view.shape), _dtype(view.memory)
        if n == 0:
            return
        words = None
        if host and event.fn == "uniform":
            words = n * (2 if dtype == "float64" else 1)
        elif host and event.fn == "normal" and n >= 16 and view.contiguous:
            last = 0 if n % 16 == 0 else 16
            words = (n if dtype == "float32" else n // 16 * 16) + last
        if words is None:
            step = {"fn": event.fn, "shape": view.shape, "dtype": dtype, **event.args}
            if not view.contiguous:
                step["gaps"] = True
            self.steps.append(step)
        elif self.steps and self.steps[-1]["fn"] == "skip":
            self.steps[-1]["words"] += words
        else:
            self.steps.append({"fn": "skip", "words": words})

    def _carry(self, memory: Memory) -> None:
        reason = self.names.carried.get(id(memory))
        if reason is None:
            return
        raw = _raw(memory.keep.as_strided([memory.elements], [1], 0).cpu())
        step = {"fn": "carried", "to": self.names.slot_of(memory), "blob": self._blob(bytes(raw.numpy().tobytes()))}
        self.steps.append({**step, "reason": reason[:1000]})

    def _blob(self, data: bytes) -> str:
        digest, text = terms.pack(data)
        self.blobs[digest] = text
        return digest
