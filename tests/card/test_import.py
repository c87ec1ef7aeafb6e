"""scripts/card_import: what it confirms and contradicts, what it refuses, and that a dry run proves nothing."""

from __future__ import annotations

import json
import lzma
import pathlib
import shutil
import tarfile
from typing import Any

import outputs
import pytest
from probe import arith, compare


def test_a_dry_output_is_read_and_raises_no_grade(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = outputs.tree(tmp_path / "tree")
    before = (root / "step_oracle/data/evidence.json").read_bytes()
    done = outputs.imported(dry, "--into", root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DRY" in done.stdout and "raises no grade" in done.stderr
    for section in ("vectors", "arith", "products", "steps"):
        assert f"  {section}: " in done.stdout
    assert (root / "step_oracle/data/evidence.json").read_bytes() == before
    assert not (root / "tests/data/card").exists()


def test_a_dry_output_that_denies_it_is_still_dry(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.copy_of(dry, tmp_path / "out")
    root = outputs.tree(tmp_path / "tree")
    for section in ("vectors", "arith", "products", "attention", "steps", "costs"):
        outputs.edit_section(folder, section, lambda s: s["run"].update(dry=False))
    outputs.edit_manifest(folder, lambda m: (m.update(dry=False), m["run"].update(dry=False)))
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 0 and "DRY" in done.stdout
    assert not (root / "tests/data/card").exists()


def test_what_a_card_confirms_becomes_grade_card(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.as_if_of_a_card(outputs.of_all_vectors(outputs.copy_of(dry, tmp_path / "out")))
    root = outputs.tree(tmp_path / "tree")
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 0, done.stdout + done.stderr
    records = list((root / "tests/data/card").glob("*/record.json"))
    assert len(records) == 1 and records[0].parent.name.startswith("h100-pcie-")
    record = json.loads(records[0].read_text())
    assert record["dry"] is False and record["driver"] == "580.0" and record["command"] and record["files"]
    evidence = json.loads((root / "step_oracle/data/evidence.json").read_text())
    rows = [r for r in evidence if r["grade"] == "card"]
    assert {r["family"] for r in rows} >= {"pointwise", "softmax", "reduce"}
    assert all(r["cards"] == ["9.0"] for r in rows)
    assert "arith" not in {r["family"] for r in rows}, "sampled words raise no grade"
    assert json.loads((root / "step_oracle/data/contradictions.json").read_text()) == []
    again = outputs.imported(folder, "--into", root)
    assert again.returncode == 0
    assert len(json.loads((root / "step_oracle/data/evidence.json").read_text())) == len(
        json.loads((outputs.ROOT / "step_oracle/data/evidence.json").read_text())) + len(rows), "twice is once"


LINE = ("[cublasLt][Trace][cublasLtMatmul] A=0X7F0 Adesc=[type=R_32F rows=24 cols=64 ld=24] Bdesc=[type=R_32F rows=64 "
        "cols=32 ld=64] Cdesc=[type=R_32F rows=24 cols=32 ld=24] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F] "
        "algo=[algoId=20 tile=MATMUL_TILE_32x128 stages=MATMUL_STAGES_8x4] workSpaceSizeInBytes=0 stream=0X0")


def test_plan_rows_come_from_the_lines(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def logged(s: dict[str, Any]) -> None:
        for row in s["units"]["float32/0"]["products"]:
            row |= {"lines": [LINE], "heuristic": {"id": 20, "splits": 1}}

    folder = outputs.copy_of(dry, tmp_path / "out")
    outputs.edit_section(folder, "products", logged)
    outputs.as_if_of_a_card(folder)
    root = outputs.tree(tmp_path / "tree")
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {p.name for p in (root / "tests/data/card").glob("*/*")}
    assert {"heuristics.json", "lt.log", "record.json"} <= written
    assert "lt.log (3 lines)" in done.stdout and "plan" in done.stdout.split("lt.log")[1]


def contradict(folder: pathlib.Path) -> None:
    def vectors(s: dict[str, Any]) -> None:
        units = s["units"]
        name = next(n for n in units if compare.family_of(n) == "pointwise" and "out" in units[n].get("outputs", {}))
        s["units"][name]["outputs"]["out"] |= {"digest": "00" * 32, "first": [[3, "1", "2"]]}

    def words(s: dict[str, Any]) -> None:
        row = s["units"]["mufu.rcp_ftz"]
        raw = bytearray(arith.unpack(row["samples"]))
        raw[4 * 4 * 63] ^= 1  # of chunk 63
        row["samples"] = arith.pack(bytes(raw))

    outputs.edit_section(folder, "vectors", vectors)
    outputs.edit_section(folder, "arith", words)


def test_a_contradiction_is_listed_and_fails_until_it_is_met(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.as_if_of_a_card(outputs.copy_of(dry, tmp_path / "out"))
    contradict(folder)
    root = outputs.tree(tmp_path / "tree")
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 1 and done.stdout.count("CONTRADICTED") == 2
    assert "the card has" in done.stdout and "0x3f000000" in done.stdout
    listed = compare.load_contradictions(root)
    assert [c["family"] for c in listed] == ["pointwise", "arith"]
    assert all(not compare.is_met(c["claim"]) for c in listed)
    evidence = json.loads((root / "step_oracle/data/evidence.json").read_text())
    rows = [r for r in evidence if r["grade"] == "card"]
    assert "pointwise" not in {r["family"] for r in rows}
    x, word = 0x3F000000, int.from_bytes(arith.model("mufu.rcp_ftz", 0x3F000000, 1), "little")
    assert compare.is_met({"function": "mufu.rcp_ftz", "input": x, "word": word}), "met when the model says it"
    own = compare.expected("pow2_bf16.special")
    assert compare.is_met({"vector": "pow2_bf16.special", "digests": own})


def test_wrong_places(tmp_path: pathlib.Path, dry: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, says in ((tmp_path / "nowhere", "is not a folder"), (tmp_path / "empty", "has no manifest.json")):
        done = outputs.imported(folder)
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    done = outputs.imported(dry, "--into", tmp_path)
    assert done.returncode == 2 and "is not a tree of step-oracle" in done.stderr


def truncate(folder: pathlib.Path) -> None:
    path = folder / "vectors.json.xz"
    path.write_bytes(path.read_bytes()[:-7])


def flip(folder: pathlib.Path) -> None:
    path = folder / "products.json.xz"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(bytes(raw))


def remove(folder: pathlib.Path) -> None:
    (folder / "steps.json.xz").unlink()


def add(folder: pathlib.Path) -> None:
    (folder / "vectors (1).json.xz").write_bytes(b"x")


def no_json(folder: pathlib.Path) -> None:
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:-40])


def other_format(folder: pathlib.Path) -> None:
    outputs.edit_manifest(folder, lambda m: m.update(format="step-oracle card probe 9"))


def mixed(folder: pathlib.Path) -> None:
    outputs.edit_section(folder, "arith", lambda s: s["run"].update(driver="999"))


def another_section(folder: pathlib.Path) -> None:
    shutil.copyfile(folder / "vectors.json.xz", folder / "arith.json.xz")
    outputs.reseal(folder, folder / "arith.json.xz")


def resealed_garbage(folder: pathlib.Path) -> None:
    (folder / "vectors.json.xz").write_bytes(b"garbage")
    outputs.reseal(folder, folder / "vectors.json.xz")


def wrong_shape(folder: pathlib.Path) -> None:
    outputs.edit_section(folder, "vectors", lambda s: s["units"].update({"exp_f32.2085": {"outputs": 3}}))


def unknown_vector(folder: pathlib.Path) -> None:
    row = {"outputs": {"out": {"digest": "0"}}, "equal": True}
    outputs.edit_section(folder, "vectors", lambda s: s["units"].update({"../../etc/passwd": row}))


def few_chunks(folder: pathlib.Path) -> None:
    outputs.edit_section(folder, "arith", lambda s: s["units"]["mufu.ex2"]["chunks"].pop())


def huge_step(folder: pathlib.Path) -> None:
    outputs.edit_section(folder, "arith", lambda s: s["units"]["mufu.ex2"].update(step=1 << 40))


def bomb(folder: pathlib.Path) -> None:
    packer = lzma.LZMACompressor(preset=0)
    with open(folder / "vectors.json.xz", "wb") as f:
        for _ in range(520):
            f.write(packer.compress(bytes(1 << 20)))
        f.write(packer.flush())
    outputs.reseal(folder, folder / "vectors.json.xz")


def path_in_files(folder: pathlib.Path) -> None:
    outputs.edit_manifest(folder, lambda m: m["files"].update({"../x": m["files"].pop("costs.json.xz")}))


def bad_trace(folder: pathlib.Path) -> None:
    with tarfile.open(folder / "traces-1.tar", "w") as tar:
        no_trace = folder.with_name("no.trace")
        no_trace.write_bytes(b"not a trace")
        for name in ("dry-float32-stock.step0.trace", "dry-float32-stock.trace"):
            tar.add(no_trace, arcname=name)
    outputs.reseal(folder, folder / "traces-1.tar")


DAMAGE = {truncate: "it was cut off or changed", flip: "its SHA-256 differs", remove: "is not there",
          add: "which the manifest does not list", no_json: "is damaged", other_format: "format",
          mixed: "two runs were mixed", another_section: "another section's content", resealed_garbage: "is damaged",
          wrong_shape: "is damaged (vectors.units.exp_f32.2085",
          unknown_vector: "a name in vectors.units is",
          few_chunks: "a list of 256 to 256", huge_step: "an integer from 1 to", bomb: "unpacks to more",
          path_in_files: "a name in the manifest.files is",
          bad_trace: "cannot be read"}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_a_damaged_output_is_refused(dry: pathlib.Path, tmp_path: pathlib.Path, damage: Any) -> None:
    folder = outputs.copy_of(dry, tmp_path / "out")
    damage(folder)
    root = outputs.tree(tmp_path / "tree")
    before = sorted(p for p in root.rglob("*"))
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 2, done.stdout + done.stderr
    assert DAMAGE[damage] in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert sorted(p for p in root.rglob("*")) == before, "nothing is written"


def test_packed_words_come_back() -> None:
    import random

    r = random.Random(5)
    for n in (0, 1, 5, 1000):
        words = r.randbytes(4 * n)
        assert arith.unpack(arith.pack(words)) == words
