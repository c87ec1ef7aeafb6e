"""The term: what it may say. All of it is checked before anything is computed; a field that is not known is refused."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Callable
from typing import Any

import torch

from .. import _record

VERSION = 1
DISPATCHES = ("default", "avx2", "avx512", "aarch64")
DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
FLOATS = ("float32", "float64", "float16", "bfloat16")
# fn: its arguments, in the order of a fill's signature. Draws take words from the generator.
DRAWS = {"uniform": ("low", "high"), "normal": ("mean", "std"), "trunc_normal": ("mean", "std", "low", "high")}
WRITES = {
    **DRAWS,
    "fill": ("value",),
    "add": ("value",),
    "mul": ("value",),
    "div": ("value",),
    "clamp": ("low", "high"),
    "copy": ("from",),
    "carried": ("blob", "reason"),
}
GENERATOR = {"skip": ("words",), "seed": ("seed",), "state": ("blob", "reason"), "offset": ("offset",)}
ELEMENTS = 1 << 36  # of one tensor: more is a fault in the term
WORDS = 1 << 40  # of one skip: a quarter of an hour
# The share of normals inside the bounds above which torch draws until none is outside [src torch/nn/init.py @2.13].
TRUNC_NORMAL = 0.3


class TermError(ValueError):
    """The term is not one: nothing was computed."""


def refuse(where: str, what: str) -> TermError:
    return TermError(f"initialisation term, {where}: {what}")


def pack(data: bytes) -> tuple[str, str]:
    """(digest, text) of a blob."""
    return str(_record.blake3(data)), base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(digest: str, text: str, size: int) -> bytes:
    """The blob's bytes, `size` of them."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, zlib.error) as fault:
        raise refuse(f"blob {digest[:16]}", f"its bytes cannot be read ({fault})") from None
    if len(data) != size:
        count = f"more than {size}" if len(data) > size else str(len(data))
        raise refuse(f"blob {digest[:16]}", f"it holds {count} bytes, and {size} are wanted")
    if _record.blake3(data) != digest:
        raise refuse(f"blob {digest[:16]}", "its bytes do not have this BLAKE3 digest")
    return data


def _keys(where: str, value: Any, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(where, f"expected an object, not {type(value).__name__}")
    for key in needed:
        if key not in value:
            raise refuse(where, f"'{key}' is missing")
    for key in value:
        if key not in needed and key not in optional:
            raise refuse(where, f"'{key}' is not known; known: {', '.join(needed + optional)}")
    return value


def _integer(where: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise refuse(where, f"{value!r} is not an integer of {low} to {high}")
    return value


def _number(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise refuse(where, f"{value!r} is not a finite number")
    return float(value)


def _sizes(where: str, value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > 16:
        raise refuse(where, "expected a list of at most 16 sizes")
    return [_integer(where, v, 0, ELEMENTS) for v in value]


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > 1000:
        raise refuse(where, "expected a text of 1 to 1000 characters")
    return value


def _geometry(where: str, value: Any, room: int) -> None:
    _keys(where, value, ("offset", "shape", "stride"))
    shape, stride = _sizes(where, value["shape"]), _sizes(where, value["stride"])
    offset = _integer(where, value["offset"], 0, ELEMENTS)
    if len(shape) != len(stride):
        raise refuse(where, f"{len(shape)} sizes and {len(stride)} strides")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else offset - 1
    if last >= room:
        raise refuse(where, f"it reaches element {last}, and the tensor has {room}")


def share_inside(mean: float, std: float, low: float, high: float) -> float:
    """The share of normals inside the bounds, as torch.nn.init computes it to choose how to draw."""

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    return below((high - mean) / std) - below((low - mean) / std) if std > 0 else 0.0


def elements(shape: list[int]) -> int:
    return math.prod(shape)


def _slots(term: dict[str, Any]) -> dict[str, Any]:
    slots = term["tensors"]
    if not isinstance(slots, dict):
        raise refuse("tensors", "expected an object of names")
    for name, slot in slots.items():
        where = f"tensor {name!r}"
        _text(where, name)
        _keys(where, slot, ("shape", "dtype"), ("stride",))
        shape = _sizes(where, slot["shape"])
        if elements(shape) > ELEMENTS:
            raise refuse(where, f"{elements(shape)} elements; at most {ELEMENTS}")
        if not isinstance(slot["dtype"], str) or slot["dtype"] not in DTYPES:
            raise refuse(where, f"dtype {slot['dtype']!r}; known: {', '.join(DTYPES)}")
        if "stride" in slot:
            _geometry(where, {"offset": 0, "shape": shape, "stride": slot["stride"]}, elements(shape))
    return slots


def _generator(value: Any) -> str:
    if not isinstance(value, dict) or value.get("kind") not in ("host", "card"):
        raise refuse("generator", "'kind' must be 'host' or 'card'")
    kind: str = value["kind"]
    by = "dispatch" if kind == "host" else "card"
    _keys("generator", value, ("kind", "seed", by))
    _integer("generator, seed", value["seed"], 0, 2**64 - 1)
    if kind == "host" and value["dispatch"] not in DISPATCHES:
        raise refuse("generator", f"dispatch {value['dispatch']!r}; known: {', '.join(DISPATCHES)}")
    if kind == "card":
        _text("generator, card", value["card"])
    return kind


def _check_draw(where: str, fn: str, args: dict[str, Any], dtype: str) -> None:
    if dtype not in FLOATS:
        raise refuse(where, f"{fn} of {dtype}; it draws {', '.join(FLOATS)}")
    if "std" in args and args["std"] < 0:
        raise refuse(where, f"std is {args['std']}; it must not be negative")
    if "low" in args and args["low"] > args["high"]:
        raise refuse(where, f"[{args['low']}, {args['high']}] is not a range")
    if fn == "trunc_normal":
        share = share_inside(*(float(args[name]) for name in DRAWS[fn]))
        if not share > TRUNC_NORMAL:
            raise refuse(where, f"{share:.3g} of the normals lie inside the bounds; more than {TRUNC_NORMAL} must")


def _check_write(where: str, step: dict[str, Any], slots: dict[str, Any], blobs: dict[str, Any]) -> None:
    fn = step["fn"]
    drawn_away = fn in DRAWS and "to" not in step
    if drawn_away:  # numbers that a later write replaced: only the generator sees them
        _keys(where, step, ("fn", "shape", "dtype", *DRAWS[fn]), ("gaps",))
        _sizes(where, step["shape"])
        dtype = step["dtype"]
        if "gaps" in step and step["gaps"] is not True:
            raise refuse(where, "'gaps' is true or not there")
    else:
        _keys(where, step, ("fn", "to", *WRITES[fn]), ("view", "from_view"))
        if step["to"] not in slots:
            raise refuse(where, f"there is no tensor {step['to']!r}")
        slot = slots[step["to"]]
        dtype = slot["dtype"]
        if "view" in step:
            _geometry(where, step["view"], elements(slot["shape"]))
    if fn == "copy":
        if step["from"] not in slots:
            raise refuse(where, f"there is no tensor {step['from']!r}")
        if "from_view" in step:
            _geometry(where, step["from_view"], elements(slots[step["from"]]["shape"]))
    elif "from_view" in step:
        raise refuse(where, "'from_view' is copy's")
    if fn == "carried":
        _text(where, step["reason"])
        if "view" in step or step["blob"] not in blobs:
            raise refuse(where, f"there is no blob {step['blob']!r} for the whole tensor")
    for name in WRITES[fn]:
        if name in ("mean", "std", "low", "high", "value") and not (fn == "clamp" and step[name] is None):
            _number(f"{where}, {name}", step[name])
    if fn in DRAWS:
        _check_draw(where, fn, step, dtype)


def _check_generator_step(where: str, step: dict[str, Any], kind: str, blobs: dict[str, Any]) -> None:
    fn = step["fn"]
    _keys(where, step, ("fn", *GENERATOR[fn]))
    if (fn in ("skip", "state")) != (kind == "host") and fn != "seed":
        raise refuse(where, f"{fn} is not of a {kind} generator")
    for name in ("words", "seed", "offset"):
        if name in step:
            _integer(f"{where}, {name}", step[name], 0, 2**64 - 1 if name == "seed" else WORDS)
    if fn == "state":
        _text(where, step["reason"])
        if step["blob"] not in blobs:
            raise refuse(where, f"there is no blob {step['blob']!r}")


def _blobs(term: dict[str, Any]) -> dict[str, Any]:
    blobs = term.get("blobs", {})
    if not isinstance(blobs, dict) or not all(isinstance(v, str) for v in blobs.values()):
        raise refuse("blobs", "expected an object of texts")
    used = {step["blob"] for step in term["steps"] if isinstance(step, dict) and isinstance(step.get("blob"), str)}
    for name in blobs:
        if name not in used:
            raise refuse(f"blob {name[:16]!r}", "no step reads it")
    return blobs


def check(term: Any) -> None:
    """Raises TermError at the first thing that is wrong. Blobs are opened when they are used."""
    _keys("top", term, ("version", "generator", "tensors", "steps"), ("views", "blobs"))
    if term["version"] != VERSION:
        raise refuse("version", f"{term['version']!r}; this program reads {VERSION}")
    kind = _generator(term["generator"])
    slots = _slots(term)
    if not isinstance(term["steps"], list):
        raise refuse("steps", "expected a list")
    blobs = _blobs(term)
    touched: set[str] = set()
    for index, step in enumerate(term["steps"]):
        where = f"step {index}"
        if not isinstance(step, dict) or not isinstance(step.get("fn"), str):
            raise refuse(where, "expected an object with 'fn'")
        if step["fn"] in GENERATOR:
            _check_generator_step(where, step, kind, blobs)
        elif step["fn"] in WRITES:
            _check_write(where, step, slots, blobs)
            touched.update(v for v in (step.get("to"), step.get("from")) if isinstance(v, str))
        else:
            raise refuse(where, f"fn {step['fn']!r}; known: {', '.join([*WRITES, *GENERATOR])}")
    for name in slots:
        if name not in touched:
            raise refuse(f"tensor {name!r}", "no step writes it")
    _views(term.get("views", {}), slots)


def _views(views: Any, slots: dict[str, Any]) -> None:
    if not isinstance(views, dict):
        raise refuse("views", "expected an object of names")
    for name, view in views.items():
        where = f"view {name!r}"
        _text(where, name)
        _keys(where, view, ("of", "offset", "shape", "stride"))
        if name in slots or view["of"] not in slots:
            raise refuse(where, f"its name is a tensor's, or there is no tensor {view['of']!r}")
        _geometry(where, {k: view[k] for k in ("offset", "shape", "stride")}, elements(slots[view["of"]]["shape"]))


Reader = Callable[[str, int], bytes]  # digest, size -> bytes


def reader(term: dict[str, Any], blobs: dict[str, bytes] | None = None) -> Reader:
    """Opens blobs: those of the term, or given ones (raw bytes by digest) in their place."""
    inline = term.get("blobs", {})

    def read(digest: str, size: int) -> bytes:
        if blobs is not None and digest in blobs:
            data = blobs[digest]
            if len(data) != size or _record.blake3(data) != digest:
                raise refuse(f"blob {digest[:16]}", "the bytes given are not these")
            return data
        return unpack(digest, inline[digest], size)

    return read
