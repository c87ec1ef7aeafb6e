"""Reading a plan table's file: what JSON and the schema let pass, and still means nothing (docs/plan-table.md).

Fields, their types, and whether a plan fits its k are checked behind it, where the table is parsed.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

_FLOAT32 = ("float32", "tf32")
_ONLY_WITH = {"splits": ("deal", "width", "reduction", "order"), "slices": ("slice_width", "combine"),
              "tail": ("tail_width",)}


def read(path: str | os.PathLike[str]) -> str:
    """A table's text, checked. Raises OSError or ValueError in one sentence that names the file."""
    try:
        text = pathlib.Path(path).read_bytes().decode()
    except OSError as error:
        raise type(error)(f"the plan table {path} cannot be read: {error.strerror}; give a file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no plan table: it is not text; docs/plan-table.md describes the file") from None
    if not text.strip():
        raise ValueError(f"{path} is no plan table: it is empty; docs/plan-table.md describes the file")
    check(text, os.fspath(path))
    return text


def check(text: str, name: str) -> None:
    """Raises ValueError for a table that says something twice, or what no product of its card can do."""
    try:
        table = json.loads(text, object_pairs_hook=_distinct)
    except _Twice as field:
        raise ValueError(f"{name}: an object has the field '{field}' twice; leave one of them") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is no plan table: it is not JSON; docs/plan-table.md describes the file") from None
    rows = table.get("rows") if isinstance(table, dict) else None
    if not isinstance(rows, list):
        return
    capability = _capability(table.get("card"))
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict) and (reason := _row(row, capability)):
            raise ValueError(f"{name}: row {number} {reason}")


class _Twice(Exception):
    pass


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in pairs:
        if field in found:
            raise _Twice(field)
        found[field] = value
    return found


def _capability(card: Any) -> str:
    from .cards import cards

    return next((c.compute_capability for c in cards() if c.name == card), "")


def terms_of(dtype: str, capability: str) -> int:
    """What the card's adder takes at once [paper 3.4, units.names()]; 0: there is none, each product is an fma."""
    if dtype == "bfloat16" and capability == "7.5":
        return 0
    later = int(capability.split(".")[0]) >= 9
    return (8 if later else 4) if dtype == "tf32" else 16 if later else 8


def _row(row: dict[str, Any], capability: str) -> str:
    op, dtype, plan = row.get("op"), row.get("dtype"), row.get("plan")
    epilogue = row.get("epilogue", "none")
    if capability == "7.5" and dtype == "tf32":
        return "is of tf32, which cards of compute capability 7.5 do not have; leave it out"
    if dtype in _FLOAT32 and "reduced_precision" in row:
        return f"has 'reduced_precision', which is a switch of bfloat16 and float16, not of {dtype}; leave it out"
    if op in ("mm", "bmm") and epilogue != "none":
        return f"has the epilogue {epilogue}, and {op} adds nothing to its product; give addmm or baddbmm"
    if op in ("mm", "addmm", "addmv") and row.get("batch", 1) != 1:
        return f"has a batch, and {op} is a single product; give bmm or baddbmm"
    if epilogue == "none" and isinstance(plan, dict) and "bias" in plan:
        return "has a plan with 'bias', and its epilogue is none; leave it out, or give the epilogue bias"
    return _plan(plan, str(dtype), row.get("k"), capability) if isinstance(plan, dict) else ""


def _plan(plan: dict[str, Any], dtype: str, k: Any, capability: str) -> str:
    for field, dependent in _ONLY_WITH.items():
        if plan.get(field, 1) in (1, "last"):
            for name in dependent:
                if name in plan:
                    return f"has a plan with '{name}' and without '{field}', which it belongs to; leave it out"
    width = plan.get("tail_width")
    if plan.get("tail") == "dropped" and isinstance(width, int) and isinstance(k, int) and width > k:
        return f"has a plan that drops all of k = {k}: its tail_width is {width}"
    if dtype in _FLOAT32 and plan.get("reduction") == "output_type":
        return f"has the reduction output_type, and parts of {dtype} are of the output's type; give compute_type"
    if dtype == "float32" and plan.get("group"):
        return "has a plan with 'group', which is a tensor core's, and float32 is not computed on one; leave it out"
    if dtype in _FLOAT32 and plan.get("unit") == "chain":
        return f"has the unit chain, which is for 16-bit factors, and its type is {dtype}; leave it out"
    if plan.get("unit") == "chain" and capability and terms_of(dtype, capability) == 0:
        return f"has the unit chain, which {dtype} has on compute capability {capability} anyway; leave it out"
    group = plan.get("group")
    if group and capability and dtype != "float32" and terms_of(dtype, capability) == 0:
        return (f"has a plan with 'group', which is a tensor core's, and {dtype} is not computed on one on compute "
                f"capability {capability}; leave it out")
    if capability and isinstance(group, int) and dtype != "float32" and group > terms_of(dtype, capability):
        return (f"has a plan with 'group': {group}, and the adder of compute capability {capability} takes "
                f"{terms_of(dtype, capability)} products of {dtype} at once; give no more")
    return ""
