"""From recorded steps to a program: the ops that the state and the loss depend on, over numbered slots.

What a recording holds and no step needs is left out: views (each tensor states its own geometry), the host's making of
the batch (the sampler's), numbers that the host read. What differs between two recorded steps must have a term that
computes it, or the program is refused.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from step_oracle.trace import Record, Trace

from . import digests
from .canonical import dump

FORMAT = "step-oracle program 1"
MOST_CONSTANT = 1 << 16  # bytes of a tensor that a program may carry
STATE_ROLES = ("parameter", "buffer", "optimizer")
Key = tuple[int, int]  # storage id, generation


class NotAProgram(ValueError):
    """Why the recorded steps cannot be walked: a sentence."""


@dataclass
class Number:
    """A float of an op's arguments: the same place in every recorded step."""

    value: float
    phase: str


@dataclass
class Slot:
    kind: str  # state, batch, bytes
    name: str
    place: list[Any]  # device, dtype, shape, strides
    digest: str = ""  # of a bytes slot
    raw: bytes | None = None
    phase: str = ""


@dataclass
class Draft:
    """One recorded step as a program, with its literals as they were."""

    slots: list[Slot]
    ops: list[list[Any]]
    state: dict[str, Any]
    loss: Any
    numbers: list[Number]
    where: list[str]  # of each number
    state_digests: dict[str, str] = field(default_factory=dict)  # at the end of the step
    start_digests: dict[str, str] = field(default_factory=dict)  # at its start, where the trace says
    generator: tuple[str, str] | None = None  # before the first draw, after the last one
    loss_digest: str = ""
    loss_shape: list[int] = field(default_factory=list)

    def shape(self) -> str:
        """Equal for two recordings of one program."""
        slots = [[s.kind, s.name if s.kind != "bytes" else "", s.place] for s in self.slots]
        return dump([slots, _masked(self.ops), self.state, self.loss])


def _masked(value: Any) -> Any:
    if isinstance(value, Number):
        return "number"
    if isinstance(value, list):
        return [_masked(v) for v in value]
    if isinstance(value, dict):
        return {k: _masked(v) for k, v in value.items()}
    return value


def key_of(t: Record) -> Key:
    return t.storage, t.generation


def named_state(names: Iterable[Record], roles: Iterable[str] = STATE_ROLES) -> dict[str, Record]:
    """Tensors by name; of two names for one tensor, the first."""
    out: dict[str, Record] = {}
    seen = set()
    for n in names:
        if n.tensor is None or n.tensor.storage == 0 or n.role not in roles:
            continue
        where = (*key_of(n.tensor), n.tensor.offset, tuple(n.tensor.shape), tuple(n.tensor.strides))
        if where not in seen:
            seen.add(where)
            out[n.name] = n.tensor
    return out


def dense(shape: list[int]) -> list[int]:
    out, n = [1] * len(shape), 1
    for d in reversed(range(len(shape))):
        out[d] = n
        n *= max(shape[d], 1)
    return out


def device_of(t: str) -> str:
    if t in ("cpu", "host"):
        return "host"
    if t in ("oracle:0", "cuda:0", "oracle", "cuda"):
        return "card"
    raise NotAProgram(f"the steps use the device {t}: a recipe is of one card, index 0")


def span(place: list[Any]) -> int:
    """Bytes of a storage that just holds a place."""
    if 0 in place[2]:
        return 0
    last = sum((n - 1) * s for n, s in zip(place[2], place[3] if len(place) > 3 else dense(place[2]), strict=True))
    return int((last + 1) * torch.empty(0, dtype=getattr(torch, place[1])).element_size())


def place_of(t: Record) -> list[Any]:
    place = [device_of(t.device), t.dtype, t.shape]
    if t.strides != dense(t.shape) and 0 not in t.shape:
        place.append(t.strides)
    return place


class Extractor:
    """``batches``: digest of a batch tensor -> its name and shape. ``kept``: other traces whose blobs may be read."""

    def __init__(self, trace: Trace, batches: dict[str, tuple[str, list[int]]], kept: Iterable[Trace] = ()) -> None:
        if not trace.complete:
            raise NotAProgram(f"{trace.path} is not complete: {trace.reason}")
        self.trace, self.batches, self.kept = trace, batches, [trace, *kept]
        self.ops: list[Record] = list(trace.ops)
        self.storages = {(s.id, s.generation): s for s in trace.storages}
        self.first: dict[Key, int] = {}  # the op that makes a storage
        for i, op in enumerate(self.ops):
            for t in op.tensors:
                if t.created and t.storage and key_of(t) not in self.first and not self.storages[key_of(t)].entered:
                    self.first[key_of(t)] = i
        self.schemas: dict[str, Any] = {}

    def draft(self, loss: bool = True) -> Draft:
        end = named_state(self.trace.names_end)
        losses = [n for n in self.trace.names_end if n.role == "loss" and n.tensor is not None]
        if loss and not losses:
            raise NotAProgram(
                f"{self.trace.path} has no loss: call backward() on a tensor of one element inside the recorded block"
            )
        roots = [key_of(t) for t in end.values()] + ([key_of(losses[-1].tensor)] if loss else [])
        start = named_state(self.trace.names, (*STATE_ROLES, "gradient"))
        live, bound, needed = self._live(set(roots))
        self._slots(start, needed, bound, live)
        ops = [self._op(self.ops[i], i) for i in sorted(live)]
        draft = Draft(
            self.globals,
            ops,
            {n: self._use(t, end=True) for n, t in sorted(end.items())},
            self._use(losses[-1].tensor, end=True) if loss else None,
            self.numbers,
            self.where,
        )
        if loss:
            draft.loss_digest, draft.loss_shape = losses[-1].tensor.after or "", losses[-1].tensor.shape
        draft.state_digests = {n: t.after for n, t in end.items()}
        draft.start_digests = {n: t.before for n, t in start.items() if t.before}
        draws = [g for i in sorted(live) for g in self.ops[i].generators if device_of(g.device) == "card"]
        for a, b in zip(draws, draws[1:], strict=False):
            if a.after != b.before:
                raise NotAProgram(f"{self.trace.path}: the card's generator was set inside the step")
        draft.generator = (draws[0].before, draws[-1].after) if draws else None
        return draft

    def _live(self, needed: set[Key]) -> tuple[set[int], dict[Key, str], set[Key]]:
        live: set[int] = set()
        bound: dict[Key, str] = {}  # storages that hold a batch -> its digest
        for i in reversed(range(len(self.ops))):
            op = self.ops[i]
            made = [t for t in op.tensors if t.storage and t.created and self.first.get(key_of(t)) == i]
            written = made + [t for t in op.tensors if t.storage and (t.mutated or t.undeclared)]
            draws = any(device_of(g.device) == "card" for g in op.generators)
            if not draws and not any(key_of(t) in needed for t in written):
                continue
            self._refuse(op, i)
            batch = [t for t in made if t.after in self.batches and key_of(t) in needed]
            if batch and len(written) == 1 and batch[0].strides == dense(batch[0].shape):
                needed.discard(key_of(batch[0]))
                bound[key_of(batch[0])] = batch[0].after
                continue
            if any(device_of(g.device) == "host" for g in op.generators):
                remedy = (
                    "only the batch of the recipe's sampler may"
                    if self.batches
                    else "draw it before the recorded block, or on the card"
                )
                raise NotAProgram(
                    f"op {i} ({op.op}) draws from the host's generator, and the state depends on it: {remedy}"
                )
            live.add(i)
            needed |= {key_of(t) for t in op.tensors if t.storage}
        return live, bound, needed

    def _refuse(self, op: Record, i: int) -> None:
        if op.error:
            raise NotAProgram(f"op {i} ({op.op}) raised when it was recorded: {op.error}")
        if op.collective is not None:
            raise NotAProgram(f"op {i} ({op.op}) is a collective: recipes of several ranks are not supported yet")
        for t in op.tensors:
            if t.storage and t.generation:
                raise NotAProgram(f"op {i} ({op.op}) uses a storage that was resized")

    def _slots(self, start: dict[str, Record], needed: set[Key], bound: dict[Key, str], live: set[int]) -> None:
        self.globals: list[Slot] = []
        self.numbers: list[Number] = []
        self.where: list[str] = []
        self.slot: dict[Key, int] = {}
        self.made = 0
        self.place: dict[int, list[Any]] = {}
        entered = [k for k in needed if k not in self.first]
        by_storage = {key_of(t): (n, t) for n, t in reversed(list(start.items()))}
        state = sorted((by_storage[k][0], k) for k in entered if k in by_storage)
        for name, k in state:
            t = by_storage[k][1]
            if t.offset or span(place_of(t)) != self.storages[k].nbytes:
                raise NotAProgram(f"'{name}' is a part of a larger storage: recipes hold whole ones")
            self._global(k, Slot("state", name, place_of(t)))
        rest = [k for k in entered if k not in by_storage]
        for k in rest:
            if self.storages[k].initial in self.batches:
                bound[k] = self.storages[k].initial
        uses: dict[Key, tuple[Record, str]] = {}
        for i in sorted(live):
            for t in self.ops[i].tensors:
                if t.storage:
                    uses.setdefault(key_of(t), (t, self.ops[i].phase))
        for name, shape, k in sorted((*self.batches[digest], k) for k, digest in bound.items()):
            if k in uses:
                self._global(k, Slot("batch", name, [device_of(uses[k][0].device), "int64", shape]))
        for k in sorted(
            (k for k in rest if k not in bound and k in uses),
            key=lambda k: min(i for i in live if any(key_of(t) == k for t in self.ops[i].tensors)),
        ):
            self._global(k, self._constant(k, *uses[k]))

    def _global(self, k: Key, slot: Slot) -> None:
        self.slot[k] = len(self.globals)
        self.place[self.slot[k]] = slot.place
        self.globals.append(slot)
        self.made = len(self.globals)

    def _constant(self, k: Key, t: Record, phase: str) -> Slot:
        s = self.storages[k]
        op = next(i for i, op in enumerate(self.ops) if any(key_of(x) == k for x in op.tensors))
        if s.initial is None:
            raise NotAProgram(
                f"op {op} ({self.ops[op].op}) reads a storage of {s.nbytes} bytes that has no name and no digest"
            )
        if s.nbytes > MOST_CONSTANT:
            raise NotAProgram(
                f"op {op} ({self.ops[op].op}) reads {s.nbytes} bytes that are neither state nor the sampler's "
                "batch: make them inside the step, or a buffer of the model"
            )
        place = (
            place_of(t)
            if not t.offset and span(place_of(t)) == s.nbytes
            else [device_of(t.device), "uint8", [s.nbytes]]
        )
        raw = next((t.blob(s.initial) for t in self.kept if t.has_blob(s.initial)), None)
        return Slot("bytes", "", place, s.initial, raw, phase)

    # --- ops --------------------------------------------------------------------------------------------------------

    def _use(self, t: Record, end: bool = False) -> Any:
        k = key_of(t)
        if k not in self.slot:
            raise NotAProgram(f"storage {k[0]} is read and nothing makes it")
        slot = self.slot[k]
        at = slot if slot < len(self.globals) else slot - self.made
        own = self.place[slot]
        strides = own[3] if len(own) > 3 else dense(own[2])
        same = t.shape == own[2] and t.dtype == own[1] and t.offset == 0
        if same and all(a == b or n <= 1 for a, b, n in zip(t.strides, strides, t.shape, strict=True)):
            return at
        if end:
            raise NotAProgram("a named tensor is a view of another one at the end of the step")
        return [at, t.dtype, t.shape, t.strides, t.offset]

    def _arguments(self, op: Record) -> Any:
        if op.op not in self.schemas:
            name, overload = split_name(op.op)
            self.schemas[op.op] = [(a.name, str(a.real_type)) for a in torch._C._get_schema(name, overload).arguments]
        return self.schemas[op.op]

    def _value(self, v: Any, kind: str, op: Record, where: str) -> Any:
        if v is None and kind in ("Tensor", "List[Tensor]"):  # an undefined one
            return {"t": None}
        if v is None or isinstance(v, (bool, int)):
            return v
        if isinstance(v, float):
            if math.isfinite(v):
                self.numbers.append(Number(v, op.phase))
                self.where.append(where)
                return self.numbers[-1]
            return {"float": "nan" if math.isnan(v) else "inf" if v > 0 else "-inf"}
        if isinstance(v, str):
            if "ScalarType" in kind:
                return {"dtype": v}
            return {"device": device_of(v)} if "Device" in kind else v
        if isinstance(v, list):
            return [self._value(item, kind, op, where) for item in v]
        if "tensor" in v:
            if v["tensor"] < 0:
                return {"t": None}
            t = op.tensors[v["tensor"]]
            return {"w" if t.wrapped_number else "t": self._use(t)}
        if "generator" in v:
            return {"generator": device_of(v["generator"])}
        if set(v) <= {"layout", "memory_format"}:
            return v
        raise NotAProgram(f"{where} is {v}, which a program cannot hold")

    def _op(self, op: Record, i: int) -> list[Any]:
        name, overload = split_name(op.op)
        args = [
            self._value(v, kind, op, f"op {i} ({op.op}), argument '{a}'")
            for v, (a, kind) in zip(op.args, self._arguments(op), strict=True)
        ]
        results: list[list[Any] | None] = []
        for v in flat(op.returns):
            t = op.tensors[v["tensor"]] if isinstance(v, dict) and v.get("tensor", -1) >= 0 else None
            if t is None and not (v is None or isinstance(v, dict)):
                continue  # a number
            if t is None or key_of(t) in self.slot or not t.storage:
                results.append(None)
                continue
            if t.offset:
                raise NotAProgram(f"op {i} ({op.op}) makes a tensor that does not begin its storage")
            self.slot[key_of(t)] = self.made + sum(r is not None for r in results)
            self.place[self.slot[key_of(t)]] = place_of(t)
            results.append(place_of(t))
        self.made += sum(r is not None for r in results)
        return [name, overload, args, results]


def split_name(op: str) -> tuple[str, str]:
    parts = op.split(".")
    return f"{parts[0]}::{parts[1]}", parts[2] if len(parts) > 2 else ""


def flat(values: list[Any]) -> Iterable[Any]:
    for v in values:
        if isinstance(v, list):
            yield from flat(v)
        else:
            yield v


# --- from drafts to one program -------------------------------------------------------------------------------------


def program(drafts: list[Draft], terms: list[dict[str, float]]) -> dict[str, Any]:
    """One program from recordings of it. ``terms``: every candidate's value at each recorded step, by preference."""
    chosen: list[Any] = []
    for n, first in enumerate(drafts[0].numbers):
        values = [d.numbers[n].value for d in drafts]
        term = _term(values, terms)
        same = all(v.hex() == values[0].hex() for v in values)
        if term and (first.phase == "optimizer" or not same):
            chosen.append({"term": term})
        elif same:
            chosen.append(first.value)
        else:
            raise NotAProgram(
                f"{drafts[0].where[n]} changes from step to step ({', '.join(map(repr, values))}), and no term of "
                "the optimizer or the learning rate computes it"
            )
    numbers = {id(x): chosen[i] for i, x in enumerate(drafts[0].numbers)}
    slots = [_slot([d.slots[i] for d in drafts], terms) for i in range(len(drafts[0].slots))]
    return {
        "format": FORMAT,
        "slots": slots,
        "ops": _filled(drafts[0].ops, numbers),
        "state": drafts[0].state,
        "loss": drafts[0].loss,
    }


def _filled(value: Any, numbers: dict[int, Any]) -> Any:
    if isinstance(value, Number):
        return numbers[id(value)]
    if isinstance(value, list):
        return [_filled(v, numbers) for v in value]
    if isinstance(value, dict):
        return {k: _filled(v, numbers) for k, v in value.items()}
    return value


def _term(values: list[float], terms: list[dict[str, float]]) -> str | None:
    if not terms:
        return None
    for key in terms[0]:
        if all(t[key].hex() == v.hex() for t, v in zip(terms, values, strict=True)):
            return key
    return None


def _slot(slots: list[Slot], terms: list[dict[str, float]]) -> dict[str, Any]:
    s = slots[0]
    if s.kind != "bytes":
        return {s.kind: s.name, "is": s.place}
    same = all(x.digest == s.digest for x in slots)
    if s.place == ["host", "float64", []] and (s.phase == "optimizer" or not same):
        digest = digests.of_tensor
        for key in terms[0] if terms else ():
            if all(
                digest(torch.tensor(t[key], dtype=torch.float64)) == x.digest for t, x in zip(terms, slots, strict=True)
            ):
                return {"term": key, "is": s.place}
    if not same:
        raise NotAProgram(
            f"a tensor {s.place[1]}{s.place[2]} that the steps read and that is neither state nor the sampler's "
            "batch changes from step to step"
        )
    raw = next((x.raw for x in slots if x.raw is not None), None)
    if raw is None:
        raise NotAProgram(
            f"no recording keeps the bytes of a tensor {s.place[1]}{s.place[2]} that the steps read: record one of "
            "the steps with keep='state'"
        )
    return {"bytes": base64.b64encode(raw).decode().rstrip("="), "is": s.place}
