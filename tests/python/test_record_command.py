"""step-oracle record: a step of an unmodified script."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

import step_oracle

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
import gpt
print("args", sys.argv[1:], "main", __name__, "beside", os.path.basename(sys.path[1]) != "")
t = gpt.Training("plain")
for i in range(int(sys.argv[1])):
    t.step()
    print("step", i, flush=True)
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
"""


def record(tmp: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp / "train.py"
    script.write_text(SCRIPT.format(tests=str(pathlib.Path(__file__).parent)))
    command = [sys.executable, "-m", "step_oracle.cli", "record", *arguments]
    return subprocess.run([c.replace("SCRIPT", str(script)) for c in command], capture_output=True, text=True, cwd=tmp,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, timeout=300, check=False)


def test_a_step_in_the_middle(tmp_path: pathlib.Path) -> None:
    done = record(tmp_path, "--step", "2", "-o", "t.trace", "--json", "SCRIPT", "9")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{"):])
    assert report["whole_step"] and report["complete"] and report["slow_down"] >= 1
    assert "step 1" in done.stdout and "step 3" not in done.stdout  # it stops after the recorded step
    trace = step_oracle.load(tmp_path / "t.trace")
    assert len(trace.ops) == report["ops"]
    assert {"h.0.qkv.weight", "h.0.qkv.weight.exp_avg"} <= {n.name for n in trace.names}
    assert all(n.tensor.before for n in trace.names if n.tensor)
    assert {op.phase for op in trace.ops} >= {"forward", "backward", "optimizer"}
    assert "h.1.fc" in {op.module for op in trace.ops}
    assert trace.environment.argv[1:] == ["9"]


def test_the_first_step_and_running_on(tmp_path: pathlib.Path) -> None:
    done = record(tmp_path, "--step", "0", "--run-on", "-o", "t.trace", "SCRIPT", "3")
    assert done.returncode == 0, done.stderr
    assert "step 2" in done.stdout
    trace = step_oracle.load(tmp_path / "t.trace")
    assert trace.complete and "aten.normal_" in {op.op for op in trace.ops}  # init is in step 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "t", "none.py"), "no script"),
        (("-o", "t", "--step", "-1", "SCRIPT", "1"), "counted from 0"),
        (("-o", "t", "--step", "5", "SCRIPT", "2"), "made 2 steps"),
        (("-o", "none/t", "--step", "0", "SCRIPT", "2"), "none/t"),
        (("-o", "none/t", "--step", "1", "SCRIPT", "2"), "none/t"),  # before the steps that lead there
        (("-o", "", "SCRIPT", "2"), "is no file"),
        (("-o", ".", "SCRIPT", "2"), "is no file"),
        (("-o", "t", "--step", "5", "SCRIPT", "2", "3"), "left with 3 after 2 steps"),
    ],
)
def test_refusals_are_one_line(tmp_path: pathlib.Path, arguments: tuple[str, ...], words: str) -> None:
    done = record(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_script_that_ends_within_the_step(tmp_path: pathlib.Path) -> None:
    done = record(tmp_path, "--step", "2", "-o", "t.trace", "SCRIPT", "2", "3")
    assert done.returncode == 1  # the script's own failure is not hidden
    assert "ended before" in done.stdout
