"""The heuristic's query: refused without a card; with a library of our own, what it asks and makes of answers."""

import ctypes
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


HEADER = json.loads((pathlib.Path(__file__).parents[1] / "data" / "cublaslt.json").read_text())


def used_constants() -> dict[str, int]:
    """The numbers in plan_query.py, by the header's names."""
    q, lt = plan_query, "CUBLASLT_"
    types = {"CUDA_R_32F": "float32", "CUDA_R_16F": "float16", "CUDA_R_16BF": "bfloat16"}
    config = {"ID": "number", "TILE_ID": "tile", "SPLITK_NUM": "splits", "REDUCTION_SCHEME": "reduction",
              "CUSTOM_OPTION": "option", "STAGES_ID": "stages"}  # fmt: skip
    named = {name: q._TYPES[ours] for name, ours in types.items()}
    named |= {f"{lt}ALGO_CONFIG_{name}": q._CONFIG[ours] for name, ours in config.items()}
    named |= {f"{lt}REDUCTION_SCHEME_{name}": number for number, name in q._REDUCTIONS.items()}
    assert q._NOT_REDUCED == named[f"{lt}REDUCTION_SCHEME_COMPUTE_TYPE"]
    return named | {
        "CUBLAS_COMPUTE_32F": q._COMPUTE_32F, "CUBLAS_OP_T": q._OP_T, f"{lt}MATMUL_DESC_TRANSA": q._DESC_TRANSA,
        f"{lt}MATMUL_DESC_TRANSB": q._DESC_TRANSB, f"{lt}MATMUL_DESC_EPILOGUE": q._DESC_EPILOGUE,
        f"{lt}EPILOGUE_BIAS": q._EPILOGUE_BIAS, f"{lt}MATMUL_PREF_MAX_WORKSPACE_BYTES": q._PREF_WORKSPACE,
        f"{lt}MATMUL_PREF_REDUCTION_SCHEME_MASK": q._PREF_REDUCTION_MASK}  # fmt: skip


def test_every_number_is_the_headers():
    assert used_constants() == HEADER["constants"]
    assert {name: number for number in range(1, 39) if "x" in (name := plan_query.stages_name(number))} == (
        HEADER["stages"])  # fmt: skip
    assert {plan_query.tile_name(number): number for number in range(1, 36)} == HEADER["tiles"]
    assert [plan_query.tile_name(0), plan_query.stages_name(0)] == ["", ""]
    assert [plan_query.tile_name(36), plan_query.stages_name(29)] == ["tile 36", "stages 29"], "never another's name"


def test_the_result_is_laid_out_as_the_header_has_it():
    result = plan_query._Result
    assert ctypes.sizeof(result) == HEADER["sizes"]["cublasLtMatmulHeuristicResult_t"]
    assert result.algo.size == HEADER["sizes"]["cublasLtMatmulAlgo_t"]
    ours = {"workspaceSize": "workspace", "wavesCount": "waves"}
    for name, offset in HEADER["offsets"].items():
        assert getattr(result, ours.get(name, name)).offset == offset, name


def test_the_header_of_this_machine_agrees(tmp_path):
    """Where cublasLt.h is (CUDA's toolkit, or a folder in CPATH): every number of the table by the compiler."""
    asserted = [f"{name} == {number}" for name, number in HEADER["constants"].items()]
    for kind in ("stages", "tiles"):
        prefix = f"CUBLASLT_MATMUL_{kind.removesuffix('s') if kind == 'tiles' else kind}".upper()
        asserted += [f"{prefix}_{name} == {number}" for name, number in HEADER[kind].items()]
    asserted += [f"sizeof({name}) == {size}" for name, size in HEADER["sizes"].items()]
    asserted += [f"offsetof(cublasLtMatmulHeuristicResult_t, {n}) == {o}" for n, o in HEADER["offsets"].items()]
    lines = ["#include <stddef.h>", "#include <cublasLt.h>", *(f'_Static_assert({a}, "{a}");' for a in asserted)]
    source = tmp_path / "header.c"
    source.write_text("\n".join(lines) + "\n")
    folders = [f"-I{f}" for f in sorted(pathlib.Path("/usr/local").glob("cuda*/include"))]
    compile_ = ["cc", "-fsyntax-only", *folders]
    probe = subprocess.run([*compile_, "-xc", "-"], input="#include <cublasLt.h>\n", capture_output=True, text=True)
    if probe.returncode:
        pytest.skip("cublasLt.h is not on this machine; the committed table stands for it")
    done = subprocess.run([*compile_, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
