"""Numbers that the host computes anew for each step: the learning rate, bias corrections.

A term is defined by real arithmetic rounded once to a double per operation, so that every host computes it. Where the
run's own host rounded a power or a cosine otherwise (its libm), the recipe lists that value: an exception.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from decimal import Context, Decimal, localcontext
from typing import Any

from .canonical import Block, Malformed

DIGITS = 60  # of the decimal arithmetic behind one rounding; a double has 17
MOST_STEPS = 1 << 24


def bits_of(value: float) -> str:
    return struct.pack(">d", value).hex()


def float_of(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


def rounded(compute: Callable[[], Decimal]) -> float:
    """The double nearest to a real number that ``compute`` gives to the current precision, less some digits."""
    for digits in (DIGITS, 4 * DIGITS, 16 * DIGITS):
        with localcontext(Context(prec=digits, Emax=999999, Emin=-999999)):
            value = compute()
            slack = abs(value).scaleb(10 - digits)
            low, high = float(value - slack), float(value + slack)
        if low == high:
            return low
    return float(value)  # exact, or a tie to 960 digits


def power(base: float, exponent: float) -> float:
    """base ** exponent, rounded once. ``exponent`` is a whole number or 0.5."""
    if exponent == 0.5:
        return math.sqrt(base)
    return rounded(lambda: Decimal(base) ** int(exponent))


def cosine(x: float) -> float:
    """cos(x), rounded once, for 0 <= x <= 4."""

    def series() -> Decimal:
        square, term, total, n = Decimal(x) ** 2, Decimal(1), Decimal(1), 0
        while abs(term) > Decimal(10) ** -(DIGITS * 20):
            n += 2
            term *= -square / (n * (n - 1))
            if total + term == total:
                break
            total += term
        return total

    return rounded(series)


class Functions:
    """Power and cosine as the run's host rounded them: correctly, but for the exceptions."""

    def __init__(self, exceptions: Iterable[tuple[str, str, str, str]] = ()) -> None:
        self._exceptions = {(f, a, b): value for f, a, b, value in exceptions}
        self.used: set[tuple[str, str, str]] = set()
        self._known: dict[tuple[str, float, float], float] = {}

    def _call(self, name: str, a: float, b: float, compute: Callable[[], float]) -> float:
        key = (name, a, b)
        if key not in self._known:
            if (name, bits_of(a), bits_of(b)) in self._exceptions:
                self.used.add((name, bits_of(a), bits_of(b)))
                self._known[key] = float_of(self._exceptions[name, bits_of(a), bits_of(b)])
            else:
                self._known[key] = compute()
        return self._known[key]

    def power(self, base: float, exponent: float) -> float:
        return self._call("power", base, exponent, lambda: power(base, exponent))

    def cosine(self, x: float) -> float:
        return self._call("cosine", x, 0.0, lambda: cosine(x))

    def unused(self) -> list[tuple[str, str, str]]:
        return sorted(set(self._exceptions) - self.used)


class HostFunctions(Functions):
    """As this host's libm rounds them, keeping what differs from the correctly rounded value."""

    def __init__(self) -> None:
        super().__init__()
        self.exceptions: dict[tuple[str, str, str], str] = {}

    def _call(self, name: str, a: float, b: float, compute: Callable[[], float]) -> float:
        key = (name, a, b)
        if key not in self._known:
            own = a**b if name == "power" else math.cos(a)
            if own != compute():
                self.exceptions[name, bits_of(a), bits_of(b)] = bits_of(own)
            self._known[key] = own
        return self._known[key]


# --- learning rate --------------------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": "kind lr",
    "warmup cosine": "kind lr least warmup decay",
    "table": "kind lr",
}


def check_schedule(s: Block, steps: int) -> None:
    """``steps``: of the run. A table has one entry for each."""
    kind = s.raw("kind")
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise s.fail("kind", f"give one of {', '.join(SCHEDULES)}")
    s.only(SCHEDULES[kind])
    if kind == "table":
        values = s.raw("lr")
        if not isinstance(values, list) or not values or any(not _is_rate(v) for v in values):
            raise s.fail("lr", "give the learning rate of each step")
        if len(values) != steps:
            raise s.fail("lr", f"it has {len(values)} entries, and the run {steps} steps: give one for each")
        return
    if not _is_rate(s.raw("lr")):
        raise s.fail("lr", "give a learning rate, from 0.0 to 1000.0")
    if kind == "warmup cosine":
        if not _is_rate(s.raw("least")):
            raise s.fail("least", "give a learning rate, from 0.0 to 1000.0")
        for field in ("warmup", "decay"):
            value = s.raw(field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_STEPS:
                raise s.fail(field, "give a number of steps")
        if s.raw("decay") <= s.raw("warmup"):
            raise s.fail("decay", "give more steps than the warmup has")


def _is_rate(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value <= 1000


def learning_rate(s: Block, step: int, functions: Functions) -> float:
    """Of step 0, 1, ...; each operation rounds once, in the order written here."""
    kind = s.text("kind")
    if kind == "table":
        table = s.get("lr")
        if step >= len(table):
            raise Malformed(f"the table of learning rates has {len(table)} entries, and step {step} is walked")
        return float(table[step])
    top = float(s.get("lr"))
    if kind == "constant":
        return top
    least, warmup, decay = float(s.get("least")), int(s.get("warmup")), int(s.get("decay"))
    if step < warmup:
        return top * (step + 1) / (warmup + 1)
    if step > decay:
        return least
    ratio = (step - warmup) / (decay - warmup)
    return least + 0.5 * (1.0 + functions.cosine(math.pi * ratio)) * (top - least)


# --- optimizer --------------------------------------------------------------------------------------------------------

LITERALS = {  # of a parameter group, with their range
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "eps": (0.0, 1.0),
    "weight_decay": (0.0, 1e6),
    "momentum": (0.0, 1.0),
    "dampening": (0.0, 1.0),
}


class Group:
    """One parameter group's terms at one step. A literal counts as read when a term of the program needs it."""

    def __init__(self, block: Block, step: int, functions: Functions) -> None:
        self._b, self._step, self._f = block, step, functions

    def _literal(self, name: str) -> float:
        if name not in self._b:
            raise Malformed(f"a term of the program needs the optimizer's {name}, which the recipe does not give")
        return float(self._b.get(name))

    def lr(self) -> float:
        return learning_rate(self._b.block("schedule"), self._step, self._f)

    def lr_negative(self) -> float:
        return -self.lr()

    def decay(self) -> float:
        return 1 - self.lr() * self._literal("weight_decay")

    def step_size(self) -> float:
        return self.lr() / self.correction1()

    def step_size_negative(self) -> float:
        return -self.step_size()

    def correction1(self) -> float:
        return 1 - self._f.power(self._literal("beta1"), float(self._step + 1))

    def correction2(self) -> float:
        return 1 - self._f.power(self._literal("beta2"), float(self._step + 1))

    def correction2_root(self) -> float:
        return self._f.power(self.correction2(), 0.5)

    def beta1(self) -> float:
        return self._literal("beta1")

    def beta2(self) -> float:
        return self._literal("beta2")

    def beta1_rest(self) -> float:
        return 1 - self._literal("beta1")

    def beta2_rest(self) -> float:
        return 1 - self._literal("beta2")

    def eps(self) -> float:
        return self._literal("eps")

    def weight_decay(self) -> float:
        return self._literal("weight_decay")

    def momentum(self) -> float:
        return self._literal("momentum")

    def dampening(self) -> float:
        return self._literal("dampening")

    def dampening_rest(self) -> float:
        return 1 - self._literal("dampening")


# In the order of preference where several have the recorded value.
TERMS = (
    "lr",
    "lr_negative",
    "decay",
    "step_size",
    "step_size_negative",
    "correction1",
    "correction2",
    "correction2_root",
    "beta1_rest",
    "beta2_rest",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "momentum",
    "dampening_rest",
    "dampening",
)


def evaluate(keys: Iterable[str], groups: list[Block], step: int, functions: Functions) -> dict[str, float]:
    """``keys`` are as programs name them: "step_size_negative@0" is that of parameter group 0."""
    out = {}
    for key in keys:
        name, at, group = key.partition("@")
        if (
            name not in TERMS
            or not at
            or not group.isdecimal()
            or int(group) >= len(groups)
            or str(int(group)) != group
        ):
            raise Malformed(f"a program needs the term '{key}', which is none of this recipe's")
        out[key] = float(getattr(Group(groups[int(group)], step, functions), name)())
    return out


def groups_of(keys: Iterable[str]) -> int:
    """How many parameter groups a recipe has whose programs need these terms: up to the last that one names."""
    return max((int(key.partition("@")[2]) + 1 for key in keys), default=0)


def candidates(groups: list[Block], step: int, functions: Functions) -> dict[str, float]:
    """Every term that the groups' literals allow."""
    out = {}
    for name in TERMS:
        for i, block in enumerate(groups):
            try:
                out[f"{name}@{i}"] = float(getattr(Group(block, step, functions), name)())
            except (Malformed, ZeroDivisionError):
                continue
    return out
