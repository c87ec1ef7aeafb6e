"""What goes wrong while a trace is being written: kill -9, a full disk, an unwritable path, a file in the way."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

import step_oracle

ROOT = pathlib.Path(__file__).resolve().parents[2]


def python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], cwd=ROOT, capture_output=True,
                          text=True, timeout=300)


def test_killed_recording_reads(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "killed.trace"
    done = python("""
        import os, signal, sys, time, torch, step_oracle
        with step_oracle.record(sys.argv[1]):
            x = torch.ones(8, 8)
            for _ in range(100):
                x = x @ x.t() * 0.01
            time.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)
        """, path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    trace = step_oracle.load(path)
    assert not trace.complete and "did not come to its end" in trace.reason
    assert len(trace.ops) >= 250


def test_full_disk_is_one_sentence(tmp_path: pathlib.Path) -> None:
    done = python("""
        import resource, sys, torch, step_oracle
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            with step_oracle.record(sys.argv[1], keep="all"):
                x = torch.randn(64, 64)
                for _ in range(50):
                    x = torch.randn(64, 64) @ x
            print("no error")
        except RuntimeError as error:  # StepOracleError is one
            print(error)
        """, tmp_path / "full.trace")
    assert "File too large" in done.stdout and "full.trace" in done.stdout and done.stdout.count("\n") == 1, done
    assert not step_oracle.load(tmp_path / "full.trace").complete


def test_unwritable_path_and_files_in_the_way(tmp_path: pathlib.Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose me")
    with pytest.raises(ValueError, match="is not a step-oracle trace, so it is not"), step_oracle.record(notes):
        pass
    assert notes.read_text() == "do not lose me"
    with pytest.raises(step_oracle.StepOracleError, match="No such file or directory"), \
            step_oracle.record(tmp_path / "no" / "such" / "folder.trace"):
        pass
    path = tmp_path / "step.trace"
    for n in (1, 2):  # a trace is replaced
        with step_oracle.record(path):
            for _ in range(n):
                torch.ones(3).exp()
        assert sum(op.op == "aten.exp" for op in step_oracle.load(path).ops) == n
