"""Section 3: every vector of tests/data/witness, and every row of tests/data/compiled, through torch's own ops.

A unit is a file. Digests of the outputs, whether they are the file's, and the first differences where they are not. The
whole output is kept then (up to 256 KiB), so that the vector can be replaced by what the card says.
"""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from . import compiled, families, maps, norms, windows  # noqa: F401  each registers its calls
from .case import CALLS, Arrays, Case, NoCall
from .context import ROOT, Context, bits, first_differences
from .source import is_stray

SECONDS = 60
FOLDER = ROOT / "tests/data/witness"
KINDS = {"U32": "<u4", "U16": "<u2", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}


def unzstd(data: bytes) -> bytes:
    """By the zstd that step_oracle._record has loaded."""
    from step_oracle.environment import _loaded

    library = _loaded("libzstd.so")
    if library is None:
        raise OSError("libzstd is not in this process")
    library.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    library.ZSTD_decompress.restype = ctypes.c_size_t
    size = library.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
    if size > 1 << 30:
        raise ValueError("not a zstd frame with its size")
    out = ctypes.create_string_buffer(size)
    got = library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    if got != size:
        raise ValueError("a damaged zstd frame")
    return out.raw


def load(name: str) -> tuple[dict[str, Any], Arrays]:
    raw = unzstd((FOLDER / f"{name}.safetensors.zst").read_bytes())
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    meta = json.loads(header.pop("__metadata__")["meta"])
    half = torch.float16 if "f16" in meta["case"].split("_") else torch.bfloat16
    arrays = {}
    for key, row in header.items():
        begin, end = row["data_offsets"]
        kind = KINDS[row["dtype"]]
        words = numpy.frombuffer(raw[8 + n + begin : 8 + n + end], kind).copy()
        view = {"<u4": (numpy.int32, torch.float32), "<u2": (numpy.int16, half)}.get(kind)
        t = torch.from_numpy(words.view(view[0])).view(view[1]) if view else torch.from_numpy(words)
        arrays[key] = t.view(row["shape"])
    return meta, arrays


def stored_name(output: str, stored: Iterable[str], capability: tuple[int, int]) -> str:
    """Of an output in its file, which has it once more where an architecture's bytes are others."""
    own = f"out_{output}@sm_{capability[0]}{capability[1]}"
    return own if own in stored else f"out_{output}"


def units(ctx: Context) -> list[str]:
    return all_units()[::41] if ctx.dry else all_units()


def all_units() -> list[str]:
    return [*all_names(), *compiled.rows()]


def all_names() -> list[str]:
    return sorted(p.name.removesuffix(".safetensors.zst") for p in FOLDER.glob("*.zst") if not is_stray(p.name))


def call(meta: dict[str, Any], arrays: Arrays, device: torch.device) -> Arrays:
    """The outputs by the file's names, without "out_"."""
    case = Case(meta["case"], meta["shape"], meta["notes"], arrays, device)
    return CALLS[case.base](case)


def run(ctx: Context, name: str) -> dict[str, Any]:
    if name.startswith(compiled.PREFIX):
        return compiled.run(ctx, name)
    meta, stored = load(name)
    sent = {k: v.to(ctx.device) for k, v in stored.items() if k.startswith("in_")}
    try:
        got = call(meta, sent, torch.device(ctx.device))
    except NoCall as e:
        return {"na": str(e)}
    result: dict[str, Any] = {"outputs": {}, "equal": True}
    for key, t in got.items():
        want = stored.get(stored_name(key, stored, ctx.capability))
        if want is None:
            continue
        row: dict[str, Any] = {"digest": ctx.digest(t)}
        want = want.view(t.shape) if want.numel() == t.numel() else want
        different = first_differences(t, want)
        if different:
            result["equal"] = False
            raw = bits(t).numpy().tobytes()
            alike = want.shape == t.shape and want.element_size() == t.element_size()
            row |= {"first": different, "count": int((bits(t) != bits(want)).sum()) if alike else -1}
            if len(raw) <= 256 << 10:
                row["bytes"] = base64.b85encode(lzma.compress(raw)).decode()
        result["outputs"][key] = row
    if not result["outputs"]:
        return {"na": "no output has the name that the file gives it"}
    return result
