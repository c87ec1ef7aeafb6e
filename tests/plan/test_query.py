"""The heuristic's query: refused without a card; with a library of our own, what it asks and makes of answers."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from step_oracle import cli, plan_query

COMMAND = ["plan", "query", "--card", "h100-sxm", "--m", "2048", "--n", "768", "--k", "3072"]


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a card")
def test_without_a_card_it_says_so_in_one_sentence(capsys):
    assert cli.main(COMMAND) == 2
    err = capsys.readouterr().err
    assert "no NVIDIA card is present" in err and err.count("\n") == 1


def test_stages_have_the_headers_names():
    names = {1: "16x1", 6: "16x6", 7: "32x1", 13: "64x1", 18: "64x6", 20: "128x2", 24: "128x6", 25: "32x10",
             35: "64xAUTO", 36: "128xAUTO", 0: ""}  # fmt: skip
    assert {number: plan_query.stages_name(number) for number in names} == names


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> pathlib.Path:
    compiler = shutil.which("cc")
    assert compiler, "the build needs a C compiler too"
    folder = tmp_path_factory.mktemp("lt")
    source = pathlib.Path(__file__).with_name("fake_cublaslt.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return folder


def ask(library: pathlib.Path, tmp_path: pathlib.Path, config: str, *words: str, cards: str = "1"):
    asked = tmp_path / "asked"
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "STEP_ORACLE_CUBLASLT": str(library / "libcuda.so.1"),
           "FAKE_ASKED": str(asked), "FAKE_CARDS": cards}  # fmt: skip
    if config:
        env["FAKE_CONFIG"] = config
    command = [sys.executable, "-m", "step_oracle.cli", *COMMAND, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return done, asked.read_text().splitlines() if asked.exists() else []


def test_the_product_is_asked_for_as_torch_asks(library, tmp_path):
    # algorithm 66, tile 64x64, 3 parts, COMPUTE_TYPE, no option, stages 64xAUTO
    words = ["--layout", "nt", "--bias", "--no-reduced-precision", "--json"]
    done, asked = ask(library, tmp_path, "66,15,3,2,0,0,35", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["library"] == "13.1.1" and report["plans"] == [{"splits": 3, "width": 1024}]
    assert report["algorithm"] == {"number": 66, "tile": "64x64", "stages": "64xAUTO", "splits": 3,
                                   "reduction": "COMPUTE_TYPE", "option": 0}  # fmt: skip
    assert asked == [
        "desc 68 0 0",
        "desc attribute 3 1 4",  # transa: torch's second factor, transposed
        "desc attribute 7 4 4",  # EPILOGUE_BIAS
        "layout 14 3072 768", "layout 14 3072 2048", "layout 14 768 2048", "layout 14 768 2048",
        f"preference 1 {32 << 20} 8",
        "preference 3 2 4",  # COMPUTE_TYPE reductions only
        "destroy 0 0 0",
    ]  # fmt: skip


def test_an_algorithm_that_is_not_known_and_no_answer(library, tmp_path):
    done, _ = ask(library, tmp_path, "41,15,1,0,0,0,35")
    assert done.returncode == 1 and "algorithm 41 of compute capability 9.0 for bfloat16 is not known" in done.stdout
    done, _ = ask(library, tmp_path, "")
    assert done.returncode == 2 and "cuBLASLt has no algorithm for bfloat16 nn m 2048 n 768 k 3072" in done.stderr
    done, _ = ask(library, tmp_path, "66,15,1,0,0,0,35", cards="0")
    assert done.returncode == 2 and "no NVIDIA card is present" in done.stderr
