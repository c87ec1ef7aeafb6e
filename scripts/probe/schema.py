"""Says of JSON that a stranger wrote whether it has the form that this tree's probe writes; the first fault, if not.

A shape is a function (value, where) that raises ValueError. Rows take no key that they do not list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

Shape = Callable[[Any, str], None]


def load(data: bytes) -> Any:
    """JSON without NaN; nested too deeply is ValueError too."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def fault(where: str, value: Any, wanted: str) -> ValueError:
    if isinstance(value, int) and abs(value) >= 1 << 64:
        text = "a huge number"
    elif isinstance(value, list):
        text = f"a list of {len(value)}"
    else:
        text = ascii(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return ValueError(f"{where} is {text if len(text) <= 60 else text[:57] + '...'}, and {wanted} is expected")


def text(pattern: str, says: str) -> Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise fault(where, value, says)

    return check


def free(most: int) -> Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or len(value) > most or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            raise fault(where, value, f"a text of at most {most} characters")

    return check


def integer(low: int, high: int) -> Shape:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            at_most = str(high) if high < 1 << 40 else "2^" + str(high.bit_length() - 1)
            raise fault(where, value, f"an integer from {low} to {at_most}")

    return check


def number(value: Any, where: str) -> None:
    if type(value) not in (int, float) or not -1e15 < value < 1e15 or not math.isfinite(value):
        raise fault(where, value, "a number")


def flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise fault(where, value, "true or false")


def nothing(value: Any, where: str) -> None:
    if value is not None:
        raise fault(where, value, "null")


def listed(shape: Shape, most: int, least: int = 0) -> Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise fault(where, value, f"a list of {least} to {most}")
        for i, item in enumerate(value):
            shape(item, f"{where}[{i}]")

    return check


def table(key: str, shape: Shape, most: int) -> Shape:
    """Any keys of that form."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise fault(where, value, f"an object of at most {most} entries")
        for name, item in value.items():
            if not re.fullmatch(key, name, re.ASCII):
                raise fault(f"a name in {where}", name, "another")
            shape(item, f"{where}.{name}")

    return check


def row(required: dict[str, Shape], optional: dict[str, Shape] | None = None) -> Shape:
    shapes = {**required, **(optional or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise fault(where, value, "an object")
        for name in required:
            if name not in value:
                raise ValueError(f"{where} has no {name}")
        for name, item in value.items():
            if name not in shapes:
                raise fault(f"a name in {where}", name, "another")
            shapes[name](item, f"{where}.{name}")

    return check


def either(*shapes: Shape) -> Shape:
    """The fault of the last is the one that is told."""

    def check(value: Any, where: str) -> None:
        for shape in shapes[:-1]:
            try:
                shape(value, where)
                return
            except ValueError:
                continue
        shapes[-1](value, where)

    return check


def plain(depth: int) -> Shape:
    """Anything, within bounds."""
    leaf = either(nothing, flag, number, free(2000))
    if depth == 0:
        return leaf
    inner = plain(depth - 1)

    def check(value: Any, where: str) -> None:
        if isinstance(value, dict):
            table(r"[ -~]{1,100}", inner, 300)(value, where)
        elif isinstance(value, list):
            listed(inner, 300)(value, where)
        else:
            leaf(value, where)

    return check


# --- what card_probe writes -------------------------------------------------------------------------------------------

SECTIONS = ("vectors", "arith", "products", "attention", "steps", "costs")
HEX64 = text(r"[0-9a-f]{64}", "64 hexadecimal digits")
_WORD = text(r"[A-Za-z0-9_.+@-]{0,64}", "a short word")
_ERROR = row({"error": free(2000)})
_NA = row({"na": free(2000)})

CARD = row(
    {
        "name": text(r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,79}", "a card's name"),
        "compute_capability": text(r"[1-9][0-9]?\.[0-9]", "a compute capability such as 9.0"),
    },
    {
        "virtual": flag,
        "sms": integer(1, 1024),
        "threads_per_sm": integer(1, 4096),
        "memory": integer(0, 1 << 48),
        "uuid": text(r"[A-Za-z0-9-]{0,64}", "a UUID"),
    },
)
RUN = row(
    {
        "card": CARD,
        "driver": either(nothing, _WORD),
        "torch": text(r"[0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+_-]{0,60}", "a version of torch"),
        "source": text(r"[0-9a-f]{16}", "16 hexadecimal digits"),
        "dry": flag,
    }
)
_SUMMARY = row(
    {
        "units": integer(0, 100000),
        "done": integer(0, 100000),
        "errors": listed(free(200), 20),
        "failed": integer(0, 100000),
        "whole": flag,
        "seconds": number,
    }
)
MANIFEST = row(
    {
        "format": free(100),
        "run": RUN,
        "dry": flag,
        "card": CARD,
        "versions": table(r"[a-z_]{1,40}", plain(3), 40),
        "command": listed(free(4096), 100),
        "commit": text(r"([0-9a-f]{40})?", "a commit"),
        "build": free(500),
        "sections": table("|".join(SECTIONS), _SUMMARY, len(SECTIONS)),
        "left_out": listed(free(500), 1000),
        "files": table(
            rf"({'|'.join(SECTIONS)})\.json\.xz|traces-[1-9]\.tar",
            row({"bytes": integer(0, 1 << 30), "sha256": HEX64}),
            16,
        ),
        "written": integer(1577836800, 4102444800),  # 2020 to 2100
    }
)

_VECTOR = row(
    {
        "outputs": table(
            r"[A-Za-z0-9_]{1,64}",
            row(
                {"digest": HEX64},
                {
                    "first": listed(listed(either(integer(0, 1 << 48), _WORD), 3, 3), 8, 1),
                    "count": integer(-1, 1 << 48),
                    "bytes": free(1 << 20),
                },
            ),
            100,
        ),
        "equal": flag,
    }
)
_ARITH = row(
    {
        "count": integer(1, 1 << 24),
        "chunks": listed(HEX64, 256, 256),
        "samples": free(32 << 20),
        "per_chunk": integer(1, 4096),
        "step": integer(1, 1 << 24),
    },
    {
        "table": row(
            {
                "first": integer(0, (1 << 32) - 1),
                "step": integer(1, 1 << 24),
                "count": integer(1, 1 << 24),
                "words": free(128 << 20),
            }
        )
    },
)
_PRODUCTS = row(
    {
        "dtype": _WORD,
        "switch": text(r"[a-z0-9_]{1,60}=(True|False)", "a switch"),
        "products": listed(
            row(
                {
                    "index": integer(0, 1000),
                    "m": integer(1, 1 << 17),
                    "n": integer(1, 1 << 17),
                    "k": integer(1, 1 << 17),
                    "layout": text("nn|nt|tn", "nn, nt or tn"),
                    "digest": HEX64,
                    "lines": listed(free(8192), 100),
                },
                {"heuristic": either(_NA, table(r"[a-z]{1,20}", integer(0, 1 << 40), 20))},
            ),
            20,
        ),
    }
)
_ATTENTION = row({"outputs": table(r"[a-z_]{1,20}", row({"sha256": HEX64, "equal": flag}), 10), "equal": flag})
_COMPILED = row(
    {
        "outputs": table(
            r"[A-Za-z0-9_]{1,64}",
            row(
                {"sha256": text(r"[0-9a-f]{32}", "32 hexadecimal digits")},
                {"few": listed(_WORD, 4), "count": integer(0, 1 << 48)},
            ),
            100,
        ),
        "equal": flag,
    }
)
_TRACE = row(
    {
        "name": text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.trace", "a trace's name"),
        "steps": integer(0, 1000),
        "keep": _WORD,
        "ops": integer(0, 1 << 40),
        "complete": flag,
        "reason": either(nothing, free(2000)),
        "bytes": integer(0, 1 << 48),
    }
)
_STEPS = row(
    {
        "traces": listed(_TRACE, 10),
        "losses": listed(free(40), 100),
        "not_set": listed(free(200), 20),
        "seed": integer(-(1 << 63), 1 << 64),
        "text": HEX64,
    }
)
_COSTS = table(r"[a-z :]{1,60}", number, 20)
_NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}(/[A-Za-z0-9_.-]{1,120}){0,2}"
UNITS = {
    "vectors": either(_NA, _ERROR, _VECTOR, _COMPILED),
    "arith": either(_ERROR, _ARITH),
    "products": either(_ERROR, _PRODUCTS),
    "attention": either(_NA, _ERROR, _ATTENTION),
    "steps": either(_ERROR, _STEPS),
    "costs": either(_ERROR, _COSTS),
}


def section(name: str) -> Shape:
    return row({"section": text(name, name), "run": RUN, "units": table(_NAMES, UNITS[name], 5000)})
