"""Outputs of card_probe for tests: a dry run's, made once, and what a forger or an accident makes of it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import io
import json
import lzma
import pathlib
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def probe(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/card_probe", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def imported(*args: Any) -> subprocess.CompletedProcess[str]:
    """card_import in this process: a process of its own would spend its seconds on importing torch."""
    return called("card_import", *args)


def called(script: str, *args: Any) -> subprocess.CompletedProcess[str]:
    loader = importlib.machinery.SourceFileLoader(script, str(ROOT / "scripts" / script))
    module = types.ModuleType(script)
    module.__file__ = str(ROOT / "scripts" / script)
    argv, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = [script, *map(str, args)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exec(loader.get_code(script), vars(module))  # noqa: S102
            code = module.main()
    except SystemExit as e:
        code = e.code
    finally:
        sys.argv = argv
    return subprocess.CompletedProcess(sys.argv, code, out.getvalue(), err.getvalue())


def copy_of(output: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    shutil.copytree(output, to)
    beside = output.with_name(output.name + ".work")
    shutil.copytree(beside, to.with_name(to.name + ".work"))
    return to


def edit_manifest(folder: pathlib.Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def edit_section(folder: pathlib.Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a section's content and the manifest's digest of it, as a forger would."""
    path = folder / f"{name}.json.xz"
    data = json.loads(lzma.open(path).read())
    change(data)
    path.write_bytes(lzma.compress(json.dumps(data).encode()))
    reseal(folder, path)


def reseal(folder: pathlib.Path, path: pathlib.Path) -> None:
    row = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    edit_manifest(folder, lambda m: m["files"].update({path.name: row}))


def as_if_of_a_card(folder: pathlib.Path, name: str = "NVIDIA H100 PCIe") -> pathlib.Path:
    """A forgery that passes for a real card's: no claim of this repository may ever rest on one."""
    card = {"name": name, "compute_capability": "9.0", "sms": 114, "threads_per_sm": 2048, "memory": 80 << 30,
            "uuid": "0"}

    def run(m: dict[str, Any]) -> None:
        m["run"] |= {"card": card, "torch": "2.13.0+cu130", "dry": False, "driver": "580.0"}

    for section in json.loads((folder / "manifest.json").read_text())["sections"]:
        edit_section(folder, section, run)
    edit_manifest(folder, lambda m: (run(m), m.update(card=card, dry=False), m["versions"].update(cuda="13.0")))
    return folder


@functools.cache
def own_vectors() -> dict[str, Any]:
    """What a card that agrees with every vector of this tree would say."""
    from probe import context, vectors

    import step_oracle
    from step_oracle import plans

    plans.quiet()
    with step_oracle.card("h100-pcie"):
        return {n: vectors.run(context.Context(True, pathlib.Path()), n) for n in vectors.all_units()}


def of_all_vectors(folder: pathlib.Path) -> pathlib.Path:
    rows = json.loads(json.dumps(own_vectors()))
    edit_section(folder, "vectors", lambda s: s.update(units=rows))
    return folder


def grades(root: pathlib.Path) -> dict[str, str]:
    """Family and text of the rows of grade card in a tree."""
    rows = json.loads((root / "step_oracle/data/evidence.json").read_text())
    return {r["family"]: r["what"] for r in rows if r["grade"] == "card"}


def tree(to: pathlib.Path) -> pathlib.Path:
    """A repository to import into: the files that card_import writes."""
    (to / "step_oracle/data").mkdir(parents=True)
    for name in ("evidence.json", "contradictions.json"):
        shutil.copyfile(ROOT / "step_oracle/data" / name, to / "step_oracle/data" / name)
    return to
