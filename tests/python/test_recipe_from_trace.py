"""`recipe write` of a lone trace: one step, its batch inside the document, its start in a file beside."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from step_oracle import recipe
from step_oracle.cli import main
from step_oracle.recipe import canonical, checkpoints

TRAIN = """
import sys, torch, step_oracle
path, card, steps, keep, width, scale = sys.argv[1:]
step_oracle.set_card(card)
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(int(width), 8), torch.nn.Dropout(0.25), torch.nn.Linear(8, 3)).to("oracle")
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
x, y = torch.randn(6, int(width)).to("oracle"), torch.tensor([0, 2, 1, 1, 0, 2]).to("oracle")
def step():
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(x), y) * float(scale)
    if scale != "0":
        loss.backward()
        opt.step()
for _ in range(int(steps)):
    step()
with step_oracle.record(path, keep=keep, model=net, optimizer=opt):
    step()
"""


def record(path: pathlib.Path, card: str = "t4", steps: int = 0, keep: str = "state", width: int = 5,
           scale: str = "1") -> str:  # fmt: skip
    words = [sys.executable, "-c", TRAIN, str(path), card, str(steps), keep, str(width), scale]
    out = subprocess.run(words, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    return str(path)


def command(*words: str) -> tuple[int, str, str]:
    """In this process: `verify` in a fresh one is what test_recipe.py does."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["recipe", *words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("lone")
    out = folder / "a.recipe.json"
    code, said, err = command("write", record(folder / "a.trace", steps=2), "-o", str(out))
    assert code == 0, err
    assert "verify with --init" in said
    return out


def init_of(path: pathlib.Path) -> str:
    return f"{path}.init.safetensors"


@pytest.mark.parametrize("steps", [0, 2])
def test_a_first_and_a_later_step_verify(tmp_path: pathlib.Path, steps: int) -> None:
    """A first step makes the optimizer's state: what it hands on is not what it read."""
    out, init = tmp_path / "b.recipe.json", str(tmp_path / "start.safetensors")
    code, _, err = command("write", record(tmp_path / "b.trace", "h100-sxm", steps), "-o", str(out), "--init", init)
    assert code == 0, err
    code, said, _ = command("verify", str(out), "--init", init, "--json")
    found = json.loads(said)
    assert code == 0 and found["promises"] == {"kept": 1, "total": 1} and found["losses"] == 1
    assert command("check", str(out))[0] == 0
    code, said, _ = command("estimate", str(out), "--init", init, "--json")
    assert code == 0 and json.loads(said)["measured_steps"] == 1
    code, said, _ = command("attest", str(out), "--init", init)
    assert code == 0 and json.loads(said)["predicate"]["configuration"] == []


def test_one_ulp_of_the_start_or_of_the_batch_does_not_verify(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import torch

    saved = checkpoints.read(init_of(made))
    name = next(n for n in sorted(saved.tensors) if n.endswith("weight"))
    saved.tensors[name] = saved.tensors[name].clone()
    saved.tensors[name].view(-1).view(torch.int32)[0] ^= 1
    path = tmp_path / "changed.safetensors"
    checkpoints.write(path, saved.tensors, step=None, generator="", loss="")
    code, _, err = command("verify", str(made), "--init", str(path))
    assert code == 2 and "state digest" in err

    root = json.loads(made.read_text())
    (key, packed), = root["blobs"].items()
    program = json.loads(recipe.document.unpack(key, packed))
    batch = next(s for s in program["slots"] if s["is"][:2] == ["card", "float32"] and "bytes" in s)
    batch["bytes"] = ("B" if batch["bytes"][0] == "A" else "A") + batch["bytes"][1:]
    text = canonical.dump(program)
    own = recipe.digests.of_bytes(text.encode())
    forged = root | {"blobs": {own: recipe.document.pack(text)}, "programs": [{"first": 0, "blob": own}]}
    out = tmp_path / "forged.recipe.json"
    out.write_text(canonical.dump(forged) + "\n")
    code, said, _ = command("verify", str(out), "--init", init_of(made))
    assert code == 1 and "0/1 promises: NOT verified" in said


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"corpus": {"bytes": 5, "blake3": "0" * 64}}, "give both, or null for both"),
        ({"sampler": {"kind": "contiguous 1", "tokens": "bytes", "batch": 1, "context": 1, "micro": 1, "start": 0},
          "corpus": {"bytes": 5, "blake3": "0" * 64}}, "the sampler gives"),
        ({"steps": 2, "losses": ["00000000"] * 2}, ""),
        ({"generator": {"seed": 3, "offset": 0}}, ""),
    ],
)  # fmt: skip
def test_an_edited_recipe_never_verifies(made: pathlib.Path, tmp_path: pathlib.Path, change: Any, why: str) -> None:
    out = tmp_path / "edited.recipe.json"
    out.write_text(canonical.dump(json.loads(made.read_text()) | change) + "\n")
    code, said, err = command("verify", str(out), "--init", init_of(made))
    assert code in (1, 2) and "1/1" not in said and why in err


def test_a_text_without_its_line_feed_is_refused(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cut.recipe.json"
    path.write_text(made.read_text().rstrip("\n"))
    code, _, err = command("check", str(path))
    assert code == 2 and "no line feed at its end" in err


def test_what_is_missing_or_too_much_is_a_sentence(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trace = str(made.parent / "a.trace")
    for words, why in [
        (["verify", str(made)], "--init"),
        (["verify", str(made), "--init", init_of(made), "--corpus", str(made)], "leave --corpus out"),
        (["write", str(tmp_path / "none.trace"), "-o", str(tmp_path / "o")], "none.trace"),
        (["write", str(made), "-o", str(tmp_path / "o")], "trace"),
        (["write", str(tmp_path), "-o", str(tmp_path / "o")], "give the file that its batches"),
        (["write", trace, "-o", trace], "would be written over"),
        (["write", trace, "-o", str(tmp_path / "o"), "--init", str(tmp_path / "o")], "would be written over"),
        (["resurrect", str(made), "--init", init_of(made), "--step", "0", "-o", init_of(made)], "be written over"),
        (["audit", str(made), "--from", init_of(made)], "says that it is an initial state"),
        (["write", str(made.parent / "a.trace"), "--corpus", str(made), "-o", str(tmp_path / "o")], "leave it out"),
        (["write", record(tmp_path / "d.trace", keep="digests"), "-o", str(tmp_path / "o")], "keep='state'"),
        (["write", record(tmp_path / "n.trace", scale="0"), "-o", str(tmp_path / "o")], "has no loss"),
        (["write", record(tmp_path / "w.trace", width=4000), "-o", str(tmp_path / "o")], "bytes that are neither"),
    ]:
        code, _, err = command(*words)
        assert code == 2 and why in err, (words, code, err)
    assert not os.path.exists(tmp_path / "o")


def with_start(made: pathlib.Path, folder: pathlib.Path, tensors: dict[str, Any], program: Any = None) -> list[str]:
    """The words that verify a forged recipe: the made one with this start, and this program where one is given."""
    root = json.loads(made.read_text())
    start = folder / "forged.safetensors"
    checkpoints.write(start, tensors, step=None, generator="", loss="")
    root["init"]["state"] = recipe.walk.state_digest(tensors, "")
    if program is not None:
        text = canonical.dump(program)
        own = recipe.digests.of_bytes(text.encode())
        root |= {"blobs": {own: recipe.document.pack(text)}, "programs": [{"first": 0, "blob": own}]}
    out = folder / "forged.recipe.json"
    out.write_text(canonical.dump(root) + "\n")
    return ["verify", str(out), "--init", str(start), "--json"]


def test_a_start_of_other_tensors_than_the_program_reads_is_refused(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    saved = checkpoints.read(init_of(made)).tensors
    name = next(n for n in sorted(saved) if n.endswith("weight"))
    for tensors, why in [
        (saved | {"claim": saved[name].clone()}, "holds the tensor 'claim', which no program reads"),
        (saved | {name: saved[name].flatten()[:1].clone()}, f"holds '{name}' of [1], and the recipe's program reads"),
        (saved | {name: saved[name].flatten()}, f"holds '{name}' of ["),
        ({n: t for n, t in saved.items() if n != name}, f"holds no tensor '{name}'"),
    ]:
        code, said, err = command(*with_start(made, tmp_path, tensors))
        assert code == 2 and why in err and "internal" not in err and not said, (code, err)


ROW = ["card", "float32", [1 << 18]]
HOST = ["host", "float32", [64]]


@pytest.mark.parametrize(
    ("place", "op"),
    [
        (ROW, ["aten::empty", "memory_format", [ROW[2], {"dtype": "float32"}, None, {"device": "card"}, None, None]]),
        (ROW, ["aten::new_empty", "", [{"t": 0}, ROW[2], None, None, None, None]]),
        (HOST, ["aten::empty", "memory_format", [HOST[2], {"dtype": "float32"}, None, {"device": "host"}, None, None]]),
    ],
)  # fmt: skip
def test_memory_that_nobody_wrote_is_never_promised(
    made: pathlib.Path, tmp_path: pathlib.Path, place: Any, op: Any
) -> None:
    """Fresh pages are zero in every process: a promise of them would have verified."""
    import torch

    program = {"format": "step-oracle program 1", "slots": [{"is": ["card", "float32", [2]], "state": "w"}],
               "ops": [[*op, [place]]], "state": {"w": 0, "made": -1}, "loss": [0, "float32", [], [], 0]}  # fmt: skip
    words = with_start(made, tmp_path, {"w": torch.ones(2)}, program)
    root = json.loads(pathlib.Path(words[1]).read_text())
    root["losses"], root["promises"][0]["loss"] = ["3f800000"], "3f800000"
    states = set()
    for _ in range(3):
        pathlib.Path(words[1]).write_text(canonical.dump(root) + "\n")
        code, said, _ = command(*words)
        failed = json.loads(said)["first_failed"]
        assert code == 1 and failed["what"] == "state"
        root["promises"][0]["state"] = failed["actual"]  # what the walk found is promised, and not found again
        states.add(failed["actual"])
    assert len(states) == 3


def test_a_state_with_gaps_is_no_state(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import torch

    for strides in ([4, 1], [0, 1]):
        place = ["card", "float32", [2, 2], strides]
        program = {"format": "step-oracle program 1", "slots": [{"is": place, "state": "w"}], "ops": [],
                   "state": {"w": 0}, "loss": [0, "float32", [], [], 0]}  # fmt: skip
        code, _, err = command(*with_start(made, tmp_path, {"w": torch.ones(2, 2)}, program))
        assert code == 2 and "does not fill its slot" in err


WEIRD = """
import sys, torch, step_oracle
path, device, loss = sys.argv[1:]
step_oracle.set_card("t4")
torch.manual_seed(3)
net = torch.nn.Linear(5, 3).to(device)
net.register_buffer("none", torch.zeros(0, 4, device=device))
x = torch.ones(6, 5).to(device)
with step_oracle.record(path, keep="state", model=net):
    out = net(x).sum()
    (out.bfloat16() if loss == "bf16" else out).backward()
"""


def test_a_buffer_without_elements_verifies_and_others_are_sentences(tmp_path: pathlib.Path) -> None:
    def write(device: str, loss: str) -> tuple[int, str, str]:
        trace = str(tmp_path / f"{device}.{loss}.trace")
        subprocess.run([sys.executable, "-c", WEIRD, trace, device, loss], check=True, capture_output=True)
        return command("write", trace, "-o", str(tmp_path / f"{device}.{loss}.json"))

    code, _, err = write("oracle", "f32")
    assert code == 0, err
    out = tmp_path / "oracle.f32.json"
    assert command("verify", str(out), "--init", init_of(out))[0] == 0
    code, _, err = write("cpu", "f32")
    assert code == 2 and "was recorded on 'cpu'" in err
    code, _, err = write("oracle", "bf16")
    assert code == 2 and "recipes hold losses of float32" in err
    assert not list(tmp_path.glob("*bf16.json*")) and not list(tmp_path.glob("cpu*.json*"))
