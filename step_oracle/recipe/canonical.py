"""JSON with one spelling for one value, and fields that know whether they were read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 64 << 20  # a recipe of a 124 M run is 100 kB


class Malformed(ValueError):
    """What was given is no recipe: a sentence."""


def dump(value: Any) -> str:
    """Keys sorted, no spaces, ASCII, the shortest decimal of each float."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise Malformed(f"the field '{key}' is given twice")
        out[key] = value
    return out


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed(f"the number {text[:40]} is larger than a double can be")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 64:
        raise Malformed(f"the number {text[:40]}{'...' if len(text) > 40 else ''} does not fit 64 bits")
    return int(text)


def _no_constant(text: str) -> Any:
    raise Malformed(f"{text} is no number of a recipe")


def parse(text: str | bytes, what: str = "the recipe") -> Any:
    """The value of a text that is exactly what ``dump`` would write."""
    if len(text) > MOST_BYTES:
        raise Malformed(f"{what} has {len(text)} bytes, and at most {MOST_BYTES} are read")
    try:
        if isinstance(text, bytes):
            text = text.decode("ascii")
        text = text.removesuffix("\n")
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_float=_number, parse_int=_integer, parse_constant=_no_constant
        )
    except Malformed as error:
        raise Malformed(f"{what}: {error}") from None
    except UnicodeDecodeError:
        raise Malformed(f"{what} holds bytes that are not ASCII") from None
    except RecursionError:
        raise Malformed(f"{what} is nested too deep") from None
    except ValueError as error:
        raise Malformed(f"{what} is not JSON: {error}") from None
    if dump(value) != text:
        raise Malformed(
            f"{what} is not in its canonical form (sorted keys, no spaces, shortest numbers): write it with "
            "`step-oracle recipe write`"
        )
    return value


class Block:
    """An object of the recipe. Each field that is asked for is noted; ``unread`` lists the others."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise Malformed(f"{where or 'the recipe'} is {_short(value)}; give an object")
        self._value, self._where = value, where
        self._read: set[str] = set()
        self._inner: dict[str, Block | list[Block]] = {}

    def fail(self, field: str, what: str) -> Malformed:
        return Malformed(f"{self._path(field)} is {_short(self._value.get(field))}; {what}")

    def _path(self, field: str) -> str:
        return f"{self._where}.{field}" if self._where else field

    def __contains__(self, field: str) -> bool:
        return field in self._value

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def only(self, required: str, optional: str = "") -> None:
        for field in required.split():
            if field not in self._value:
                raise Malformed(f"{self._where or 'the recipe'} has no field '{field}'")
        for field in self._value:
            if field not in required.split() + optional.split():
                raise Malformed(f"{self._path(field)}: there is no such field in this version")

    def raw(self, field: str) -> Any:
        """Without noting that it was read: for checks that do not use the value."""
        return self._value.get(field)

    def value(self) -> dict[str, Any]:
        """All of it, as read: for one that checks and consumes every field itself."""
        self._read |= set(self._value)
        return self._value

    def get(self, field: str) -> Any:
        self._read.add(field)
        return self._value[field]

    def text(self, field: str) -> str:
        if not isinstance(self._value.get(field), str):
            raise self.fail(field, "give a text")
        return str(self.get(field))

    def digest(self, field: str) -> str:
        if not is_digest(self._value.get(field)):
            raise self.fail(field, "give 64 lower-case hexadecimal digits")
        return str(self.get(field))

    def integer(self, field: str, least: int = 0, most: int = (1 << 62)) -> int:
        value = self._value.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fail(field, f"give a whole number from {least} to {most}")
        return int(self.get(field))

    def number(self, field: str, least: float, most: float) -> float:
        value = self._value.get(field)
        if not isinstance(value, float) or not least <= value <= most:
            raise self.fail(field, f"give a number from {least} to {most}, with a decimal point or an exponent")
        return float(self.get(field))

    def block(self, field: str) -> Block:
        if field not in self._inner:
            self._inner[field] = Block(self._value.get(field), self._path(field))
        self._read.add(field)
        inner = self._inner[field]
        assert isinstance(inner, Block)
        return inner

    def blocks(self, field: str, least: int = 0) -> list[Block]:
        value = self._value.get(field)
        if not isinstance(value, list) or len(value) < least:
            raise self.fail(field, f"give a list of at least {least}")
        if field not in self._inner:
            self._inner[field] = [Block(v, f"{self._path(field)}[{i}]") for i, v in enumerate(value)]
        self._read.add(field)
        inner = self._inner[field]
        assert isinstance(inner, list)
        return inner

    def forget_reads(self) -> None:
        self._read.clear()
        for inner in self._inner.values():
            for block in [inner] if isinstance(inner, Block) else inner:
                block.forget_reads()

    def reads(self) -> set[str]:
        out = {self._path(f) for f in self._read}
        for inner in self._inner.values():
            for block in [inner] if isinstance(inner, Block) else inner:
                out |= block.reads()
        return out

    def unread(self) -> list[str]:
        out = [self._path(f) for f in self._value if f not in self._read]
        for field, inner in self._inner.items():
            if field in self._read:
                for block in [inner] if isinstance(inner, Block) else inner:
                    out += block.unread()
        return out


def is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _short(value: Any) -> str:
    text = json.dumps(value) if value is not None else "missing or null"
    return text if len(text) <= 60 else text[:57] + "..."
