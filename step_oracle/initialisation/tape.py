"""What happened to each storage, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import term as terms


@dataclass
class Memory:
    """A storage: the tensor that was made of it keeps it from being given to another."""

    keep: torch.Tensor
    dtype: torch.dtype
    elements: int
    opaque: str | None = None  # why its bytes cannot be stated, since the last whole write


@dataclass
class View:
    memory: Memory
    shape: list[int]
    stride: list[int]
    offset: int
    whole: bool  # every element of the memory, each once
    contiguous: bool


@dataclass
class Event:
    fn: str
    to: View | None = None
    source: View | None = None
    args: dict[str, Any] = field(default_factory=dict)
    reads: bool = False  # the old value enters


def _dense(t: torch.Tensor) -> bool:
    """Each element once, without gaps."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Tape:
    def __init__(self, device: str) -> None:
        self.device = device
        self.memories: dict[int, Memory] = {}
        self.events: list[Event] = []
        self.open = True
        self.is_paused = False
        self.seed, first = self._start()
        self.state = first

    # --- the generator ----------------------------------------------------------------------------------------------

    def _generator(self) -> torch.Generator:
        if self.device == "cpu":
            return torch.default_generator
        from .. import device

        return device._generator(0)

    def _start(self) -> tuple[int, bytes]:
        generator = self._generator()
        seed, state = int(generator.initial_seed()), self._read()
        if state != self._seeded(seed):
            raise ValueError(
                "the generator has been used since it was seeded: give observe(seed=...), or seed it just before"
            )
        return seed, state

    def _read(self) -> bytes:
        return bytes(self._generator().get_state().numpy().tobytes())

    def _seeded(self, seed: int) -> bytes:
        device = "cpu" if self.device == "cpu" else "oracle:0"
        return bytes(torch.Generator(device=device).manual_seed(seed).get_state().numpy().tobytes())

    def own_generator(self, given: Any) -> bool:
        return given is None or given is self._generator()

    def before_random(self) -> None:
        """Somebody may have seeded or set the generator since the last draw."""
        now = self._read()
        if now == self.state:
            return
        seed = int(self._generator().initial_seed())
        if now == self._seeded(seed):
            self.events.append(Event("seed", args={"seed": seed}))
        else:
            self.set_state(now, "the generator was set from outside between two draws")

    def set_state(self, state: bytes, reason: str) -> None:
        if self.device == "cpu":
            self.events.append(Event("state", args={"bytes": state, "reason": reason}))
        else:
            offset = int.from_bytes(state[8:16], "little")
            self.events.append(Event("seed", args={"seed": int.from_bytes(state[:8], "little")}))
            self.events.append(Event("offset", args={"offset": offset}))

    def drawn(self) -> None:
        self.state = self._read()

    def unknown_random(self, name: str) -> None:
        now = self._read()
        if now != self.state:
            self.set_state(now, f"{name} drew, and is not stated")
            self.state = now

    # --- storages ---------------------------------------------------------------------------------------------------

    def here(self, t: torch.Tensor) -> bool:
        return t.device.type == self.device and t.layout == torch.strided and not t.is_quantized

    def memory(self, t: torch.Tensor) -> Memory:
        """The record of its storage; one that is new to the tape came from elsewhere."""
        key = t.untyped_storage()._cdata
        if key not in self.memories:
            self._add(t).opaque = "it was made before or beside the ops that were watched"
        return self.memories[key]

    def _add(self, t: torch.Tensor) -> Memory:
        storage = t.untyped_storage()
        keep = t.detach() if t.requires_grad else t
        memory = Memory(keep, t.dtype, storage.nbytes() // t.element_size())
        self.memories[storage._cdata] = memory
        return memory

    def knows(self, t: torch.Tensor) -> bool:
        return self.here(t) and t.untyped_storage()._cdata in self.memories

    def new(self, t: torch.Tensor) -> None:
        self._add(t)

    def view(self, t: torch.Tensor) -> View | None:
        """None where the storage is read as another type, or elements overlap."""
        memory = self.memory(t)
        if t.dtype != memory.dtype or terms.DTYPES.get(str(t.dtype).removeprefix("torch.")) is None:
            return None
        inside = [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1]
        if 0 in inside:
            return None
        whole = t.numel() == memory.elements and t.storage_offset() == 0 and _dense(t)
        return View(memory, list(t.shape), list(t.stride()), int(t.storage_offset()), whole, t.is_contiguous())

    # --- events -----------------------------------------------------------------------------------------------------

    def write(self, fn: str, t: torch.Tensor, **args: Any) -> bool:
        """An op of one tensor and constants. False: it cannot be said."""
        to = self.view(t)
        if to is None or not self.here(t):
            return False
        reads = fn != "fill"
        if to.whole and not reads:
            to.memory.opaque = None
        self.events.append(Event(fn, to, args=args, reads=reads or not to.whole))
        return True

    def draw(self, fn: str, t: torch.Tensor, args: tuple[Any, ...]) -> bool:
        to = self.view(t)
        if to is None or str(t.dtype).removeprefix("torch.") not in terms.FLOATS:
            return False
        if t.dtype == torch.float64 and (fn != "uniform"):
            return False
        if to.whole:
            to.memory.opaque = None
        named = dict(zip(terms.DRAWS[fn], (float(a) for a in args), strict=True))
        self.events.append(Event(fn, to, args=named, reads=not to.whole))
        return True

    def copy(self, t: torch.Tensor, source: Any) -> bool:
        if not isinstance(source, torch.Tensor) or source.shape != t.shape or not self.knows(source):
            return False
        to, origin = self.view(t), self.view(source)
        if to is None or origin is None:
            return False
        if origin.memory.opaque is not None:
            to.memory.opaque = origin.memory.opaque
            return True
        if to.whole:
            to.memory.opaque = None
        self.events.append(Event("copy", to, origin, reads=not to.whole))
        return True

    def opaque(self, t: torch.Tensor, reason: str) -> None:
        if self.here(t):
            self.memory(t).opaque = reason

    def close(self) -> None:
        self.open = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False
