"""What a card's kernels leave open, by name (docs/recipe-format.md, "Choices"): an object
operator -> name -> list of ``{"call": number or null, "value": text}``. A recipe's have a ``step`` too."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FORMAT = "step-oracle choices 1"
Choices = dict[str, dict[str, list[dict[str, Any]]]]
Row = tuple[str, str, int, str]  # as the extension takes them: operator, name, call (-1: all), value


def check(value: Any, *fields: str) -> Choices:
    """The same object. ``fields``: what an entry has, in the order in which entries are sorted; the last is the text.
    Raises ValueError for one that is none, or not in its one form."""

    def objects(of: Any, what: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(of, dict) or any(not isinstance(k, str) or not k for k in of):
            raise ValueError(f"choices: {what} is {_short(of)}; give an object")
        yield from of.items()

    for op, names in objects(value, "what is given"):
        if not names:
            raise ValueError(f"choices: {op} has no name")
        for name, entries in objects(names, op):
            where = f"choices: {op}, {name}"
            if not isinstance(entries, list) or not entries:
                raise ValueError(f"{where} is {_short(entries)}; give a list of choices")
            for entry in entries:
                if not isinstance(entry, dict) or set(entry) != set(fields):
                    raise ValueError(f"{where} has {_short(entry)}; give {', '.join(fields)}")
                for field in fields[:-1]:
                    number = entry[field]
                    if number is not None and (type(number) is not int or not 0 <= number < 1 << 32):
                        raise ValueError(f"{where} has the {field} {_short(number)}; give a number from 0, or null")
                if not isinstance(entry[fields[-1]], str) or not entry[fields[-1]].isascii():
                    raise ValueError(f"{where} has the {fields[-1]} {_short(entry[fields[-1]])}; give a text in ASCII")
            order = [_key(entry, fields) for entry in entries]
            if order != sorted(set(order)):
                raise ValueError(f"{where}: entries stand in the order of {' and '.join(fields[:-1])}, each once")
    return value  # type: ignore[no-any-return]


def _key(entry: Mapping[str, Any], fields: Iterable[str]) -> tuple[int, ...]:
    return tuple(-1 if entry[f] is None else entry[f] for f in tuple(fields)[:-1])


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def load(source: str | os.PathLike[str] | Choices) -> Choices:
    """Of a file that ``dump`` wrote, or the object itself."""
    if not isinstance(source, (str, os.PathLike)):
        return check(source, "call", "value")
    try:
        value = json.loads(pathlib.Path(source).read_text(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(source)} holds no choices: {error}") from None
    if not isinstance(value, dict) or set(value) != {"format", "choices"} or value["format"] != FORMAT:
        raise ValueError(f"{os.fspath(source)} holds no choices of this version ('{FORMAT}')")
    return check(value["choices"], "call", "value")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a key is given twice")
    return out


def dump(choices: Choices) -> str:
    return json.dumps({"format": FORMAT, "choices": choices}, indent=1, sort_keys=True) + "\n"


def rows(choices: Choices) -> list[Row]:
    return [
        (op, name, -1 if entry["call"] is None else entry["call"], entry["value"])
        for op, names in choices.items()
        for name, entries in names.items()
        for entry in entries
    ]


def taken(notes: Iterable[Mapping[str, Any]]) -> Choices:
    """Of a replay's report: what each call took. All calls that took one value have one entry."""
    values: dict[tuple[str, str, int], dict[int, str]] = {}
    for note in notes:
        values.setdefault((note["op"], note["name"], note["calls"]), {})[note["call"]] = note["value"]
    out: Choices = {}
    for (op, name, count), calls in sorted(values.items()):
        alike = len(set(calls.values())) == 1 and len(calls) == count
        entries = [(None, calls[0])] if alike else sorted(calls.items())
        out.setdefault(op, {})[name] = [{"call": call, "value": value} for call, value in entries]
    return out


@contextlib.contextmanager
def choices(which: str | os.PathLike[str] | Choices) -> Iterator[None]:
    """Operators on device "oracle" that leave a choice open take these, on this thread; without them such an operator
    raises. ``which``: a file that `step-oracle replay --save-choices` wrote, or the object. Raises ValueError at its
    end for a choice that no call took."""
    from . import device

    given = rows(load(which))
    scope = device.extension().ChoiceScope(given)
    try:
        yield
        for row, times in zip(given, scope.times(), strict=True):
            if times == 0:
                which_call = f", call {row[2]}" if row[2] >= 0 else ""
                raise ValueError(f"choices: no call took {row[1]} of {row[0]}{which_call}")
    finally:
        scope.close()


# --- of a recipe ------------------------------------------------------------------------------------------------------


def at_step(choices: Choices, step: int) -> list[tuple[Row, str]]:
    """Those that hold in a step, each with the text that names it. One of this step goes before one of every step: for
    its call, and for all calls where it is of all."""
    out = []
    for op, names in choices.items():
        for name, entries in names.items():
            own = [e for e in entries if e["step"] == step]
            every = [e for e in entries if e["step"] is None]
            if any(e["call"] is None for e in own):
                every = []
            calls = {e["call"] for e in own}
            for e in [*(e for e in every if e["call"] not in calls), *own]:
                row = (op, name, -1 if e["call"] is None else e["call"], e["value"])
                out.append((row, text_of(op, name, e)))
    return out


def text_of(op: str, name: str, entry: Mapping[str, Any]) -> str:
    return json.dumps([op, name, entry["step"], entry["call"], entry["value"]])


def texts(choices: Choices) -> list[str]:
    return [text_of(op, name, e) for op, names in choices.items() for name, entries in names.items() for e in entries]


def of_a_recipe(choices: Choices) -> Choices:
    """What holds in every step."""
    return {
        op: {name: [{"step": None, **e} for e in entries] for name, entries in names.items()}
        for op, names in choices.items()
    }
