"""The virtual cards give the bytes of the compiled kernels of torch 2.13.0 for sm_80 and sm_90.

A row of tests/data/compiled names an operation, its inputs by seed and its outputs by digest, with a few words each.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections import defaultdict
from typing import Any

import pytest
import torch
from operations import OPERATIONS
from rows import tensor, words
from seeded import operand

import step_oracle

DATA = pathlib.Path(__file__).resolve().parents[1] / "data/compiled"
CARDS = {"sm_80": "a100-sxm-80gb", "sm_90": "h100-sxm"}
Row = dict[str, Any]
TABLES: dict[str, dict[str, list[Row]]] = {}
for _path in sorted(DATA.glob("*.json")):
    TABLES[_path.stem] = defaultdict(list)
    for _row in json.loads(_path.read_text()):
        TABLES[_path.stem][_row["op"]].append(_row)


def differences(row: Row, arch: str, index: int) -> list[str]:
    device = torch.device("oracle", index)
    given = {
        name: tensor(t, operand(t, n, kind, slot, seed)).to(device) for name, t, n, kind, slot, seed in row["inputs"]
    }
    wanted = {**row["outputs"], **row.get(f"outputs {arch}", {})}
    got = OPERATIONS[row["op"]](given, {**row, "device": device})
    assert len(got) == len(wanted)
    out = []
    for (name, want), have in zip(wanted.items(), got, strict=True):
        w = words(have, row.get("one nan"))
        label = f"{row['op']} {row['type']} {row['shape']} {name} {arch}"
        if len(w) != want["count"]:
            out.append(f"{label}: {len(w)} elements, the kernel wrote {want['count']}")
        elif hashlib.sha256(w.tobytes()).hexdigest()[:32] != want["sha256"]:
            places = sorted({0, len(w) // 3, 2 * len(w) // 3, len(w) - 1})
            few = [int(w[i]).to_bytes(w.itemsize, "big").hex() for i in places]
            out.append(f"{label}: few {few}, want {want['few']}")
    return out


@pytest.mark.parametrize("table, op", [(t, op) for t, rows in TABLES.items() for op in rows])
def test_bytes_of_the_compiled_kernel(table: str, op: str) -> None:
    for index, card in enumerate(CARDS.values()):
        step_oracle.set_card(card, index=index)
    rows = TABLES[table][op]
    assert rows
    wrong = [line for row in rows for i, arch in enumerate(CARDS) for line in differences(row, arch, i)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "table, op, other", [("pointwise", "floor", "ceil"), ("reduce", "amax", "amin"), ("reduce", "var", "std")]
)
def test_another_operation_is_noticed(table: str, op: str, other: str) -> None:
    step_oracle.set_card(CARDS["sm_80"], index=0)
    for row in TABLES[table][op]:
        assert differences({**row, "op": other}, "sm_80", 0), f"{op} {row['type']} {row['shape']} passes as {other}"
