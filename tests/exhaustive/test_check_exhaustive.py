"""scripts/check_exhaustive: sweeps are resumed, compared, and refused; the small ones are recomputed."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SWEEP = ROOT / "build/tests/exhaustive/sweep"
DATA = ROOT / "tests/data/exhaustive.json"
RECORDED = json.loads(DATA.read_text())["sweeps"]
SMALL = [name for name, row in RECORDED.items() if row["inputs"] == 1 << 16]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    if not SWEEP.exists():
        pytest.fail(f"{SWEEP} is not built. Run: scripts/build --tests")


def check(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/check_exhaustive"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def sweep(*args: object, isa: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "STEP_ORACLE_THREADS": "1", **({"STEP_ORACLE_ISA": isa} if isa else {})}
    return subprocess.run([str(SWEEP), *map(str, args)], capture_output=True, text=True, check=False, env=env)


def test_every_sweep_is_recorded_or_listed_as_open() -> None:
    listed = {line.split("\t")[0] for line in sweep("--list").stdout.splitlines()}
    assert set(RECORDED) <= listed
    assert set(json.loads(DATA.read_text())["open"]) == listed - set(RECORDED)


@pytest.mark.parametrize("isa", [None, "avx2", "baseline"])
def test_unary_operators_of_16_bits_give_the_recorded_bytes(isa: str | None, tmp_path: pathlib.Path) -> None:
    assert len(SMALL) > 50
    args = ["--isa", isa] if isa else []
    done = check("--state", tmp_path / "state", *args, *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as recorded") == len(SMALL)


@pytest.mark.parametrize("name", ["to_float16", "reciprocal", "float16.add", "bfloat16.maximum"])
def test_a_chunk_equals_the_independent_route(name: str) -> None:
    done = sweep(name, 15, 16, "-")
    chunk, digest, differ, first = done.stdout.split()
    assert (chunk, differ, first) == ("15", "0", "-1") and len(digest) == 64


def test_what_was_finished_is_not_run_again_and_a_cut_line_is_not_read(tmp_path: pathlib.Path) -> None:
    state = tmp_path / "state"
    assert check("--state", state, "float16.neg", "float16.abs").returncode == 0
    lines = state.read_text().splitlines()
    assert len(lines) == 2
    state.write_text(lines[0] + "\n" + lines[1][: len(lines[1]) // 2])
    assert check("--state", state, "float16.neg", "float16.abs").returncode == 0
    kept = state.read_text()
    assert kept.count("float16.neg") == 1 and '"chunk"' in kept
    # Another digest is a failure that says so.
    row = json.loads(lines[0])
    row["blake3"] = "0" * 64
    state.write_text(json.dumps(row) + "\n")
    done = check("--state", state, "float16.neg")
    assert done.returncode == 1 and "recorded was" in done.stdout


def test_refusals() -> None:
    assert check("nothing").returncode == 2
    assert check("--isa", "mmx", "float16.neg").returncode == 2
    assert sweep("float16.neg", 0).returncode == 2
    assert sweep("expf", 0, 1, "/nowhere.so").returncode == 2
