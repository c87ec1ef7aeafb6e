"""scripts/card_probe: the dry run from end to end, resumption, refusals."""

from __future__ import annotations

import collections
import json
import lzma
import os
import pathlib
import resource
from typing import Any

import outputs
import pytest
import torch
from probe import case, compare, compiled, context, products, store, vectors

import step_oracle


def units(folder: pathlib.Path, section: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.open(folder / f"{section}.json.xz").read())["units"]
    return found


def test_a_dry_run_is_whole_and_small(dry: pathlib.Path) -> None:
    manifest = json.loads((dry / "manifest.json").read_text())
    assert manifest["dry"] is True and manifest["card"]["virtual"] is True
    assert set(manifest["sections"]) == {"vectors", "arith", "products", "attention", "steps", "costs"}
    assert all(s["whole"] and s["done"] == s["units"] > 0 for s in manifest["sections"].values())
    assert len(manifest["files"]) + 1 <= store.MOST_FILES and not manifest["left_out"]
    assert all(f["bytes"] <= store.MOST_BYTES for f in manifest["files"].values())
    assert {p.name for p in dry.iterdir()} == {*manifest["files"], "manifest.json"}


def test_the_virtual_card_gives_the_vectors(dry: pathlib.Path) -> None:
    rows = units(dry, "vectors")
    assert len(rows) >= 12 and all(r.get("equal") is True or "na" in r for r in rows.values())
    assert sum(r.get("equal") is True for r in rows.values()) >= 10


REASONS = {
    "the kernel is given gradient times output, and the op multiplies itself": 21,
    "it stands for a card with few processors": 19,
    "the kernel's factor 0.3 is neither 1 nor 1 or 2 over a number of elements": 16,
    "a map inside group norm: the op computes its factors from the tensor": 8,
    "the op takes mean and variance from the tensor, not from its caller": 3,
    "torch's op has mixed types for float16 only": 2,
    "torch takes one kernel for sums and gradient of planes": 5,
    "a map of tensors without a common layout: the op computes its sums": 1,
}


def test_every_vector_is_given_or_out_of_reach() -> None:
    """The public op on the virtual card gives the bytes of PyTorch's compiled kernel; where none can, it says why."""
    own = outputs.own_vectors()
    assert [n for n in compiled.rows() if own[n]["equal"] is not True] == [] and len(compiled.rows()) == 1173
    rows = {n: own[n] for n in vectors.all_names()}
    print(f"{sum('outputs' in r for r in rows.values())} of {len(rows)} vectors")
    assert [n for n, r in rows.items() if "na" not in r and r["equal"] is not True] == []
    assert collections.Counter(r["na"] for r in rows.values() if "na" in r) == REASONS
    assert sum("outputs" in r for r in rows.values()) == len(rows) - sum(REASONS.values()) == 1063


# Outputs of a file that its op keeps to itself.
INSIDE = {
    "foreach_norm": {"partials"},
    "group_norm_stats": {"a", "b", "mean_acc", "rstd_acc"},
    "group_norm_bwd": {"ds", "db", "c2", "c3"},
}


def test_every_output_that_an_op_gives_is_compared() -> None:
    inside: dict[str, set[str]] = {}
    own = outputs.own_vectors()
    assert all(set(own[n]["outputs"]) == set(compiled.expected(n)) for n in compiled.rows())
    for name, row in ((n, own[n]) for n in vectors.all_names()):
        if "outputs" in row:
            stored = {k.removeprefix("out_") for k in vectors.load(name)[1] if k.startswith("out_") and "@" not in k}
            inside.setdefault(case.base_of(name.partition(".")[0]), set()).update(stored - set(row["outputs"]))
    assert {base: names for base, names in inside.items() if names} == INSIDE


@pytest.mark.parametrize("name", ["tan_bf16.1061", "max_pool_last_f16.1x5x12x9_2x3_2x2_0x1_2x1", "norm3_f32.row_4x1000",
                                  "batch_norm_last_bwd_f16_mixed.37x5", "fused_adagrad_bf16.max_256_77"])
def test_one_bit_of_a_vector_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    load = vectors.load
    outs = [k for k in load(name)[1] if k.startswith("out_")]
    for changed in outs:
        def altered(name: str, changed: str = changed) -> Any:
            meta, arrays = load(name)
            context.bits(arrays[changed])[-1] ^= 1
            return meta, arrays

        monkeypatch.setattr(vectors, "load", altered)
        with step_oracle.card("h100-pcie"):
            row = vectors.run(context.Context(True, pathlib.Path()), name)
        assert row["equal"] is False, changed
        assert [k for k, r in row["outputs"].items() if "first" in r] == [changed.removeprefix("out_")]


def test_an_older_card_is_compared_with_its_own_bytes() -> None:
    """bfloat16's NaN is 0x7fc0 on compute capability 7.5: a file has those outputs apart, a digest cannot."""
    erf = "compiled/pointwise/erf"
    names = ["add_bf16.special", "exp_f32.special", f"{erf}.f32.2600", f"{erf}.bf16.2600"]
    with step_oracle.card("t4"):
        ctx = context.Context(True, pathlib.Path())
        assert ctx.capability == (7, 5)
        rows = [vectors.run(ctx, n) for n in names]
    assert [r.get("equal") for r in rows] == [True, True, True, None] and "8.0" in rows[3]["na"]
    assert compare.of_vector(names[0], rows[0], {"out"}, "pointwise", (7, 5)).kind == "confirmed"
    assert compare.of_vector(names[0], rows[0], {"out"}, "pointwise", (9, 0)).kind == "contradicted"
    assert [f.kind for f in compare.of_compiled(names[3], rows[3], (7, 5), False)] == ["na"]


def test_another_word_of_a_compiled_row_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "compiled/pointwise/floor.f32.2600"
    rows = compiled.rows()
    with step_oracle.card("h100-pcie"):
        own = vectors.run(context.Context(True, pathlib.Path()), name)
        assert own["equal"] is True and [f.kind for f in compare.of_compiled(name, own, (9, 0), False)] == ["confirmed"]
        monkeypatch.setitem(rows, name, rows[name] | {"op": "ceil"})
        other = vectors.run(context.Context(True, pathlib.Path()), name)
    assert other["equal"] is False and len(other["outputs"]["out"]["few"]) == 4
    (finding,) = compare.of_compiled(name, other, (9, 0), False)
    assert finding.kind == "contradicted" and finding.family == "pointwise" and "the card has" in finding.text
    assert not compare.is_met(finding.claim)
    assert compare.is_met({"compiled": name, "sha256": compiled.expected(name)})
    for row, kind in ((None, "open"), ({"error": "x"}, "open"), ({"na": "x"}, "open"), ({"outputs": {}}, "open")):
        assert [f.kind for f in compare.of_compiled(name, row, (9, 0), False)] == [kind]
    assert compare.of_compiled(name, None, (9, 0), True) == []


def test_zeros_of_another_width_differ() -> None:
    zeros = [torch.zeros(3, dtype=d) for d in (torch.float32, torch.bfloat16)]
    assert context.first_differences(*zeros) == [["bytes", 4, 2]]
    assert context.first_differences(zeros[0], torch.zeros(2)) == [["elements", 3, 2]]
    assert context.first_differences(zeros[0], zeros[0]) == []


def test_steps_leave_traces(dry: pathlib.Path) -> None:
    rows = units(dry, "steps")
    traces = [t for r in rows.values() for t in r["traces"]]
    assert {t["keep"] for t in traces} == {"state", "digests"} and all(t["complete"] for t in traces)
    assert all(len(r["losses"]) == 2 for r in rows.values())


def test_a_run_goes_on_where_it_stopped(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.copy_of(dry, tmp_path / "out")
    work = store.work_folder(folder)
    lines = (work / "vectors.jsonl").read_bytes().splitlines(keepends=True)
    (work / "vectors.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    (folder / "manifest.json").unlink()
    assert outputs.imported(folder, "--check").returncode == 2, "without a manifest the run did not end"
    done = outputs.probe("--dry", "--out", folder, "--section", "vectors")
    assert done.returncode == 0, done.stderr
    assert units(folder, "vectors") == units(dry, "vectors")
    again = (work / "vectors.jsonl").read_bytes().splitlines(keepends=True)
    assert again[:5] == lines[:5] and len(again) == len(lines)


def test_a_full_disk_loses_nothing(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out"
    work = store.work_folder(folder)

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    full = outputs.probe("--dry", "--out", folder, "--section", "vectors", preexec_fn=little_room)
    assert full.returncode == 2 and "what was measured before is kept" in full.stderr, full.stderr
    kept = store.Store(folder, json.loads((work / "run.json").read_text())).done("vectors")
    assert kept, "the units before"
    done = outputs.probe("--dry", "--out", folder, "--section", "vectors")
    assert done.returncode == 0, done.stderr
    assert kept.items() <= units(folder, "vectors").items()


RUN = {"card": {"name": "a"}, "driver": "1", "torch": "2", "source": "3", "dry": True}


def test_a_folder_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(store.ProbeError, match="holds other things"):
        store.Store(tmp_path, RUN)
    with pytest.raises(store.ProbeError, match="is a file"):
        store.Store(tmp_path / "notes.txt", RUN)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_run_is_refused(tmp_path: pathlib.Path) -> None:
    store.Store(tmp_path / "out", RUN)
    store.Store(tmp_path / "out", RUN)
    for key in RUN:
        with pytest.raises(store.ProbeError, match=f"another {key}"):
            store.Store(tmp_path / "out", RUN | {key: "other"})


def test_a_damaged_unit_ends_what_is_believed(tmp_path: pathlib.Path) -> None:
    s = store.Store(tmp_path / "out", RUN)
    for i in range(4):
        s.add("x", f"u{i}", {"n": i})
    path = tmp_path / "out.work/x.jsonl"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"n":2', b'"n":7'))
    assert list(s.done("x")) == ["u0", "u1"]
    s.add("x", "u2", {"n": 2})
    assert s.done("x") == {f"u{i}": {"n": i} for i in range(3)}


def test_traces_that_do_not_fit_are_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 40000)
    s = store.Store(tmp_path / "out", RUN)
    for name, size in (("a", 9000), ("b", 9000), ("c", 20000), ("d", 50000)):
        (s.work / f"{name}.trace").write_bytes(b"x" * size)
    manifest = s.pack({"x": {}}, {"dry": True})
    assert manifest["left_out"] == ["d.trace: 50000 bytes"]
    assert {"traces-1.tar", "traces-2.tar"} <= set(manifest["files"])
    assert all(f["bytes"] <= 40000 for f in manifest["files"].values())


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "give --out FOLDER"),
    (["--out", "/nowhere/at/all", "--dry", "--minutes", "0"], "--minutes"),
    (["--out", "OUT"], "run this on a machine with a card, or with --dry"),
])
def test_one_sentence_where_it_cannot_run(tmp_path: pathlib.Path, arguments: list[str], says: str) -> None:
    done = outputs.called("card_probe", *[str(tmp_path / "o") if a == "OUT" else a for a in arguments])
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: pathlib.Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    done = outputs.probe("--dry", "--out", tmp_path / "locked/out", "--section", "vectors")
    assert done.returncode == 2 and "Traceback" not in done.stderr


class FakeLt:
    """cuBLASLt as far as the heuristic asks it: answers what it was asked about."""

    def __init__(self) -> None:
        self.layouts: list[tuple[int, int, int]] = []
        self.made = self.gone = 0

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Create"):
            def create(p: Any, *args: Any) -> int:
                self.made += name != "cublasLtCreate"
                p._obj.value = 1 + self.made
                if "Layout" in name:
                    self.layouts.append((args[1].value, args[2].value, args[3].value))
                return 0
            return create
        if name.endswith("Destroy"):
            def destroy(p: Any) -> int:
                self.gone += 1
                return 0
            return destroy
        if name == "cublasLtMatmulAlgoGetHeuristic":
            def ask(*args: Any) -> int:
                args[-1]._obj.value = 1
                args[-2]._obj.workspace = 4096
                return 0
            return ask
        if name == "cublasLtMatmulAlgoConfigGetAttribute":
            def get(algo: Any, attribute: Any, value: Any, size: Any, written: Any) -> int:
                value._obj.value = 10 * attribute.value
                return 0
            return get
        return lambda *args: 0


def test_the_heuristic_is_asked_for_torchs_call() -> None:
    products._handle = None
    lt = FakeLt()
    row = products.heuristic("bfloat16", 5, 7, 9, "nt", lt)
    assert row == {"workspace": 4096, "id": 0, "tile": 10, "splits": 20, "reduction": 30, "swizzle": 40, "custom": 50,
                   "stages": 60, "inner": 70, "cluster": 80}
    assert lt.layouts == [(9, 7, 9), (9, 5, 9), (7, 5, 7)], "b^T, a, out: column-major, with their leading dimensions"
    assert lt.made == lt.gone == 5
    assert "na" in products.heuristic("float32", 1, 1, 1, "nn", object())
    products._handle = None
