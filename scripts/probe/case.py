"""A vector's case: what its name and its file say, for the functions that call torch's ops with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

T = torch.Tensor
Arrays = dict[str, T]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_TYPES = re.compile(r"(_(f32|bf16|f16|mixed))+$")


def base_of(name: str) -> str:
    return _TYPES.sub("", name)


class NoCall(Exception):
    """The case's kernel cannot be reached by an op with these arguments; the text says why."""


@dataclass
class Case:
    name: str  # "log_softmax_block_f16_f32": the base's name, the input's type, and the result's where it is another
    shape: str
    notes: dict[str, Any]
    arrays: Arrays  # by the file's names: "in_x"
    device: torch.device

    @property
    def base(self) -> str:
        return base_of(self.name)

    @property
    def types(self) -> list[torch.dtype]:
        return [DTYPES[t] for t in self.name[len(self.base) :].split("_") if t in DTYPES]

    @property
    def mixed(self) -> bool:
        """Parameters are float32."""
        return self.name.endswith("_mixed")

    @property
    def result(self) -> torch.dtype | None:
        """The type to ask for, where the op would give another."""
        return self.types[1] if len(self.types) > 1 else None

    @property
    def mode(self) -> str:
        """What stands before the colon: inner of inner:3x700."""
        return self.shape.partition(":")[0]

    @property
    def sizes(self) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", self.shape)]

    @property
    def pairs(self) -> list[list[int]]:
        """[[2, 3, 9, 8], [3, 2]] of "2x3x9x8:3x2"; what is no number is left out."""
        return [[int(n) for n in part.split("x")] for part in self.shape.split(":") if part[:1].isdigit()]

    def __getitem__(self, name: str) -> T:
        return self.arrays[f"in_{name}"]

    def get(self, name: str) -> T | None:
        return self.arrays.get(f"in_{name}")

    def listed(self, letter: str) -> list[T]:
        out: list[T] = []
        while (x := self.get(f"{letter}{len(out)}")) is not None:
            out.append(x)
        return out


Call = Callable[[Case], Arrays]
CALLS: dict[str, Call] = {}  # by the base's name; the outputs by the file's names, without "out_"
FAMILIES: dict[str, str] = {}  # of step_oracle/data/evidence.json, by the base's name


def calls(family: str, *bases: str) -> Callable[[Call], Call]:
    def register(function: Call) -> Call:
        for base in bases:
            if base in CALLS:
                raise ValueError(f"{base} has two calls")
            CALLS[base], FAMILIES[base] = function, family
        return function

    return register


def no_call(family: str, reason: str, *bases: str) -> None:
    """Cases that no op reaches."""

    def refuse(case: Case) -> Arrays:
        raise NoCall(reason)

    calls(family, *bases)(refuse)
