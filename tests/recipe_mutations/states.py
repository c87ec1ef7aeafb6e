"""Changes to checkpoints and to the index of a folder of them."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from safetensors.torch import save_file

from step_oracle.recipe import checkpoints

State = dict[str, torch.Tensor]


def ulp(t: torch.Tensor, element: int = 0) -> torch.Tensor:
    out = t.clone()
    out.view(-1).view(torch.int32)[element] += 1
    return out


def files(kept: pathlib.Path, step: int, folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Changed copies of the checkpoint after ``step``."""
    saved = checkpoints.read(kept / f"after-{step:08d}.safetensors")
    t = saved.tensors
    weights = sorted(n for n in t if t[n].dim() == 2 and not n.endswith(("exp_avg", "exp_avg_sq")))
    alike = next((a, b) for a in weights for b in weights if a < b and t[a].shape == t[b].shape)
    counter = next(n for n in t if n.endswith(".step"))
    moment = f"{weights[0]}.exp_avg"

    def put(name: str, tensors: State, **meta: Any) -> tuple[str, pathlib.Path]:
        path = folder / (name.replace(" ", "-") + ".safetensors")
        checkpoints.write(path, tensors, **{"step": step, "generator": saved.generator, "loss": saved.loss, **meta})
        return name, path

    yield put("a weight by one ulp", t | {weights[0]: ulp(t[weights[0]])})
    yield put("the last weight by one ulp", t | {weights[-1]: ulp(t[weights[-1]], -1)})
    yield put("a moment by one ulp", t | {moment: ulp(t[moment])})
    yield put("a step counter", t | {counter: t[counter] + 1})
    yield put(
        "a weight's sign of zero",
        t
        | {
            weights[0]: torch.where(
                torch.arange(t[weights[0]].numel()).view_as(t[weights[0]]) == 5, torch.tensor(-0.0), t[weights[0]]
            )
        },
    )
    yield put("a NaN", t | {weights[0]: torch.full_like(t[weights[0]], float("nan"))})
    yield put("two tensors of one shape exchanged", t | {alike[0]: t[alike[1]], alike[1]: t[alike[0]]})
    yield put("moments exchanged", t | {moment: t[moment + "_sq"], moment + "_sq": t[moment]})
    yield put("a tensor missing", {n: v for n, v in t.items() if n != weights[0]})
    yield put("a tensor more", t | {"zz": torch.ones(3)})
    yield put("a tensor of another name", {("zz" if n == weights[0] else n): v for n, v in t.items()})
    yield put("another dtype", t | {weights[0]: t[weights[0]].view(torch.int32)})
    yield put("another shape", t | {weights[0]: t[weights[0]].t().contiguous().view(-1)})
    yield put("another generator", t, generator="00" * 16)
    yield put("no generator", t, generator="")
    yield put("a generator of another form", t, generator="zz" * 16)
    yield put("another step", t, step=step + 1)
    yield put("an earlier step", t, step=step - 1)
    yield put("a step that no promise names", t, step=10**12)
    yield put("no step", t, step=None)
    data = (kept / f"after-{step:08d}.safetensors").read_bytes()
    raw = {"cut": data[:-7], "cut in its head": data[:30], "empty": b"", "text": b"text", "longer": data + b"x",
           "a huge head": b"\xff" * 8 + data[8:], "the last byte": data[:-1] + bytes([data[-1] ^ 1])}  # fmt: skip
    for name, changed in raw.items():
        path = folder / f"raw-{name.replace(' ', '-')}.safetensors"
        path.write_bytes(changed)
        yield name, path
    save_file(t, folder / "bare.safetensors")
    yield "no metadata", folder / "bare.safetensors"
    yield "not there", folder / "none.safetensors"


def indices(kept: pathlib.Path, step: int, folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Folders that a walk is to go on from: the checkpoint after ``step``, and a changed index."""
    good = json.loads((kept / "index.json").read_text())
    good["losses"] = good["losses"][: step + 1]
    good["states"] = {k: v for k, v in good["states"].items() if int(k) <= step}

    def put(name: str, text: str) -> tuple[str, pathlib.Path]:
        path = folder / name.replace(" ", "-")
        path.mkdir()
        shutil.copy(kept / f"after-{step:08d}.safetensors", path)
        (path / "index.json").write_text(text)
        return name, path

    def value(change: Callable[[Any], None]) -> str:
        out = json.loads(json.dumps(good))
        change(out)
        return json.dumps(out)

    flipped = f"{int(good['losses'][0], 16) ^ 1:08x}"
    yield put("index: not JSON", "{")
    yield put("index: nested deep", "[" * 100_000)
    yield put("index: a list", "[]")
    yield put("index: another recipe", value(lambda v: v.update(recipe="0" * 64)))
    yield put("index: another version", value(lambda v: v.update(format="step-oracle checkpoints 2")))
    yield put("index: an earlier loss", value(lambda v: v["losses"].__setitem__(0, flipped)))
    yield put("index: a loss missing", value(lambda v: v["losses"].pop()))
    yield put("index: an earlier promise's state", value(lambda v: v["states"].update({"0": "0" * 64})))
    yield put("index: an earlier promise's state missing", value(lambda v: v["states"].pop("0")))
    yield put("index: the checkpoint's state", value(lambda v: v["states"].update({str(step): "0" * 64})))
    yield put("index: a state that is no digest", value(lambda v: v["states"].update({str(step): 3})))
    yield put("index: a negative step", value(lambda v: v["states"].update({"-1": "0" * 64})))
