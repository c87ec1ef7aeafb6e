"""The rows of tests/data/compiled as units of the vectors' section: inputs by seed, outputs by digest.

A row's name is "compiled/TABLE/OP.TYPE.SHAPE"; what torch calls for it says tests/compiled/operations.py.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from typing import Any

import torch

from .context import ROOT, Context

PREFIX = "compiled/"
FOLDER = ROOT / "tests/data/compiled"
sys.path.append(str(ROOT / "tests/compiled"))
Row = dict[str, Any]


@functools.cache
def rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for row in json.loads(path.read_text()):
            shape = re.sub("[^0-9a-z.]", "_", row["shape"])
            found[f"{PREFIX}{path.stem}/{row['op']}.{row['type']}.{shape}"] = row
    return found


def family_of(name: str) -> str:
    """Of the evidence table."""
    table, op = name.removeprefix(PREFIX).split("/")
    if table != "foreach":
        return table
    return "reduce" if op.startswith("foreach_norm") else "pointwise"


def expected(name: str) -> dict[str, str]:
    return {k: str(v["sha256"]) for k, v in rows()[name]["outputs"].items()}


def unreachable(name: str, capability: tuple[int, int]) -> str:
    """Why a card says nothing of the row; empty where it does."""
    if rows()[name]["type"] == "bf16" and capability < (8, 0):
        return "its digests hold the NaN that bfloat16 has from compute capability 8.0 on"
    return ""


def run(ctx: Context, name: str) -> Row:
    from operations import OPERATIONS
    from rows import tensor, words
    from seeded import operand

    if why := unreachable(name, ctx.capability):
        return {"na": why}
    row, device = rows()[name], torch.device(ctx.device, 0)
    given = {n: tensor(t, operand(t, *rest)).to(device) for n, t, *rest in row["inputs"]}
    got = OPERATIONS[row["op"]](given, {**row, "device": device})
    result: Row = {"outputs": {}, "equal": len(got) == len(row["outputs"])}
    for (output, want), have in zip(row["outputs"].items(), got, strict=False):
        w = words(have, row.get("one nan"))
        digest = hashlib.sha256(w.tobytes()).hexdigest()[:32]
        result["outputs"][output] = {"sha256": digest}
        if digest != want["sha256"] or len(w) != want["count"]:
            result["equal"] = False
            result["outputs"][output] |= {"few": few(w), "count": len(w)}
    return result


def few(words: Any) -> list[str]:
    """Those places of which the row has the words."""
    places = sorted({0, len(words) // 3, 2 * len(words) // 3, len(words) - 1}) if len(words) else []
    return [int(words[i]).to_bytes(words.itemsize, "big").hex() for i in places]
