"""What a hostile folder, recipe or command line could do to recipes, and no longer does."""

from __future__ import annotations

import fnmatch
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from step_oracle.recipe import attest, canonical, checkpoints, document, seal, terms, verification, walk, writer
from step_oracle.recipe.extract import NotAProgram

HERE = pathlib.Path(__file__).parent

STEPS = 6  # promises after 0, 1, 2, 4, 5


@pytest.fixture(scope="module", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def command(*words: str) -> tuple[int, str, str]:
    out = subprocess.run([sys.executable, "-m", "step_oracle.cli", "recipe", *words], capture_output=True, text=True)
    return out.returncode, out.stdout, out.stderr


def refused(*words: str) -> str:
    """Exit 2, and one sentence."""
    code, _, err = command(*words)
    assert code == 2 and err.count("\n") == 1 and "internal error" not in err, (code, err)
    return err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("redteam") / "run"
    words = [sys.executable, str(HERE / "recipe_run.py"), str(folder), f"--steps={STEPS}", "--planned"]
    subprocess.run(words, check=True, capture_output=True)
    return folder.with_suffix(".recipe.json")


@pytest.fixture(scope="module")
def corpus(made: pathlib.Path) -> str:
    return str(made.parent / "corpus.txt")


@pytest.fixture(scope="module")
def kept(made: pathlib.Path, corpus: str) -> pathlib.Path:
    folder = made.parent / "kept"
    assert verification.verify(str(made), corpus, folder=str(folder), keep_every=1).ok
    return folder


def put(path: pathlib.Path, value: Any) -> str:
    path.write_text(canonical.dump(value) + "\n")
    return str(path)


def changed(made: pathlib.Path, path: pathlib.Path, change: Any) -> str:
    value = json.loads(made.read_text())
    change(value)
    return put(path, value)


# --- folders --------------------------------------------------------------------------------------------------------


def forged(made: pathlib.Path, kept: pathlib.Path, where: pathlib.Path) -> tuple[str, pathlib.Path]:
    """A recipe of made-up losses and promises, and a folder that says they were verified."""
    saved = checkpoints.read(kept / f"after-{STEPS - 1:08d}.safetensors")
    tensors = {n: t * 0 + 42 if t.is_floating_point() else t for n, t in saved.tensors.items()}
    value = json.loads(made.read_text())
    value["losses"] = ["00000000"] * STEPS
    for p in value["promises"]:
        p |= {"loss": "00000000", "state": "ab" * 32}
    value["promises"][-1]["state"] = walk.state_digest(tensors, saved.generator)
    path = put(where / "forged.json", value)
    folder = where / "forged"
    folder.mkdir()
    last = folder / f"after-{STEPS - 1:08d}.safetensors"
    checkpoints.write(last, tensors, step=STEPS - 1, generator=saved.generator, loss="00000000")
    index = json.loads((kept / "index.json").read_text())
    index |= {"recipe": document.load(path).digest, "losses": value["losses"]}
    index["states"] = {str(p["step"]): p["state"] for p in value["promises"]}
    checkpoints.write(
        folder / "after-00000003.safetensors", tensors, step=3, generator=saved.generator, loss="00000000"
    )
    index["states"]["3"] = index["states"][str(STEPS - 1)]
    (folder / "index.json").write_text(json.dumps(index))
    return path, folder


@pytest.mark.parametrize("sealed", ["as another index", "not at all", "by another's key", "by the version before"])
def test_a_forged_folder_verifies_nothing(
    made: pathlib.Path, corpus: str, kept: pathlib.Path, tmp_path: pathlib.Path, sealed: str
) -> None:
    path, folder = forged(made, kept, tmp_path)
    index = json.loads((folder / "index.json").read_text())
    if sealed == "not at all":
        del index["seal"]
    elif sealed == "by another's key":
        del index["seal"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
            index["seal"] = seal.seal(canonical.dump(index))
    elif sealed == "by the version before":
        index = {k: v for k, v in index.items() if k not in ("seal", "saved", "read")}
    (folder / "index.json").write_text(json.dumps(index))
    verdict = verification.verify(path, corpus, folder=str(folder))
    assert not verdict.ok and verdict.resumed_from is None and verdict.kept == 0
    assert verdict.first_failed is not None and verdict.first_failed.step == 0
    assert "nothing in" in verdict.note
    code, out, _ = command("attest", path, "--corpus", corpus, "--folder", str(folder), "-o", str(tmp_path / "a"))
    assert code == 1 and not (tmp_path / "a").exists() and f"0/{STEPS - 1}" in out
    start = str(folder / "after-00000003.safetensors")  # the index named it, and no promise does
    with pytest.raises(ValueError, match="neither the recipe nor an index names"):
        verification.resurrect(path, corpus, 4, str(tmp_path / "r"), kept=start, folder=str(folder))


def test_an_honest_recipe_beside_a_changed_index_is_walked_from_step_0(
    made: pathlib.Path, corpus: str, kept: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(kept, folder)
    assert verification.verify(str(made), corpus, folder=str(folder)).resumed_from == STEPS - 1
    index = json.loads((folder / "index.json").read_text())
    index["states"]["3"] = "0" * 64
    (folder / "index.json").write_text(json.dumps(index))
    verdict = verification.verify(str(made), corpus, folder=str(folder))
    assert verdict.ok and verdict.resumed_from is None and verdict.note and verdict.first == 0
    assert verification.verify(str(made), corpus, folder=str(folder)).resumed_from == STEPS - 1


def test_the_key_is_the_users_alone(kept: pathlib.Path) -> None:
    path = seal.key_path()
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size == 32
    index = json.loads((kept / "index.json").read_text())
    by = index.pop("seal")
    assert seal.is_sealed(canonical.dump(index), by)
    try:
        path.chmod(0o644)
        with pytest.raises(ValueError, match="others"):
            seal.is_sealed("", by)
    finally:
        path.chmod(0o600)


def test_only_a_walk_of_all_steps_is_attested(made: pathlib.Path, corpus: str, kept: pathlib.Path) -> None:
    assert "one process" in refused("attest", str(made), "--corpus", corpus, "--folder", str(kept))
    opened = document.load(made)
    verdict = verification.verify(opened, corpus, folder=str(kept))
    assert verdict.ok and verdict.resumed_from == STEPS - 1
    with pytest.raises(ValueError, match="one process"):
        attest.statement(opened, verdict, corpus)


# --- fields that nothing reads --------------------------------------------------------------------------------------


def unread(value: dict[str, Any], what: str) -> None:
    if what == "exception":
        a, b = terms.bits_of(0.7), terms.bits_of(3.0)
        value["optimizer"]["exceptions"] = [
            ["power", a, b, terms.bits_of(math.nextafter(terms.power(0.7, 3.0), 1))]
        ]
    elif what == "plan row":
        row = json.loads(json.dumps(value["plans"]["rows"][0]))
        row["m"] += 1
        value["plans"]["rows"].append(row)
    else:
        value["optimizer"]["groups"][0]["dampening"] = 0.5


@pytest.mark.parametrize("what", ["exception", "plan row", "literal"])
@pytest.mark.parametrize("until", [None, 2])
def test_an_unread_field_is_found_in_a_second_call_too(
    made: pathlib.Path, corpus: str, tmp_path: pathlib.Path, what: str, until: int | None
) -> None:
    path = changed(made, tmp_path / "r.json", lambda v: unread(v, what))
    folder = str(tmp_path / "folder")
    if until is not None:
        assert verification.verify(path, corpus, folder=folder, until=until).ok
    for _ in range(2):
        with pytest.raises(canonical.Malformed, match="exceptions: no step|no product of the run|nothing read"):
            verification.verify(path, corpus, folder=folder)


def test_an_honest_walk_in_two_parts_has_read_everything(
    made: pathlib.Path, corpus: str, tmp_path: pathlib.Path
) -> None:
    assert json.loads(made.read_text())["plans"]["rows"]
    folder = str(tmp_path / "folder")
    for until in (0, 2, None, None):
        assert verification.verify(str(made), corpus, folder=folder, until=until).ok


# --- interrupted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_walk_with_keep_every_is_killed_and_repeated(
    made: pathlib.Path, corpus: str, tmp_path: pathlib.Path, every: int
) -> None:
    folder = tmp_path / "folder"
    words = ["verify", str(made), "--corpus", corpus, "--folder", str(folder), "--keep-every", str(every)]
    process = subprocess.Popen([sys.executable, "-m", "step_oracle.cli", "recipe", *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (folder / "index.json").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for _ in range(2):
        code, out, err = command(*words, "--json")
        found = json.loads(out)
        assert code == 0 and found["resumed_from"] >= every - 1, out + err
        assert found["promises"] == {"kept": STEPS - 1, "total": STEPS - 1}


def test_another_keep_every_makes_its_checkpoints(made: pathlib.Path, corpus: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    assert verification.verify(str(made), corpus, folder=str(folder)).ok
    assert not (folder / "after-00000003.safetensors").exists()
    verdict = verification.verify(str(made), corpus, folder=str(folder), keep_every=2)
    assert verdict.ok and verdict.resumed_from == 2 and (folder / "after-00000003.safetensors").exists()
    os.remove(folder / "after-00000003.safetensors")  # deleted, and still known
    assert verification.verify(str(made), corpus, folder=str(folder), keep_every=2).resumed_from == STEPS - 1


# --- recipes and run folders ----------------------------------------------------------------------------------------


def table(steps: int) -> dict[str, Any]:
    return {"kind": "table", "lr": [1e-3] * steps}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["sampler"].update(seed=7 + (1 << 32)), "give 7"),
        (lambda v: v["optimizer"]["groups"][0].update(schedule=table(STEPS + 1)), "6 steps: give one for each"),
        (lambda v: v["optimizer"]["groups"][0].update(schedule=table(STEPS - 1)), "6 steps: give one for each"),
        (lambda v: v["optimizer"]["groups"][0].update(beta1=1.0), "below 1.0"),
        (lambda v: v["optimizer"]["groups"][0].update(beta2=1.0), "below 1.0"),
        (lambda v: v["optimizer"]["groups"].append({}), r"has 2 groups, and the programs' terms name 1: leave out"),
    ],
)
def test_values_that_decide_nothing_or_divide_by_nothing(
    made: pathlib.Path, tmp_path: pathlib.Path, change: Any, said: str
) -> None:
    with pytest.raises(canonical.Malformed, match=said):
        document.load(changed(made, tmp_path / "r.json", change))


def test_a_table_of_each_steps_rate_verifies(made: pathlib.Path, corpus: str, tmp_path: pathlib.Path) -> None:
    def change(value: dict[str, Any]) -> None:
        value["optimizer"]["groups"][0]["schedule"] = table(STEPS)

    assert verification.verify(changed(made, tmp_path / "r.json", change), corpus).ok


@pytest.fixture
def run(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(made.parent / "run", tmp_path / "run"))


def edit(run: pathlib.Path, change: Any) -> None:
    about = json.loads((run / "run.json").read_text())
    change(about)
    (run / "run.json").write_text(json.dumps(about))


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_false_promise_of_a_recorded_step_is_not_written(
    made: pathlib.Path, run: pathlib.Path, corpus: str, step: int
) -> None:
    edit(run, lambda v: v["states"].update({str(step): "0" * 64}))
    with pytest.raises(NotAProgram, match=f"after step {step} the walk has the state"):
        writer.write(run, corpus, plans=str(made.parent / "run.plans.json"))


FIELDS = ("corpus", "sampler", "generator", "losses", "states", "groups", "recorded")


@pytest.mark.parametrize("field", [*FIELDS, "init"])
def test_a_run_of_missing_or_empty_fields_is_refused_in_one_sentence(
    run: pathlib.Path, corpus: str, field: str
) -> None:
    whole = (run / "run.json").read_text()
    for value in ("missing", None, [], {}, 3, "text", [[]], [None], {"x": None}):
        if field == "init" and value is None:
            continue  # a model that was not made by the run
        (run / "run.json").write_text(whole)
        edit(run, lambda v, new=value: v.pop(field) if new == "missing" else v.update({field: new}))
        with pytest.raises(ValueError, match=field) as caught:
            writer.write(run, corpus)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", ["99", "x", "-1", "01", "6"])
def test_a_promise_of_a_step_that_the_run_has_not_is_refused(run: pathlib.Path, corpus: str, step: str) -> None:
    edit(run, lambda v: v["states"].update({step: "0" * 64}))
    with pytest.raises(ValueError, match=f"states has the step '{step}'"):
        writer.write(run, corpus)


def test_a_group_that_no_term_names_is_not_written(made: pathlib.Path, run: pathlib.Path, corpus: str) -> None:
    edit(run, lambda v: v["groups"].append(v["groups"][0]))
    text = writer.write(run, corpus, plans=str(made.parent / "run.plans.json"))
    assert json.loads(text)["optimizer"] == json.loads(made.read_text())["optimizer"]


# --- command lines --------------------------------------------------------------------------------------------------


def test_numbers_that_are_none_are_sentences(made: pathlib.Path, corpus: str) -> None:
    about = (str(made), "--corpus", corpus)
    assert "--keep-every 0" in refused("estimate", *about, "--keep-every", "0")
    assert "--keep-every -3" in refused("estimate", *about, "--keep-every", "-3")
    assert "--steps -3" in refused("estimate", *about, "--steps", "-3")
    assert "--keep-every 0" in refused("verify", *about, "--keep-every", "0")


def test_a_place_that_cannot_be_written_is_refused_before_the_walk(
    made: pathlib.Path, corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    monkeypatch.setattr(walk.Walk, "advance", lambda self: pytest.fail("a step was walked"))
    for out in ("none/x", "folder", "pipe", "link"):
        with pytest.raises(ValueError, match="regular file|no folder"):
            verification.resurrect(str(made), corpus, 1, str(tmp_path / out))
    about = (str(made), "--corpus", corpus)
    assert "no folder" in refused("resurrect", *about, "--step", "1", "-o", str(tmp_path / "none" / "x"))
    assert "regular" in refused("attest", *about, "-o", str(tmp_path / "pipe"))
    assert "regular" in refused("write", str(made.parent / "run"), "--corpus", corpus, "-o", str(tmp_path / "folder"))


def test_resurrect_past_the_last_promise_is_refused_before_the_walk(
    made: pathlib.Path, corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk.Walk, "advance", lambda self: pytest.fail("a step was walked"))
    path = changed(made, tmp_path / "r.json", lambda v: v["promises"].pop())
    with pytest.raises(ValueError, match="no promise names the state after step 5"):
        verification.resurrect(path, corpus, STEPS - 1, str(tmp_path / "out"))


def test_audits_without_a_promise_and_refused_ones_exit_2(
    made: pathlib.Path, corpus: str, kept: pathlib.Path
) -> None:
    about = ("audit", str(made), "--corpus", corpus, "--from")
    files = [str(kept / f"after-{s:08d}.safetensors") for s in range(STEPS)]
    assert "reach no promise" in refused(*about, files[2], "--steps", "1")
    assert "--steps 2" in refused(*about, files[2], "--steps", "1")
    code, out, _ = command(*about, files[2], files[4], "--steps", "1")
    assert code == 2 and "1/1 promises in 2 audits: NOT verified" in out and "refused:" in out
    code, out, _ = command(*about, files[1], files[STEPS - 1])
    assert code == 2 and "NOT verified" in out
    code, out, _ = command(*about, files[1], files[4])
    assert code == 0 and "2/2 promises in 2 audits: verified" in out


def test_the_howtos_audits_reach_promises() -> None:
    """Its promises, files and --steps belong together (docs/howto-recipe.md)."""
    page = (HERE.parents[1] / "docs" / "howto-recipe.md").read_text()
    promised = json.loads(page.split("promises=")[1].split("]")[0] + "]")
    audits = [line.split("#")[0].split() for line in page.splitlines() if "recipe audit" in line]
    assert len(audits) == 2
    for words in audits:
        pattern = pathlib.PurePath(words[words.index("--from") + 1]).name
        starts = [s for s in promised if fnmatch.fnmatch(f"after-{s:08d}.safetensors", pattern)]
        assert starts and promised[-1] not in starts, pattern
        if "--steps" in words:
            assert starts[0] + int(words[words.index("--steps") + 1]) in promised
