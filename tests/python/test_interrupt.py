"""Ctrl-C while the command loads: torch is one here that is interrupted in the middle of its own loading."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = "import signal\nsignal.raise_signal(signal.SIGINT)\nraise SystemExit('loaded')\n"
SCRIPT = "import sys\nfrom {} import {}\nsys.exit({}())\n"  # as an installer writes it


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "torch.py").write_text(TORCH)
    entry = re.search(r'^step-oracle = "(.+):(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert entry
    (tmp_path / "step-oracle").write_text(SCRIPT.format(entry[1], entry[2], entry[2]))
    return tmp_path


def run(folder: pathlib.Path, *words: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Ctrl-C as the caller leaves it: these tests may themselves run where a shell's background jobs ignore it."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    line = [sys.executable, *words]
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    return subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, handler))  # fmt: skip


@pytest.mark.parametrize("words", [("step-oracle", "cards"), ("-m", "step_oracle.cli", "cards")])
def test_the_command_ends_without_a_traceback(folder: pathlib.Path, words: tuple[str, ...]) -> None:
    done = run(folder, *words)
    assert (done.returncode, done.stderr) == (130, "step-oracle: interrupted.\n")


def test_a_program_that_imports_it_is_interrupted_as_by_python(folder: pathlib.Path) -> None:
    done = run(folder, "-c", "import step_oracle")
    assert done.returncode == -signal.SIGINT and done.stderr.endswith("KeyboardInterrupt\n")


def test_a_command_whose_caller_ignores_it_goes_on(folder: pathlib.Path) -> None:
    done = run(folder, "step-oracle", "cards", ignored=True)
    assert (done.returncode, done.stderr) == (1, "loaded\n")


def test_a_command_that_runs_is_interrupted_by_its_own_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from step_oracle import _interrupt, cards
    from step_oracle.cli import main

    handlers = []

    def interrupted() -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise KeyboardInterrupt

    monkeypatch.setattr(cards, "cards", interrupted)
    before = signal.signal(signal.SIGINT, _interrupt._end)
    try:
        assert main(["cards"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler] and capsys.readouterr().err == "step-oracle: interrupted.\n"
