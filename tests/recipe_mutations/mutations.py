"""Changes to a recipe's text: each a name and the changed text."""

from __future__ import annotations

import base64
import copy
import json
import lzma
import math
import random
from collections.abc import Iterator
from typing import Any

from step_oracle.recipe import digests, document
from step_oracle.recipe.canonical import dump

Mutation = tuple[str, str, str]  # kind, name, text
Path = tuple[Any, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(inner, (dict, list)) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(value: Any, path: Path, new: Any) -> Any:
    out = copy.deepcopy(value)
    at(out, path[:-1])[path[-1]] = new
    return out


def name_of(path: Path) -> str:
    return ".".join(str(p)[:12] for p in path)


def other_digit(c: str) -> str:
    return "0123456789abcdef"[("0123456789abcdef".index(c) + 1) % 16] if c in "0123456789abcdef" else "?"


def others(value: Any) -> Iterator[tuple[str, Any]]:
    """Values near a leaf's, and values of other types."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int):
        yield "plus 1", value + 1
        yield "minus 1", value - 1
        yield "times 2", value * 2 + 4
        yield "huge", (1 << 62) + 1
        yield "negative", -value - 1
        yield "a float", float(min(value, 1 << 50))
    elif isinstance(value, float):
        yield "one ulp up", math.nextafter(value, 2 * abs(value) + 1)
        yield "doubled", 2 * value + 1e-3
        yield "zero", 0.0
        yield "huge", 1e300
        yield "negative", -abs(value) - 1e-3
        yield "an integer", 1
    elif isinstance(value, str):
        yield "first character", (other_digit(value[0]) + value[1:]) if value else "x"
        yield "last character", (value[:-1] + other_digit(value[-1])) if value else "y"
        yield "empty", ""
        yield "longer", value + "0"
    yield "a list", [value]
    yield "an object", {"x": value}
    yield "true", True
    if value is not None:
        yield "null", None


def fields(recipe: dict[str, Any], draw: random.Random) -> Iterator[Mutation]:
    """Every field: other values, gone, one more beside it. Of the long list of losses and of blobs, some."""
    small = {k: v for k, v in recipe.items() if k != "blobs"}
    small["losses"] = recipe["losses"][:2] + recipe["losses"][-1:]
    index = {0: 0, 1: 1, 2: len(recipe["losses"]) - 1}
    for path in leaves(small):
        where = ("losses", index[path[1]]) if path[0] == "losses" else path
        for what, new in others(at(recipe, where)):
            if new != at(recipe, where) or type(new) is not type(at(recipe, where)):
                yield "field", f"{name_of(where)}: {what}", dump(changed(recipe, where, new))
        out = copy.deepcopy(recipe)
        del at(out, where[:-1])[where[-1]]
        yield "field", f"{name_of(where)}: missing", dump(out)
    for path in {(), *(p[:-1] for p in leaves(small))}:
        if isinstance(at(recipe, path), dict):
            out = copy.deepcopy(recipe)
            at(out, path)["zz"] = 1
            yield "field", f"{name_of(path) or 'the recipe'}: one field more", dump(out)
    for n in (0, len(recipe["losses"]) // 2):
        bits = int(recipe["losses"][n], 16) ^ 1
        yield "loss", f"loss {n} by one ulp", dump(changed(recipe, ("losses", n), f"{bits:08x}"))
    for n, p in enumerate(recipe["promises"]):
        bits = f"{int(p['loss'], 16) ^ 1:08x}"
        out = changed(changed(recipe, ("losses", p["step"]), bits), ("promises", n, "loss"), bits)
        yield "loss", f"loss {p['step']} and the promise's by one ulp", dump(out)
        state = p["state"][:7] + other_digit(p["state"][7]) + p["state"][8:]
        yield "promise", f"the state after step {p['step']}", dump(changed(recipe, ("promises", n, "state"), state))


def texts(recipe: dict[str, Any]) -> Iterator[Mutation]:
    """What no writer writes."""
    text = dump(recipe)
    yield "text", "a key twice", text.replace('"steps":', '"steps":3,"steps":', 1)
    yield "text", "a nested key twice", text.replace('"sms":', '"sms":3,"sms":', 1)
    yield "text", "NaN", text.replace(f'"steps":{recipe["steps"]}', '"steps":NaN', 1)
    yield "text", "Infinity", text.replace(f'"steps":{recipe["steps"]}', '"steps":-Infinity', 1)
    yield "text", "1e999", text.replace('"lr":', '"lr":1e999,"x":', 1)
    yield "text", "a number of 5000 digits", text.replace(f'"steps":{recipe["steps"]}', '"steps":' + "9" * 5000, 1)
    yield "text", "spaces", json.dumps(recipe, sort_keys=True)
    yield "text", "keys in another order", json.dumps(dict(reversed(sorted(recipe.items()))), separators=(",", ":"))
    yield "text", "a byte order mark", "\ufeff" + text
    yield "text", "not ASCII", text.replace("step-oracle recipe 1", "step-oracle recipe \u0661", 1)
    yield "text", "an escape that is not needed", text.replace("step-oracle recipe 1", "step-oracle recipe \\u0031", 1)
    yield "text", "nested 200000 deep", "[" * 200_000
    yield "text", "cut", text[: len(text) // 2]
    yield "text", "empty", ""
    yield "text", "a list", "[]"
    yield "text", "two recipes", text + text
    yield "text", "another version", text.replace("step-oracle recipe 1", "step-oracle recipe 2", 1)
    yield (
        "text",
        "a ddp block",
        dump(recipe | {"ddp": {"world": 4, "ring": [0, 1, 2, 3], "chunk": 524288, "channels": 1}}),
    )


def repacked(recipe: dict[str, Any], old: str, program: Any) -> str:
    """The recipe with one program in another's place, its digests put right."""
    text = program if isinstance(program, str) else dump(program)
    key = digests.of_bytes(text.encode())
    out = copy.deepcopy(recipe)
    del out["blobs"][old]
    out["blobs"][key] = document.pack(text)
    for p in out["programs"]:
        p["blob"] = key if p["blob"] == old else p["blob"]
    if out["init"].get("blob") == old:
        out["init"]["blob"] = key
    return dump(out)


def packing(recipe: dict[str, Any]) -> Iterator[Mutation]:
    """A blob's bytes, its digest left as it was."""
    for key, packed in recipe["blobs"].items():
        raw = base64.b64decode(packed)
        inner = lzma.decompress(raw)
        for n in (0, 7, len(raw) // 2, len(raw) - 1):
            data = raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :]
            yield (
                "blob",
                f"{key[:6]}: packed byte {n}",
                dump(changed(recipe, ("blobs", key), base64.b64encode(data).decode())),
            )
        cases = {
            "cut": raw[:-9], "bytes behind it": raw + b"x", "two of them": raw + raw, "empty": b"",
            "a byte of the program": lzma.compress(inner.replace(b"aten::", b"atem::", 1)),
            "not compressed": inner, "a bomb": lzma.compress(b"\0" * (300 << 20), preset=1),
        }  # fmt: skip
        for what, data in cases.items():
            yield "blob", f"{key[:6]}: {what}", dump(changed(recipe, ("blobs", key), base64.b64encode(data).decode()))
        for what, new in (("not base64", "!" + packed[1:]), ("padding", packed + "="), ("a number", 3), ("null", None)):
            yield "blob", f"{key[:6]}: {what}", dump(changed(recipe, ("blobs", key), new))
        out = copy.deepcopy(recipe)
        del out["blobs"][key]
        yield "blob", f"{key[:6]}: missing", dump(out)
        yield (
            "packing",
            f"{key[:6]}: compressed otherwise",
            dump(changed(recipe, ("blobs", key), base64.b64encode(lzma.compress(inner, preset=0)).decode())),
        )
    a, b = list(recipe["blobs"])[:2]
    out = copy.deepcopy(recipe)
    out["blobs"][a], out["blobs"][b] = out["blobs"][b], out["blobs"][a]
    yield "blob", "two programs exchanged under their digests", dump(out)
    yield "blob", "one more", dump(recipe | {"blobs": recipe["blobs"] | {"0" * 64: recipe["blobs"][a]}})
    out = copy.deepcopy(recipe)
    out["programs"] = [p | {"blob": out["programs"][-1]["blob"]} for p in out["programs"][:1]]
    yield "blob", "the steady program from step 0", dump(out)
    out = copy.deepcopy(recipe)
    out["programs"][-1]["first"] = 2
    yield "blob", "the first program twice", dump(out)


def programs(recipe: dict[str, Any], draw: random.Random, per_program: int) -> Iterator[Mutation]:
    """A program's text, its digests put right: ops, arguments, slots, geometry, results, state."""
    for key in recipe["blobs"]:
        program = json.loads(document.unpack(key, recipe["blobs"][key]))
        name = key[:6]
        ops = program["ops"]
        for n in draw.sample(range(len(ops)), min(len(ops), per_program // 4)):
            label = f"{name}: op {n} ({ops[n][0]})"
            yield "program", f"{label} deleted", repacked(recipe, key, changed_ops(program, ops[:n] + ops[n + 1 :]))
            yield "program", f"{label} twice", repacked(recipe, key, changed_ops(program, ops[: n + 1] + ops[n:]))
            if n + 1 < len(ops):
                order = [*ops[:n], ops[n + 1], ops[n], *ops[n + 2 :]]
                yield "program", f"{label} behind the next", repacked(recipe, key, changed_ops(program, order))
        paths = list(leaves(program))
        for path in draw.sample(paths, min(len(paths), per_program)):
            choices = list(others(at(program, path)))
            what, new = choices[draw.randrange(len(choices))]
            yield "program", f"{name}: {name_of(path)}: {what}", repacked(recipe, key, changed(program, path, new))
        yield from whole_programs(recipe, key, program)


def changed_ops(program: Any, ops: list[Any]) -> Any:
    return {**program, "ops": ops}


def whole_programs(recipe: dict[str, Any], key: str, program: Any) -> Iterator[Mutation]:
    name = key[:6]
    yield "program", f"{name}: one field more", repacked(recipe, key, program | {"zz": 1})
    yield "program", f"{name}: another version", repacked(recipe, key, program | {"format": "step-oracle program 2"})
    yield "program", f"{name}: not JSON", repacked(recipe, key, "{")
    yield "program", f"{name}: not canonical", repacked(recipe, key, json.dumps(program))
    for op, args in (
        ("aten::from_file", ["/etc/passwd", None, 4, {"dtype": "uint8"}, None, None, None]),
        ("prim::Print", []),
        ("aten::exp", [{"t": 0}]),
        ("aten::rand", [[3], None, None, {"device": "host"}, None]),
    ):
        out = changed_ops(program, [[op, "", args, [["host", "uint8", [4]]]], *program["ops"]])
        yield "program", f"{name}: an op {op} more", repacked(recipe, key, out)
    big = [
        [
            "aten::zeros",
            "",
            [[1 << 44], {"dtype": "float32"}, None, {"device": "card"}, None],
            [["card", "float32", [1 << 44]]],
        ]
    ]
    yield "program", f"{name}: 64 TiB of zeros", repacked(recipe, key, changed_ops(program, big + program["ops"]))
    state = program["state"]
    pairs = [(a, b) for a in state for b in state if a < b and state[a] != state[b]]
    for a, b in (pairs[0], pairs[len(pairs) // 2], pairs[-1]):
        yield (
            "program",
            f"{name}: states {a} and {b} exchanged",
            repacked(recipe, key, program | {"state": state | {a: state[b], b: state[a]}}),
        )
    for n, slot in enumerate(program["slots"]):
        if "term" in slot or "bytes" in slot or "batch" in slot:
            out = copy.deepcopy(program)
            kind = next(k for k in slot if k != "is")
            if kind == "bytes":
                first = "B" if slot["bytes"][0] != "B" else "C"
                out["slots"][n]["bytes"] = first + slot["bytes"][1:]
            else:
                out["slots"][n][kind] = {"x.0": "y.0", "y.0": "x.0"}.get(slot[kind], "beta1@0")
            yield "program", f"{name}: slot {n} ({kind})", repacked(recipe, key, out)
