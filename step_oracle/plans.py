"""Plan tables, and reading a plan off the bytes of a matrix product (docs/plan-table.md)."""

from __future__ import annotations

import json
import math
import os
import pathlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .cards import plan_text, shipped_plans
from .plan_table import terms_of
from .trace import Record, Trace

_quiet = False


def quiet() -> None:
    """No word at the end of the process about matrix products whose plan was assumed."""
    global _quiet
    _quiet = True


def notice_is_wanted() -> bool:
    return not _quiet and os.environ.get("STEP_ORACLE_ASSUMED") != "quiet" and "pytest" not in sys.modules


def assumed() -> dict[str, Any]:
    """Matrix products of this process on the device "oracle": ``products``, ``assumed`` (those without a plan, computed
    in a single pass), ``kinds`` (of the assumed ones, in words)."""
    from . import device

    tally: dict[str, Any] = device.extension().plan_tally()
    return tally


def assumed_notice(tally: dict[str, Any]) -> str:
    """One sentence on what assumed() counted; empty where nothing was assumed."""
    if not tally["assumed"]:
        return ""
    kinds = f"{len(tally['kinds'])} kind{'s' if len(tally['kinds']) > 1 else ''}"
    return (f"{tally['assumed']} of {tally['products']} matrix products ({kinds}) had no plan "
            "and were computed in a single pass: assumed. Give the card a plan table (docs/plan-table.md), "
            "plans=\"pinned\" where the program forces the single pass, or STEP_ORACLE_ASSUMED=quiet to silence this")


def show(card: str, plans: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """A plan table: ``card``, ``library``, ``rows`` with ``product``, ``plan`` and ``source``, and ``defaults``: the
    same for what has no row.

    Without a path, the table that comes with step-oracle for the card; no rows where there is none.
    """
    from . import device

    text = plan_text(plans, card) if plans is not None else shipped_plans(card)
    table: dict[str, Any] = {"card": card, "library": None, "rows": [], "pinned": False}
    if text is not None:
        table = device.extension().plan_table(text)
    if table["card"] != card:
        raise ValueError(f"{plans} is a plan table of {table['card']}, not of {card}; give a table of this card")
    table["rows"] = [{**row, "product": _with_switch(row["product"])} for row in table["rows"]]
    return {**table, "defaults": class_defaults(card, table["pinned"])}


def _with_switch(product: str) -> str:
    """A 16-bit row's words with the setting of torch's switch, on too."""
    sixteen_bit = product.split()[1] in ("bfloat16", "float16")
    return f"{product} reduced_precision true" if sixteen_bit and "reduced_precision" not in product else product


def class_defaults(card: str, pinned: bool) -> list[dict[str, str]]:
    """What a product without a row is computed with, in a table's words."""
    from .cards import find_card

    capability = find_card(card).compute_capability
    how = "the program forces it" if pinned else "assumed: the class default"
    paper = '"The step oracle", section 3.4'
    rows = [{"product": "other float32", "plan": "single pass, the fp32 chain", "source": f"{how}; class: {paper}"}]
    for dtype in ("bfloat16", "float16") if capability == "7.5" else ("tf32", "bfloat16", "float16"):
        terms = terms_of(dtype, capability)
        plan = f"{terms} products at once" if terms else "an fma each, on the CUDA cores"
        source = paper if terms else "the kernel that profiles of such cards name (docs/limits.md)"
        rows.append({"product": f"other {dtype}", "plan": f"single pass, {plan}", "source": f"{how}; class: {source}"})
    return rows


def fit(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | str, bias: torch.Tensor | None = None, *, card: str,
        everything: bool = False, progress: Callable[[int, int], bool] | None = None) -> dict[str, Any]:
    """Which plans turn ``a @ b`` (plus ``bias``) into exactly ``out``, as a card gave it: the tensor, or the digest of
    its contiguous bytes.

    The likely plans are tried, sixty at most; with ``everything``, all known ones: some hundreds.

    ``matches`` (in words), ``plans`` (as a table's rows spell them), ``ties`` (the matches, where there are several),
    ``tried``, and without a match ``nearest`` with ``nearest_equal``, the share of equal elements, and ``nearest_at``,
    the first that differs (all None for a digest). ``progress(done, all)`` may return False to stop.
    """
    from . import device

    a, b, bias = (t.detach().cpu() if t is not None else None for t in (a, b, bias))  # type: ignore[assignment]
    judge = None
    if isinstance(out, str):
        wanted = out

        def judge(candidate: torch.Tensor) -> bool:
            return bool(device.extension().digest(candidate) == wanted)

        out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    found: dict[str, Any] = device.extension().fit_plan(a, b, out.detach().cpu(), bias, card, everything, judge,
                                                        progress)
    found["plans"] = [json.loads(p) for p in found["plans"]]
    found["ties"] = found["matches"] if len(found["matches"]) > 1 else []
    return found


FITTED = ("aten.mm", "aten.addmm", "aten.bmm")  # what fit_op reads; a product with beta or alpha is not among it


class NotFitted(ValueError):
    """This op's plan cannot be looked for: the sentence says why."""


def card_of(trace: Trace) -> str:
    """The card that a trace was recorded on, by the name that `step-oracle cards` lists."""
    from .cards import cards

    recorded = trace.environment.cards[0] if trace.environment.cards else None
    for card in cards():
        if recorded and recorded.name in (card.name, card.product):
            return card.name
    raise NotFitted(f"the trace is of {recorded.name if recorded else 'a host'}, which is no known card; give --card")


def require_whole(trace: Trace) -> None:
    """Raises ValueError for a trace that was cut: what its lost part has cannot be told."""
    if not trace.complete:
        raise ValueError(f"{trace.path} is not complete, and {len(trace.ops)} ops of it can be read: {trace.reason}")


def kept(trace: Trace, tensor: Record, when: str) -> torch.Tensor:
    digest = tensor[when]
    if digest is None or not trace.has_blob(digest):
        raise NotFitted("the trace does not keep the bytes of this product; record with keep='all'; of a trace with "
                        "keep='state', step-oracle replay --fit-plans computes them")
    dtype = getattr(torch, tensor.dtype, None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise NotFitted(f"products of {tensor.dtype} are not modelled")
    return torch.frombuffer(bytearray(trace.blob(digest)), dtype=dtype).reshape(tensor.shape)


MOVES = ("aten.t", "aten.transpose.int", "aten._to_copy", "aten.view", "aten._unsafe_view", "aten.detach",
         "aten.clone")  # no arithmetic but a cast


_moves_of: weakref.WeakKeyDictionary[Trace, dict[str, list[tuple[int, Record]]]] = weakref.WeakKeyDictionary()


def _moves(trace: Trace) -> dict[str, list[tuple[int, Record]]]:
    """By the digest of what came out: the ops that moved it, and what each read."""
    if trace not in _moves_of:
        found: dict[str, list[tuple[int, Record]]] = {}
        for at, op in enumerate(trace.ops):
            if op.op in MOVES and op.returns and isinstance(op.returns[0], dict):
                made, source = op.tensors[op.returns[0]["tensor"]], op.tensors[op.args[0]["tensor"]]
                if made["after"] and made["after"] != source["before"]:
                    found.setdefault(made["after"], []).append((at, source))
        _moves_of[trace] = found
    return _moves_of[trace]


def factor(trace: Trace, index: int, tensor: Record) -> torch.Tensor:
    """What op ``index`` read: kept bytes, or kept bytes that the trace's ops only turned, cast or copied. What comes
    out of that is digested and has the recorded digest, or is not taken."""
    from . import device

    wanted = tensor["before"]
    if wanted is None or trace.has_blob(wanted):
        return kept(trace, tensor, "before")
    dtype = getattr(torch, tensor.dtype)
    made = [(at, source) for at, source in _moves(trace).get(wanted, ()) if at < index]
    if made:
        moved = factor(trace, *made[-1]).to(dtype)
        for candidate in (moved, moved.mT if moved.dim() > 1 else moved):
            if candidate.numel() == math.prod(tensor.shape):
                there = candidate.contiguous().reshape(tensor.shape)
                if device.extension().digest(there) == wanted:
                    return there
    return kept(trace, tensor, "before")  # says what is missing


Tile = tuple[int, int]  # rows, columns of a result that are compared: its upper left corner


def fit_op(trace: Trace, index: int, *, card: str | None = None, everything: bool = False, tile: Tile | None = None,
           progress: Callable[[int, int], bool] | None = None) -> dict[str, Any]:
    """What fit() says of a recorded product, with its ``index``, ``op`` and ``row`` (for a plan table) beside it.
    ``compared``: "bytes"; "tile"; or "digest", where the trace keeps the factors and of the result the digest alone."""
    require_whole(trace)
    if not 0 <= index < len(trace.ops):
        raise NotFitted(f"{trace.path} has no op {index}: its {len(trace.ops)} ops are numbered from 0 on")
    op = trace.ops[index]
    if op.op not in FITTED:
        raise NotFitted(f"op {index} is {op.op}; plans are fitted for {', '.join(FITTED)}")
    row, inputs = row_of(trace, op)
    bias = None
    if op.op == "aten.addmm":
        if row.get("epilogue") != "bias":
            raise NotFitted("an addmm with a matrix, or with beta or alpha other than 1, is not fitted")
        bias = factor(trace, index, op.tensors[op.args[0]["tensor"]])
    a, b = (factor(trace, index, t) for t in inputs)
    result = op.tensors[op.returns[0]["tensor"]]
    out: torch.Tensor | str = result["after"] or ""
    compared = "digest"
    if tile is not None:
        rows, columns = tile
        a, b, compared = a[..., :rows, :], b[..., :columns], "tile"
        out = kept(trace, result, "after")[..., :rows, :columns]
        bias = bias[:columns] if bias is not None else None
    elif not result["after"] or trace.has_blob(result["after"]):
        out, compared = kept(trace, result, "after"), "bytes"
    found = fit(a, b, out, bias, card=card or card_of(trace), everything=everything, progress=progress)
    return {"index": index, "op": op.op, "row": row, "compared": compared, **found}


def row_of(trace: Trace, op: Record) -> tuple[dict[str, Any], list[Record]]:
    """A recorded mm, addmm or bmm as the key of a plan table's row, and its two factors."""
    inputs = [op.tensors[arg["tensor"]] for arg in op.args if isinstance(arg, dict) and "tensor" in arg]
    epilogue = "none"
    if op.op == "aten.addmm":
        added, *inputs = inputs
        scales = [arg for arg in op.args if not isinstance(arg, dict)]
        epilogue = "bias" if len(added.shape) == 1 and all(scale == 1 for scale in scales) else "beta"
    out = op.tensors[op.returns[0]["tensor"]]
    row: dict[str, Any] = {"op": op.op.removeprefix("aten."), "dtype": inputs[0].dtype,
                           "layout": "".join("n" if t.strides[-1] == 1 else "t" for t in inputs)}
    if epilogue != "none":
        row["epilogue"] = epilogue
    switch = {"bfloat16": "bf16", "float16": "fp16"}.get(inputs[0].dtype)
    if switch:
        allowed = trace.environment.switches[f"cuda.matmul.allow_{switch}_reduced_precision_reduction"]
        row["reduced_precision"] = str(allowed).startswith(("True", "(True"))
    row |= {"m": out.shape[-2], "n": out.shape[-1], "k": inputs[0].shape[-1]}
    if len(inputs[0].shape) == 3:
        row["batch"] = inputs[0].shape[0]
    return row, inputs


def family(trace: Trace, card: str | None = None) -> dict[str, Any]:
    """The pinned arm: the kinds of product of a program, and which of cuBLASLt's configurations compute each as the
    class does, in a single pass. ``kinds``: row, times, configurations; ``table``: the same as a plan table."""
    from . import device

    require_whole(trace)
    card = card or card_of(trace)
    counted: dict[str, int] = {}
    for op in trace.ops:
        if op.op in FITTED:
            key = json.dumps(row_of(trace, op)[0])
            counted[key] = counted.get(key, 0) + 1
    if not counted:
        raise ValueError(f"{trace.path} has no matrix product among {', '.join(FITTED)}")
    kinds = [{"row": json.loads(key), "times": times, "configurations": class_identical(json.loads(key), card)}
             for key, times in counted.items()]
    rows: list[dict[str, Any]] = [{**kind["row"], "plan": {}} for kind in kinds]  # type: ignore[dict-item]
    table = {"format": "step-oracle plan table 1", "card": card, "library": "any", "otherwise": "pinned",
             "source": f"the pinned arm of {pathlib.Path(trace.path).name}", "rows": rows}
    return {"card": card, "kinds": kinds, "table": device.extension().format_plan_table(json.dumps(table))}


def class_identical(row: dict[str, Any], card: str) -> dict[str, Any]:
    """Configurations of cuBLASLt whose bytes are the class's for a product: ``algorithms`` (of numSplitsK 1), where
    they are published, and what excludes one."""
    from .cards import find_card

    hopper = find_card(card).compute_capability == "9.0"
    if row["dtype"] == "float32":
        return {"algorithms": [0, 20], "splits": 1, "without": "FAST_TF32 compute types",
                "source": '"The step oracle", section 3.4: one digest on Turing, Ampere, Ada and Hopper'}
    if hopper:
        return {"algorithms": [66], "splits": 1, "without": "algorithm 24 (groups of 8)",
                "source": "facebookexperimental/triton, bitequiv/cublas_match: nvjet, one accumulator"}
    return {"algorithms": [21], "splits": 1,
            "without": "algorithm 30 (sliced k); k that is no multiple of the tile's",
            "source": "CUTLASS's main loop, one accumulator; on this generation assumed"}


def fit_trace(trace: Trace, *, card: str | None = None, everything: bool = False, tile: Tile | None = None,
              progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Fits the products of a trace, one of each kind until it has one match: later ones may break a tie.

    ``ops``: what fit_op says, or ``index`` and why not; ``table``: the text of a plan table with what was decided.
    """
    from . import device

    require_whole(trace)
    card = card or card_of(trace)
    ops: list[dict[str, Any]] = []
    plans_of: dict[str, list[Any]] = {}
    wanted = [i for i, op in enumerate(trace.ops) if op.op in FITTED]
    for done, index in enumerate(wanted):
        try:
            found = fit_op(trace, index, card=card, everything=everything, tile=tile)
        except NotFitted as reason:
            ops.append({"index": index, "op": trace.ops[index].op, "error": str(reason)})
            continue
        key = json.dumps(found["row"])
        before = plans_of.get(key)
        plans_of[key] = [p for p in found["plans"] if before is None or p in before]
        ops.append(found)
        if progress:
            progress(done + 1, len(wanted))
    rows = [{**json.loads(key), "plan": left[0]} for key, left in plans_of.items() if len(left) == 1]
    table = {"format": "step-oracle plan table 1", "card": card,
             "library": trace.environment.cublaslt or f"cuBLASLt of torch {trace.environment.torch}",
             "source": f"fitted to {pathlib.Path(trace.path).name}", "rows": rows}
    return {"ops": ops, "table": device.extension().format_plan_table(json.dumps(table)),
            "decided": len(rows), "tied": sum(len(p) > 1 for p in plans_of.values()),
            "none": sum(not p for p in plans_of.values())}
