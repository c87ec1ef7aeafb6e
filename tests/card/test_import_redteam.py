"""scripts/card_import against a forger and accidents: what raises no grade, and what is refused in one sentence."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from typing import Any

import outputs
import pytest
from probe import arith, attention, build, compare, products, source, store, vectors
from probe.case import FAMILIES

LIGHT = ("arith", "products", "attention", "steps", "costs")


def only(folder: pathlib.Path, *keep: str) -> pathlib.Path:
    """Without the other sections, so that the import takes no time for them."""
    for path in [*folder.glob("*.json.xz"), *folder.glob("*.tar")]:
        name = path.name.removesuffix(".json.xz")
        if name not in keep:
            path.unlink()
            outputs.edit_manifest(folder, lambda m, n=name, p=path: (m["files"].pop(p.name), m["sections"].pop(n, 0)))
    return folder


@pytest.fixture
def real(dry: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A forgery of all vectors that agrees with every one."""
    folder = only(outputs.copy_of(dry, tmp_path / "out"), "vectors")
    return outputs.as_if_of_a_card(outputs.of_all_vectors(folder))


def grades_of(folder: pathlib.Path, tmp_path: pathlib.Path, *options: str) -> dict[str, str]:
    root = outputs.tree(tmp_path / "tree")
    done = outputs.imported(folder, *options, "--into", root)
    assert done.returncode == 0, done.stdout + done.stderr
    return outputs.grades(root)


# --- grades -----------------------------------------------------------------------------------------------------------


def test_digests_of_a_part_are_no_domain(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.as_if_of_a_card(only(outputs.copy_of(dry, tmp_path / "out"), "arith"))
    assert grades_of(folder, tmp_path, "--full") == {}
    row = {"count": 64, "chunks": ["0" * 64] * 256, "per_chunk": 4, "step": 1}
    words = b"".join(arith.model("mufu.ex2", c * arith.CHUNK, 4) for c in range(arith.CHUNKS))
    found = compare.of_function("mufu.ex2", row | {"samples": arith.pack(words)}, True)
    assert found.kind == "open" and not found.claim and "no whole" in found.text


def test_arithmetic_needs_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    class Real:
        dry = False
        manifest = {"card": {"name": "A", "compute_capability": "9.0"}}
        sections: dict[str, Any] = {}

    whole = {"whole": True}
    Finding = compare.Finding
    monkeypatch.setattr(compare, "of_function", lambda n, *_: Finding("arith", n, "confirmed", "", "arith", whole))
    rows: dict[str, Any] = {n: {} for n, (_, modelled) in arith.FUNCTIONS.items() if modelled}

    def raised(units: dict[str, Any]) -> bool:
        Real.sections = {"arith": units}
        return bool(compare.evidence_rows(Real, compare.of_arith(Real, True), "r"))  # type: ignore[arg-type]

    assert raised(rows) and raised(rows | {"mufu.tanh": {}}), "no model claims tanh"
    assert not raised({n: r for n, r in rows.items() if n != "libdevice.erff"})
    assert not raised(rows | {"libdevice.erff": {"error": "late"}})
    whole.clear()
    assert not raised(rows), "sampled words"


def test_a_family_needs_every_vector_of_the_tree(real: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def fewer(s: dict[str, Any]) -> None:
        units = s["units"]
        measured = {f: [n for n, r in units.items() if compare.family_of(n) == f and "outputs" in r]
                    for f in ("softmax", "norm", "reduce", "loss", "optimizer")}
        for name in measured["softmax"][1:]:
            del units[name]
        del units[measured["norm"][0]]
        units[measured["reduce"][0]] = {"error": "RuntimeError: CUDA error"}
        units[measured["loss"][0]] = {"na": "no call is written"}
        units[measured["optimizer"][-1]] = {"outputs": {}, "equal": True}

    outputs.edit_section(real, "vectors", fewer)
    raised = grades_of(real, tmp_path)
    assert set(raised) & {"softmax", "norm", "reduce", "loss", "optimizer"} == set()
    assert raised["pointwise"].startswith("all "), "this family is whole"


def test_all_vectors_raise_every_family(real: pathlib.Path, tmp_path: pathlib.Path) -> None:
    raised = grades_of(real, tmp_path)
    assert set(raised) == set(FAMILIES.values())
    count = sum("outputs" in r for n, r in outputs.own_vectors().items() if compare.family_of(n) == "softmax")
    assert raised["softmax"] == f"all {count} reachable vectors on NVIDIA H100 PCIe"


def test_no_output_confirms_nothing(real: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def empty(s: dict[str, Any]) -> None:
        for row in s["units"].values():
            if "outputs" in row:
                row["outputs"] = dict(list(row["outputs"].items())[1:])  # one less

    outputs.edit_section(real, "vectors", empty)
    assert grades_of(real, tmp_path) == {}
    done = outputs.imported(real, "--check", "--json")
    assert json.loads(done.stdout)["confirmed"] == 0


def test_attention_needs_every_case_and_output(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = outputs.as_if_of_a_card(only(outputs.copy_of(dry, tmp_path / "out"), "attention"))
    assert grades_of(folder, tmp_path) == {}, "four cases are not all"
    rows: dict[str, Any] = {}
    for unit, case in attention.cases().items():
        why = attention.unreachable(case, 9, 0)
        names = () if why else attention.names(case)
        each = {n: {"sha256": case["arrays"][n]["sha256"], "equal": True} for n in names}
        rows[unit] = {"na": why} if why else {"outputs": each, "equal": True}
    one = next(u for u, r in rows.items() if "outputs" in r)

    def raised(change: dict[str, Any]) -> bool:
        outputs.edit_section(folder, "attention", lambda s: s.update(units=rows | change))
        shutil.rmtree(tmp_path / "tree")
        return "attention" in grades_of(folder, tmp_path)

    assert raised({})
    assert not raised({one: {"error": "late"}})
    assert not raised({one: {"na": "not here"}}), "this tree says that it can be reached"
    assert not raised({one: {"outputs": {}, "equal": True}})


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(folder: pathlib.Path, tmp_path: pathlib.Path, says: str = "") -> None:
    root = outputs.tree(tmp_path / "tree")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    done = outputs.imported(folder, "--into", root)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr and done.stderr.startswith("card_import: ") and done.stderr.count("\n") == 1, done.stderr
    assert "the import failed" not in done.stderr, "that is for what nobody thought of"
    assert len(done.stderr) < 600
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before, "nothing is written"


def card(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda m: (m["card"].update(fields), m["run"]["card"].update(fields))  # type: ignore[func-returns-value]


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "written as text": (lambda m: m.update(written="now"), "written is 'now'"),
    "written too late": (lambda m: m.update(written=10**30), "written is a huge number"),
    "written too early": (lambda m: m.update(written=-10**12), "written"),
    "no written": (lambda m: m.pop("written"), "has no written"),
    "versions as list": (lambda m: m.update(versions=[]), "versions"),
    "versions too deep": (lambda m: m["versions"].update(cuda=[[[[[["13"]]]]]]), "versions.cuda"),
    "card as list": (lambda m: (m.update(card=[]), m["run"].update(card=[])), "card"),
    "file as text": (lambda m: m["files"].update({"vectors.json.xz": "x"}), "files.vectors.json.xz"),
    "section as text": (lambda m: m["sections"].update(vectors="x"), "sections.vectors"),
    "sections of other names": (lambda m: m["sections"].update(bogus={}), "sections"),
    "a file without its section": (lambda m: m["sections"].pop("vectors"), "no such section"),
    "torch as number": (lambda m: m["run"].update(torch=5), "torch is 5"),
    "commit as object": (lambda m: m.update(commit={}), "commit"),
    "dry as text": (lambda m: m.update(dry="no"), "dry"),
    "no name": (card(name=""), "name"),
    "a path as name": (card(name="../../../x\n"), "name"),
    "a name of a line and more": (card(name="H100\n"), "name"),
    "a number as name": (card(name=5), "name is 5"),
    "a huge name": (card(name="H" * 100000), "name"),
    "a list as name": (card(name=["H100"]), "name"),
    "no compute capability": (card(compute_capability=None), "compute_capability is None"),
    "another compute capability": (card(compute_capability="banana"), "compute_capability is 'banana'"),
    "no processors": (card(sms=0), "sms is 0"),
    "processors as truth": (card(sms=True), "sms"),
    "a huge memory": (card(memory=10**40), "memory is a huge number"),
    "another source": (lambda m: m["run"].update(source="0" * 16), "another probe than this tree's"),
    "source as text": (lambda m: m["run"].update(source="x"), "source"),
    "surrogates": (lambda m: m.update(command=["\ud800"]), "command[0]"),
    "an unknown key": (lambda m: m.update(note="x"), "'note'"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_wrong_types(dry: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    folder = outputs.as_if_of_a_card(only(outputs.copy_of(dry, tmp_path / "out"), "vectors"))
    change, says = MANIFESTS[name]
    outputs.edit_manifest(folder, change)
    refused(folder, tmp_path, says)


RAW = {"cut": b'{"format"', "empty": b"", "binary": bytes(range(256)), "list": b"[]", "null": b"null",
       "deep": b"[" * 100000, "deep objects": b'{"a":' * 100000, "digits": b'{"written":' + b"9" * 5000 + b"}",
       "NaN": b'{"written": NaN}', "too large": b" " * (2 << 20)}


@pytest.mark.parametrize("name", RAW)
def test_a_manifest_that_is_none(dry: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    folder = only(outputs.copy_of(dry, tmp_path / "out"), "vectors")
    (folder / "manifest.json").write_bytes(RAW[name])
    refused(folder, tmp_path, "manifest.json")


def test_a_manifest_that_is_a_folder(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = only(outputs.copy_of(dry, tmp_path / "out"), "vectors")
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    refused(folder, tmp_path, "is not a file")


def unit(section: str, row: Any, name: str = "") -> tuple[str, Callable[[dict[str, Any]], Any]]:
    return section, lambda s: s["units"].update({name or next(iter(s["units"])): row})


def edit(section: str, change: Callable[[dict[str, Any]], Any]) -> tuple[str, Callable[[dict[str, Any]], Any]]:
    return section, lambda s: [change(r) for r in s["units"].values()]


def product(**fields: Any) -> tuple[str, Callable[[dict[str, Any]], Any]]:
    return edit("products", lambda r: r["products"][0].update(fields))


D = "0" * 64
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "units as list": ("vectors", lambda s: s.update(units=[])),
    "run as list": ("vectors", lambda s: s.update(run=[])),
    "a row as text": unit("vectors", "na"),
    "na and error": unit("vectors", {"na": "x", "error": "y"}),
    "a path as unit": unit("vectors", {"na": "x"}, "../../etc/x"),
    "a unit of nothing": unit("vectors", {"na": "x"}, "nothing_f32.1"),
    "a long unit": unit("vectors", {"na": "x"}, "a" * 5000),
    "a unit with NUL": unit("vectors", {"na": "x"}, "a\0b"),
    "an output of another name": unit(
        "vectors", {"outputs": {"other": {"digest": D}}, "equal": True}, "gelu_tanh_f32.2085"
    ),
    "no digest": unit("vectors", {"outputs": {"out": {"digest": "x"}}, "equal": True}),
    "first as number": unit("vectors", {"outputs": {"out": {"digest": D, "first": 5}}, "equal": False}),
    "first as empty lists": unit("vectors", {"outputs": {"out": {"digest": D, "first": [[]]}}, "equal": False}),
    "samples of no base85": edit("arith", lambda r: r.update(samples="\"'")),
    "samples of no lzma": edit("arith", lambda r: r.update(samples="!!!!!")),
    "samples of another size": edit("arith", lambda r: r.update(samples=arith.pack(bytes(16)))),
    "chunk as fraction": edit("arith", lambda r: r.update(per_chunk=1.5)),
    "a step back": edit("arith", lambda r: r.update(step=-1)),
    "a count too large": edit("arith", lambda r: r.update(count=1 << 25)),
    "a function of nothing": unit("arith", {"error": "x"}, "mufu.nothing"),
    "a layout of nothing": product(layout="zz"),
    "another layout": product(layout="tn"),
    "a size below zero": product(m=-1),
    "a size of zero": product(n=0),
    "a huge size": product(m=10**9),
    "a huge index": product(index=10**30),
    "lines as numbers": product(lines=[5]),
    "a heuristic of text": product(heuristic={"id": "a"}),
    "a setting of nothing": unit("products", {"error": "x"}, "float8/x"),
    "a case of nothing": unit("attention", {"na": "x"}, "flash/nothing"),
    "an array of nothing": unit("attention", {"outputs": {"other": {"sha256": D, "equal": True}}, "equal": True}),
    "a trace elsewhere": edit("steps", lambda r: r["traces"][0].update(name="../../evil.trace")),
    "ops as text": edit("steps", lambda r: r["traces"][0].update(ops="many")),
    "costs as text": edit("costs", lambda r: r.update(bare="fast")),
}
assert not {s for s, _ in SECTIONS.values()} - {"vectors", *LIGHT}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_of_wrong_types(dry: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    section, change = SECTIONS[name]
    folder = outputs.as_if_of_a_card(only(outputs.copy_of(dry, tmp_path / "out"), section))
    outputs.edit_section(folder, section, change)
    refused(folder, tmp_path)


TARS: dict[str, bytes] = {"junk": b"junk" * 1000, "empty": b""}


@pytest.mark.parametrize("name", TARS)
def test_traces_that_are_no_tar(dry: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    folder = outputs.as_if_of_a_card(outputs.copy_of(dry, tmp_path / "out"))
    for section in ("vectors", "arith", "products", "attention", "costs"):
        (folder / f"{section}.json.xz").unlink()
        outputs.edit_manifest(folder, lambda m, s=section: (m["files"].pop(f"{s}.json.xz"), m["sections"].pop(s)))
    (folder / "traces-1.tar").write_bytes(TARS[name])
    outputs.reseal(folder, folder / "traces-1.tar")
    refused(folder, tmp_path, "traces-1.tar")


def test_what_nobody_thought_of_is_not_a_contradiction(dry: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("twice\nsaid")

    monkeypatch.setattr(compare, "all_findings", fails)
    done = outputs.imported(dry, "--check")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "ZeroDivisionError: twice said" in done.stderr


def test_what_a_desktop_leaves_is_passed_over(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = only(outputs.copy_of(dry, tmp_path / "out"), "costs")
    for name in (".DS_Store", "._manifest.json", "._costs.json.xz"):
        (folder / name).write_bytes(b"x")
    assert outputs.imported(folder, "--check").returncode == 0
    (tmp_path / "new").mkdir()
    (tmp_path / "new/.DS_Store").write_bytes(b"x")
    kept = store.Store(tmp_path / "new", {"dry": True})
    assert kept.pack({}, {})["files"] == {}, "and goes into no manifest"
    assert source.is_stray("._x") and not source.is_stray(".hidden")


# --- without a build --------------------------------------------------------------------------------------------------


def clone(to: pathlib.Path) -> pathlib.Path:
    """What a clone without a build has of what the import needs."""
    for folder in ("scripts", "csrc/record", "tests/data/witness", "tests/data/compiled", "tests/compiled",
                   "tests/data/attention"):
        shutil.copytree(outputs.ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))
    sources = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(outputs.ROOT / "step_oracle", to / "step_oracle", ignore=sources)
    return to


def test_a_clone_without_a_build(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    root = clone(tmp_path / "clone")
    command = [sys.executable, root / "scripts/card_import", dry]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "run scripts/build --tests first" in done.stderr
    pack = [sys.executable, root / "scripts/card_probe", "--pack", tmp_path / "x.tar.gz"]
    done = subprocess.run(pack, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "git" in done.stderr, done.stderr
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_dry_run_without_the_model_says_so_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MODEL", tmp_path / "exhaustive")
    done = outputs.called("card_probe", "--dry", "--out", tmp_path / "out")
    assert done.returncode == 2 and "scripts/build --tests" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_documented_numbers() -> None:
    text = (outputs.ROOT / "docs/howto/add-a-card.md").read_text()
    assert f"| {len(arith.FUNCTIONS)} functions |" in text
    parts = len(products.SETTINGS) * -(-(len(products.GPT) + products.RANDOM) // products.PART)
    assert f"| {parts} parts |" in text
    own = outputs.own_vectors()
    given = sum("outputs" in own[n] for n in vectors.all_names())
    assert f"| {len(vectors.all_names())} files, {len(own) - len(vectors.all_names())} rows |" in text
    assert f"no op reaches {len(vectors.all_names()) - given} (" in text and f"the other {given} agree" in text
    assert "not against a forger" in text


def test_a_sparse_member_is_no_trace(dry: pathlib.Path, tmp_path: pathlib.Path) -> None:
    from probe.output import Output, OutputError

    folder = outputs.copy_of(dry, tmp_path / "out")
    with tarfile.open(folder / "traces-1.tar", "w") as tar:
        info = tarfile.TarInfo("link.trace")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    outputs.reseal(folder, folder / "traces-1.tar")
    with pytest.raises(OutputError, match="which is no trace"):
        Output(folder).traces()
