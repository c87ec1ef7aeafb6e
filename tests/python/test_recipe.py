"""A recipe of a small run: written, verified in fresh processes, audited, killed, deleted and resurrected."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

import step_oracle
from step_oracle import recipe
from step_oracle.recipe import attest, canonical, checkpoints, document, verification
from step_oracle.recipe.extract import NotAProgram

HERE = pathlib.Path(__file__).parent
STEPS = 12
sys.path.insert(0, str(HERE))
import recipe_run  # noqa: E402


def command(*words: str, **environment: str) -> tuple[int, str, str]:
    line = [sys.executable, "-m", "step_oracle.cli", "recipe", *words]
    out = subprocess.run(line, capture_output=True, text=True, env={**os.environ, **environment})
    return out.returncode, out.stdout, out.stderr


def run_of(folder: pathlib.Path, **about: object) -> pathlib.Path:
    """A run and its recipe, made in a fresh process."""
    words = [f"--{k}" if v is True else f"--{k}={v}" for k, v in about.items()]
    out = subprocess.run(
        [sys.executable, str(HERE / "recipe_run.py"), str(folder), *words], capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr[-3000:]
    return folder.with_suffix(".recipe.json")


@pytest.fixture(scope="module", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No key of the user's is made, and none is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return run_of(tmp_path_factory.mktemp("recipes") / "h100", steps=STEPS)


@pytest.fixture(scope="module")
def corpus(made: pathlib.Path) -> str:
    return str(made.parent / "corpus.txt")


@pytest.fixture(scope="module")
def kept(made: pathlib.Path, corpus: str) -> pathlib.Path:
    """A checkpoint after every step."""
    folder = made.parent / "kept"
    code, out, err = command("verify", str(made), "--corpus", corpus, "--folder", str(folder), "--keep-every", "1")
    assert code == 0, out + err
    return folder


def same_bytes(a: pathlib.Path, b: pathlib.Path) -> int:
    """How many tensors two checkpoints have, all of them equal."""
    one, other = checkpoints.read(a), checkpoints.read(b)
    assert one.tensors.keys() == other.tensors.keys()
    assert (one.step, one.generator, one.loss) == (other.step, other.generator, other.loss)
    for name, t in one.tensors.items():
        u = other.tensors[name]
        assert t.dtype == u.dtype and t.shape == u.shape, name
        assert t.numpy().tobytes() == u.numpy().tobytes(), name
    return len(one.tensors)


def test_the_document_is_small_and_holds_everything(made: pathlib.Path, corpus: str, tmp_path: pathlib.Path) -> None:
    assert made.stat().st_size <= 20_000
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in (made, pathlib.Path(corpus)):
        (alone / path.name).write_bytes(path.read_bytes())
    code, out, _ = command("verify", str(alone / made.name), "--corpus", str(alone / "corpus.txt"), "--json")
    found = json.loads(out)
    assert code == 0 and found["ok"] and found["first_failed"] is None
    total = len(recipe_run.promises(STEPS))
    assert found["promises"] == {"kept": total, "total": total} and found["losses"] == STEPS
    code, out, _ = command("verify", str(made), "--corpus", corpus, "--until", "1")
    assert code == 0 and "2/2 promises: verified" in out


@pytest.mark.parametrize(
    ("card", "bf16", "op"), [("t4", False, "efficient"), ("a100-sxm-80gb", True, "flash"), ("t4", True, "")]
)
def test_a_run_with_the_cards_own_attention(tmp_path: pathlib.Path, card: str, bf16: bool, op: str) -> None:
    """``op``: whose kernels; none for bfloat16 on a T4, whose products are no adder's either."""
    switches = {name: True for name, on in (("fused", op), ("bf16", bf16)) if on}
    path = run_of(tmp_path / card, steps=3, card=card, **switches)
    opened = document.load(path)
    steps = [text for text in opened.texts.values() if '"x.0"' in text]
    if op:
        assert steps and all(f'{op}_attention{part}"' in text for text in steps for part in ("", "_backward"))
    else:
        assert steps and not any("_attention" in text for text in steps)
    code, out, err = command("verify", str(path), "--corpus", str(tmp_path / "corpus.txt"))
    assert code == 0 and "3/3 promises: verified" in out, err


def test_every_instruction_set_and_thread_count_walks_to_one_digest(made: pathlib.Path, corpus: str) -> None:
    isas = step_oracle.device.extension().isas()
    print("not run, this CPU has none of:", set(isas["compiled"]) - set(isas["usable"]))
    states = set()
    for isa in isas["usable"]:
        for threads in ("1", "2", "3"):
            code, out, _ = command(
                "verify", str(made), "--corpus", corpus, "--threads", threads, "--json", STEP_ORACLE_ISA=isa
            )
            assert code == 0, (isa, threads)
            states.add(json.loads(out)["state"])
    assert len(states) == 1


def test_checkpoints_are_what_the_live_run_had(made: pathlib.Path, kept: pathlib.Path) -> None:
    states = json.loads((made.parent / "h100" / "run.json").read_text())["states"]
    index = json.loads((kept / "index.json").read_text())["states"]
    assert states and all(index[step] == digest for step, digest in states.items())


def test_a_deleted_checkpoint_comes_back(
    made: pathlib.Path, corpus: str, kept: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    keep = (3, 7)
    for step in keep:
        name = f"after-{step:08d}.safetensors"
        (folder / name).write_bytes((kept / name).read_bytes())
    (folder / "index.json").write_bytes((kept / "index.json").read_bytes())
    for step in (0, 4, 9):  # 0 from the initial state, 4 named by the index, 9 by a promise
        out = tmp_path / f"{step}.safetensors"
        code, text, err = command(
            "resurrect",
            str(made),
            "--corpus",
            corpus,
            "--step",
            str(step),
            "--folder",
            str(folder),
            "-o",
            str(out),
            "--json",
        )
        assert code == 0, text + err
        assert json.loads(text)["from_step"] == max([s for s in keep if s < step], default=-1)
        assert same_bytes(out, kept / f"after-{step:08d}.safetensors") > 80
    (folder / "index.json").unlink()  # a state that nothing names is walked on to the next promise
    code, text, _ = command(
        "resurrect", str(made), "--corpus", corpus, "--step", "5", "-o", str(tmp_path / "5"), "--json"
    )
    assert code == 0 and json.loads(text)["named_by"] == "the next promise"
    assert same_bytes(tmp_path / "5", kept / "after-00000005.safetensors") > 80


def test_a_killed_walk_goes_on_to_the_same_bytes(
    made: pathlib.Path, corpus: str, kept: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "killed"
    words = ["verify", str(made), "--corpus", corpus, "--folder", str(folder), "--keep-every", "1"]
    killed = 0
    for wanted in (2, 5, 8):
        walk = subprocess.Popen([sys.executable, "-m", "step_oracle.cli", "recipe", *words], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not (folder / f"after-{wanted:08d}.safetensors").exists() and walk.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        walk.send_signal(signal.SIGKILL)
        killed += walk.wait() == -signal.SIGKILL
    assert killed > 0, "every walk had ended before it was killed"
    code, out, err = command(*words, "--json")
    found = json.loads(out)
    assert code == 0 and found["ok"] and found["resumed_from"] >= 2, err
    assert found["promises"]["kept"] == len(recipe_run.promises(STEPS))
    for step in range(STEPS):
        if (folder / f"after-{step:08d}.safetensors").exists():
            same_bytes(folder / f"after-{step:08d}.safetensors", kept / f"after-{step:08d}.safetensors")
    assert json.loads((folder / "index.json").read_text()) == json.loads((kept / "index.json").read_text())


def test_another_cards_block_carries_that_cards_loss(
    made: pathlib.Path, corpus: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    (folder / "corpus.txt").write_bytes(pathlib.Path(corpus).read_bytes())
    other = json.loads(run_of(folder / "t4", steps=4, card="t4").read_text())
    own = json.loads(made.read_text())
    assert own["blobs"] == other["blobs"], "two cards that ran one program share its blobs"
    assert own["losses"][:4] != other["losses"]
    swapped = own | {k: other[k] for k in ("card", "class", "plans")}
    path = folder / "swapped.json"
    path.write_text(canonical.dump(swapped) + "\n")
    code, out, _ = command("verify", str(path), "--corpus", corpus, "--json")
    failed = json.loads(out)["first_failed"]
    first = next(i for i, (a, b) in enumerate(zip(own["losses"], other["losses"], strict=False)) if a != b)
    assert code == 1 and failed["step"] == first <= 1 and failed["loss"] == other["losses"][first]


# --- audits ---------------------------------------------------------------------------------------------------------


def test_audits(made: pathlib.Path, corpus: str, kept: pathlib.Path) -> None:
    code, out, _ = command(
        "audit",
        str(made),
        "--corpus",
        corpus,
        "--from",
        str(kept / "after-00000001.safetensors"),
        "--steps",
        "1",
        "--json",
    )
    found = json.loads(out)
    assert (
        code == 0
        and found["promises"] == {"kept": 1, "total": 1}
        and (found["first_step"], found["last_step"]) == (2, 2)
    )
    froms = [str(kept / f"after-{s:08d}.safetensors") for s in recipe_run.promises(STEPS)[:-1]]
    code, out, _ = command("audit", str(made), "--corpus", corpus, "--jobs", "2", "--json", "--from", *froms)
    found = json.loads(out)
    assert (
        code == 0
        and found["promises"] == {"kept": len(froms), "total": len(froms)}
        and len(found["audits"]) == len(froms)
    )


def test_an_engine_that_is_not_there_is_one_sentence(made: pathlib.Path, corpus: str, kept: pathlib.Path) -> None:
    for engine, module in (("ray", "ray"), ("dask", "distributed")):
        code, out, err = command(
            "audit",
            str(made),
            "--corpus",
            corpus,
            "--engine",
            engine,
            "--from",
            str(kept / "after-00000001.safetensors"),
        )
        try:
            __import__(module)
        except ImportError:
            assert code == 2 and not out and err.count("\n") == 1 and "pip install" in err
        else:
            assert code == 0 and "1/1 promises" in out


@pytest.mark.parametrize("step", [3, 11])
def test_a_state_that_no_promise_names_or_follows_is_no_start(
    made: pathlib.Path, corpus: str, kept: pathlib.Path, step: int
) -> None:
    code, _, err = command(
        "audit", str(made), "--corpus", corpus, "--from", str(kept / f"after-{step:08d}.safetensors")
    )
    assert code == 2 and err.count("\n") == 1


def test_a_verification_can_be_attested(made: pathlib.Path, corpus: str, tmp_path: pathlib.Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (tmp_path / "public").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    code, _, err = command(
        "attest",
        str(made),
        "--corpus",
        corpus,
        "--until",
        "2",
        "--key",
        str(tmp_path / "key"),
        "-o",
        str(tmp_path / "a"),
    )
    assert code == 0, err
    envelope = json.loads((tmp_path / "a").read_text())
    found = attest.open_envelope(envelope, str(tmp_path / "public"))
    assert found["_type"] == attest.STATEMENT and found["predicate"]["promises"] == {"kept": 3, "total": 3, "of": 6}
    assert found["subject"][0]["digest"]["blake3"] == document.load(made).digest
    changed = found | {"subject": [{"name": "another", "digest": {}}]}
    import base64

    envelope["payload"] = base64.b64encode(json.dumps(changed).encode()).decode()
    with pytest.raises(ValueError, match="changed"):
        attest.open_envelope(envelope, str(tmp_path / "public"))
    code, out, _ = command("attest", str(made), "--corpus", corpus, "--until", "0")
    assert code == 0 and json.loads(out)["predicate"]["result"] == "PASSED"


def test_an_estimate_names_time_memory_and_disk(made: pathlib.Path, corpus: str) -> None:
    code, out, _ = command("estimate", str(made), "--corpus", corpus, "--keep-every", "4", "--json")
    found = json.loads(out)
    assert code == 0 and found["keep"] == {**found["keep"], "checkpoints": 3, "disk_bytes": 3 * found["state_bytes"]}
    assert found["seconds_a_step"] > 0 and found["peak_memory_bytes"] > found["live_bytes"] > found["state_bytes"]


# --- other runs -----------------------------------------------------------------------------------------------------

COSINE = {"kind": "warmup cosine", "lr": 1e-3, "least": 1e-4, "warmup": 2, "decay": 6}


@pytest.mark.parametrize(
    ("optimizer", "schedule", "build"),
    [
        ("fused", None, "card"),
        ("for-loop", None, "file"),
        ("foreach", COSINE, "host"),
        ("fused", COSINE, "file"),
        ("for-loop", COSINE, "card"),
    ],
)
def test_other_optimizers_schedules_and_initial_states(
    tmp_path: pathlib.Path, optimizer: str, schedule: dict[str, object] | None, build: str
) -> None:
    folder = tmp_path / "run"
    recipe_run.train(folder, optimizer=optimizer, schedule=schedule, build=build, card="a100-sxm-80gb")
    corpus = str(tmp_path / "corpus.txt")
    text = recipe.write(folder, corpus)
    init = str(folder / "init.safetensors") if build == "file" else None
    verdict = verification.verify(document.Recipe(text), corpus, init=init)
    assert verdict.ok and verdict.losses == 8, verdict.first_failed
    group = json.loads(text)["optimizer"]["groups"][0]
    assert group["schedule"]["kind"] == ("constant" if schedule is None else "warmup cosine")
    if build == "host":
        changed = json.loads(text)
        changed["init"]["term"]["generator"]["seed"] += 1
        failed = verification.verify(document.Recipe(canonical.dump(changed)), corpus)
        assert not failed.ok and failed.first_failed and failed.first_failed.step == 0
    if init is not None:
        with pytest.raises(ValueError, match="--init"):
            verification.verify(document.Recipe(text), corpus)
        tensors = checkpoints.read(init).tensors
        next(iter(tensors.values())).view(torch.int32).view(-1)[0] ^= 1
        checkpoints.write(tmp_path / "changed", tensors, step=None, generator="", loss="")
        with pytest.raises(ValueError, match="state digest"):
            verification.verify(document.Recipe(text), corpus, init=str(tmp_path / "changed"))


def test_a_number_that_changes_and_has_no_term_is_refused(tmp_path: pathlib.Path) -> None:
    recipe_run.train(tmp_path / "run", schedule=COSINE, steps=4)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["groups"][0]["schedule"] = {"kind": "constant", "lr": 1e-3}  # not what the run did
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with pytest.raises(NotAProgram, match="changes from step to step"):
        recipe.write(tmp_path / "run", str(tmp_path / "corpus.txt"))


def test_one_recording_of_the_steady_state_is_not_enough(tmp_path: pathlib.Path) -> None:
    recipe_run.train(tmp_path / "run", steps=3)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["recorded"] = [0, 1]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with pytest.raises(NotAProgram, match="record two alike steps"):
        recipe.write(tmp_path / "run", str(tmp_path / "corpus.txt"))


def test_a_batch_that_the_sampler_did_not_make_is_refused(tmp_path: pathlib.Path) -> None:
    recipe_run.train(tmp_path / "run", steps=3)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["sampler"]["seed"] += 1
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with pytest.raises(NotAProgram, match="sampler's batch"):
        recipe.write(tmp_path / "run", str(tmp_path / "corpus.txt"))
