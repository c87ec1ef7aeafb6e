"""step-oracle identify, cards --evidence."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch

import step_oracle
from step_oracle.cli import main

PROGRAM = """
import torch
torch.cuda.manual_seed(7)
x = torch.randn(400_000, device="cuda")
print(x[-3:].cpu(), x[:2].cuda().sum().item())
"""


def printed_by(card: str) -> str:
    with step_oracle.card(card):
        torch.manual_seed(7)
        x = torch.randn(400_000, device="oracle")
        return f"{x[-3:].cpu()} {x[:2].sum().item()}"


@pytest.fixture
def program(tmp_path: pathlib.Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def identify(program: str, text: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    values = pathlib.Path(program).with_suffix(".txt")
    values.write_text(text)
    code = main(["identify", program, str(values), *more])
    return code, *capsys.readouterr()


def test_the_card_is_named(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    for card, other in (("h100-pcie", "t4"), ("t4", "h100-pcie")):
        code, out, _ = identify(program, printed_by(card), capsys, "--json", "--card", "t4", "--card", "h100-pcie")
        matches = json.loads(out)["matches"]
        assert code == 0 and card in matches and other not in matches


def test_what_a_program_sets_stays_with_its_card(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nprint(torch.randn(3, device='cuda'))\ntorch.set_printoptions(precision=6)\n"
                       "raise SystemExit(0)\n")
    with step_oracle.card("t4"):
        torch.manual_seed(67280421310721)
        text = str(torch.randn(3, device="oracle"))
    code, out, _ = identify(str(program), text, capsys, "--json", "--card", "t4", "--card", "l4")
    assert code == 0 and json.loads(out)["matches"] == ["t4", "l4"]


def test_a_reader_that_goes_hides_no_failure(program: str) -> None:
    values = pathlib.Path(program).with_suffix(".txt")
    values.write_text("0.1 0.2 0.3 0.4")
    command = f"{sys.executable} -m step_oracle.cli identify {program} {values} --card t4; echo $? >&2"
    done = subprocess.run(["sh", "-c", f"({command}) | true"], capture_output=True, text=True, check=False)
    assert done.stderr.split()[-1] in ("1", "141"), done.stderr


def test_no_card(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = identify(program, "0.1 0.2 0.3 0.4", capsys, "--card", "t4")
    assert code == 1 and "no virtual card prints these numbers" in out and "number 0" in out


def test_refusals_are_one_sentence(program: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text("x = (")
    (tmp_path / "fails.py").write_text("raise KeyError('here')")
    for arguments, text, says in (
        ((program,), "no numbers", "no numbers in"),
        ((program, "--card", "t4"), "1.0", "prints 4 numbers"),
        ((program, "--card", "t5"), "1.0", "no card is called 't5'"),
        ((str(tmp_path / "wrong.py"),), "1.0", "line 1"),
        ((str(tmp_path / "fails.py"), "--card", "t4"), "1.0", "KeyError"),
        ((str(tmp_path / "none.py"),), "1.0", "none.py"),
    ):
        code, _, err = identify(arguments[0], text, capsys, *arguments[1:])
        assert code == 2 and says in err and err.count("\n") == 1, err


def test_evidence_has_a_grade_for_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cards", "--evidence", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["evidence"]
    assert main(["cards", "--evidence"]) == 0
    out = capsys.readouterr().out
    assert len(rows) > 20 and all(row["grade"] in out and row["what"] in out for row in rows)
