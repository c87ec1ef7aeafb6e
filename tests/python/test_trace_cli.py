"""step-oracle trace: what it prints, its JSON, its exit codes, and one sentence for each thing that is wrong."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest

import step_oracle
from step_oracle.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests/data/traces/sample.v1.trace"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in argv])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_info_has_the_keys_of_the_contract(cli: Any) -> None:
    code, out, _ = cli("trace", "info", FIXTURE, "--json")
    info = json.loads(out)
    assert code == 0
    assert (info["version"], info["complete"], info["ops"], info["tensors"]) == (1, True, 12, 21)
    assert info["bytes"] == FIXTURE.stat().st_size
    assert info["card"] == {"name": "h100-pcie", "sms": 114, "threads_per_sm": 2048, "compute_capability": "9.0"}


def test_the_fixture_of_version_1_reads_as_ever(cli: Any) -> None:
    trace = step_oracle.load(FIXTURE)
    assert trace.complete and trace.check() == 3
    drop = trace.ops[1]
    assert drop.op == "aten.bernoulli_.float" and str(drop.args[1]) == "-0.0"
    assert drop.tensors[0].before == "50c26c59d5290fb415a6489fe90598786b711253fa94e0ac94e5eabfa6ff0db2"
    assert trace.ops[-1].collective.bucket_sizes == [128]
    assert [c.launch for c in trace.completions] == [3, 7, 11]
    assert len(trace.blob(trace.storages[0].initial)) == 4 * 8 * 4


def test_text_of_every_part(cli: Any) -> None:
    assert "114 multiprocessors" in cli("trace", "info", FIXTURE)[1]
    code, out, _ = cli("trace", "ops", FIXTURE, "--op", "aten.mm", "--phase", "forward")
    assert code == 0 and out.count("aten.mm") == 3 and "bernoulli" not in out
    code, out, _ = cli("trace", "show", FIXTURE, "1")
    assert code == 0 and "mutated" in out and "generator cpu" in out
    code, out, _ = cli("trace", "show", FIXTURE, "-1", "--json")
    assert code == 0 and json.loads(out)["index"] == 11
    code, out, _ = cli("trace", "check", FIXTURE)
    assert code == 0 and "complete" in out
    assert json.loads(cli("trace", "ops", FIXTURE, "--json")[1])["ops"][0]["tensors"][0] == "float32[4,8]"


@pytest.mark.parametrize("command", ["trace", "trace info", "trace ops", "trace show", "trace check", "diff"])
def test_help_has_an_example(cli: Any, command: str) -> None:
    code, out, _ = cli(*command.split(), "--help")
    assert code == 0 and "example:\n  step-oracle " in out


def refused(result: tuple[int, str, str], *parts: str) -> None:
    code, out, err = result
    assert code == 2 and out == "" and err.startswith("step-oracle: ") and err.count("\n") == 1, result
    assert len(err) < 500 and "Traceback" not in err
    for part in parts:
        assert part in err, err


def test_bad_input_is_one_line(cli: Any, tmp_path: pathlib.Path) -> None:
    text, empty, later = tmp_path / "text", tmp_path / "empty", tmp_path / "later"
    text.write_text("hello, I am no trace at all\n")
    empty.touch()
    whole = FIXTURE.read_bytes()
    later.write_bytes(whole[:8] + b"\x02" + whole[9:])
    refused(cli("trace", "info", text), "is not a step-oracle trace")
    refused(cli("trace", "info", empty), "is not a step-oracle trace")
    refused(cli("trace", "info", later), "version 2", "version 1")
    refused(cli("trace", "info", tmp_path), "not a file")
    refused(cli("trace", "info", tmp_path / "nobody"), "No such file")
    refused(cli("trace", "show", FIXTURE, "12"), "has 12 ops")
    refused(cli("trace", "show", FIXTURE), "--help")
    refused(cli("nonsense"), "--help")
    refused(cli("diff", FIXTURE, text), "is not a step-oracle trace")


def test_cut_trace_is_not_complete(cli: Any, tmp_path: pathlib.Path) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(FIXTURE.read_bytes()[:-100])
    code, out, err = cli("trace", "check", cut, "--json")
    report = json.loads(out)
    assert code == 1 and not report["complete"] and "is cut" in report["reason"] and err == ""
    assert cli("trace", "info", cut)[0] == 0
    code, out, _ = cli("diff", FIXTURE, cut, "--json")
    assert code == 1 and not json.loads(out)["equal"], "a trace that is not complete is never called equal"


def test_damaged_files_through_the_command(cli: Any, tmp_path: pathlib.Path) -> None:
    whole = FIXTURE.read_bytes()
    rng = random.Random(3)
    damaged = tmp_path / "damaged.trace"
    codes = {1: 0, 2: 0}
    for _ in range(150):
        data = bytearray(whole)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)):]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(data)
        result = cli("trace", "check", damaged)
        codes[result[0]] += 1  # KeyError: a damaged file was called good
        if result[0] == 2:
            refused(result)
    assert min(codes.values()) > 10, codes


def test_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "step_oracle.cli", "trace", "check", "LICENSE"], cwd=ROOT,
                          capture_output=True, text=True, timeout=120)
    refused((done.returncode, done.stdout, done.stderr), "LICENSE")
