"""A trace: what the recorder wrote, read back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, overload

from . import _record


class Record(dict[str, Any]):
    """A record: its fields as keys (for JSON) and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this record has no '{name}'; it has {', '.join(self)}") from None


def _record_of(value: Any) -> Any:
    if isinstance(value, dict):
        return Record({k: _record_of(v) for k, v in value.items()})
    if isinstance(value, list):
        return [_record_of(v) for v in value]
    return value


class Ops(Sequence[Record]):
    """The ops in their order; each is taken from the file's records when it is asked for."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return int(self._trace.op_count)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"op {index} of {len(self)}")
        record: Record = _record_of(self._trace.op(at))
        return record

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))


class Trace:
    """``step_oracle.load(path)``. Fields: docs/trace-format.md."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._trace = _record.open_trace(os.fspath(path))
        self.path: str = self._trace.path
        self.version: int = self._trace.version
        self.bytes: int = self._trace.bytes
        self.complete: bool = self._trace.complete
        self.reason: str = self._trace.reason  # why it is not complete, in one sentence
        self.environment: Record = _record_of(self._trace.environment)
        self.ops = Ops(self._trace)

    def __repr__(self) -> str:
        return f"<Trace {self.path!r}: {len(self.ops)} ops{'' if self.complete else ', not complete'}>"

    @property
    def names(self) -> list[Record]:
        """Names of tensors and numbers when the recording began."""
        names: list[Record] = _record_of(self._trace.names_start)
        return names

    @property
    def names_end(self) -> list[Record]:
        """The same when it ended."""
        names: list[Record] = _record_of(self._trace.names_end)
        return names

    @property
    def storages(self) -> list[Record]:
        storages: list[Record] = _record_of(self._trace.storages)
        return storages

    @property
    def events(self) -> list[Record]:
        events: list[Record] = _record_of(self._trace.events)
        return events

    @property
    def plans(self) -> list[Record]:
        plans: list[Record] = _record_of(self._trace.plans)
        return plans

    @property
    def completions(self) -> list[Record]:
        """Collectives that have completed: the op that launched each, and the first op after it was seen to be done."""
        completions: list[Record] = _record_of(self._trace.completions)
        return completions

    def has_blob(self, digest: str) -> bool:
        return bool(self._trace.has_blob(digest))

    def blob(self, digest: str) -> bytes:
        """The bytes behind a digest, where the trace keeps them; they are digested again and compared."""
        return bytes(self._trace.blob(digest))

    def check(self) -> int:
        """Reads all kept bytes and compares their digests. Returns how many there are."""
        return int(self._trace.check_blobs())

    def first_nan(self) -> Record | None:
        """The first op that a NaN comes out of, where the bytes are kept; ``entered``: it came in with an input."""
        return _record_of(self._trace.first_nan())  # type: ignore[no-any-return]

    def info(self) -> dict[str, Any]:
        cards = self.environment.cards
        card = {k: cards[0][k] for k in ("name", "sms", "threads_per_sm", "compute_capability")} if cards else None
        return {
            "version": self.version, "complete": self.complete, "reason": self.reason, "ops": len(self.ops),
            "tensors": int(self._trace.tensor_count), "bytes": self.bytes, "card": card,
            "storages": len(self.storages), "names": len(self.names), "blobs": int(self._trace.blob_count),
            "steps": sum(e.kind == "step end" for e in self.events),
            "notes": [e.text for e in self.events if e.kind in ("note", "not seen")],
            "seconds": self._trace.seconds, "hashed": self._trace.hashed, "environment": self.environment,
        }


def load(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace. A file that was cut reads up to its last whole record, and is not ``complete``."""
    return Trace(path)


def diff(a: str | os.PathLike[str] | Trace, b: str | os.PathLike[str] | Trace) -> Record:
    """Compares two traces: ``equal``, ``first`` difference, ``root`` differences with their cause, ``knock_on``."""
    one, other = (t if isinstance(t, Trace) else load(t) for t in (a, b))
    report: Record = _record_of(_record.diff_traces(one._trace, other._trace))
    return report
