"""Recording on a card, as far as it goes without one: the fake card's memory is the host's, its stream runs late."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests/fake_card/fake_card.so"


def run(tmp_path: pathlib.Path, what: str, without: tuple[str, ...] = (), **variables: str) -> Any:
    if not FAKE.exists():
        pytest.fail("tests/fake_card/fake_card.so is not built. Run: scripts/build --tests")
    for name in {"libcuda.so.1", "libtorch_cuda.so", "libcublasLt.so.13", "libnvidia-ml.so.1"} - set(without):
        (tmp_path / name).symlink_to(FAKE)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path, **variables}
    done = subprocess.run([sys.executable, ROOT / "tests/python/card_steps.py", tmp_path, what], capture_output=True,
                          text=True, env=settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def sequence(records: dict[str, Any]) -> list[Any]:
    return [(op["name"], [(t["before"], t["after"], t["before_state"], t["after_state"]) for t in op["tensors"]])
            for op in records["ops"]]


def texts(records: dict[str, Any]) -> str:
    return "\n".join(e["text"] for e in records["events"])


def test_digests_of_the_card_are_the_hosts(tmp_path: pathlib.Path) -> None:
    found = run(tmp_path, "digests")
    card, host, cpu = found["card"], found["host"], found["cpu"]
    assert card["error"] == host["error"] == cpu["error"] == ""
    assert sequence(card) == sequence(host), "in stream order, before each op overwrites them"
    known = [t for op in card["ops"] for t in op["tensors"] if t["after_state"] == "known"]
    assert len(known) > 30
    finals = [[t["after"] for moment, name, t in r["names"] if moment == 1 and t] for r in (card, cpu)]
    assert finals[0] == finals[1] and len(finals[0]) >= 8, "the host's kernels compute both"
    assert card["summary"]["card_launches"] == found["launched"] > 20
    assert host["summary"]["card_launches"] == 0
    assert "on the host" not in texts(card)


def test_cublaslt_lines_stand_beside_their_op(tmp_path: pathlib.Path) -> None:
    card = run(tmp_path, "one")["card"]
    products = [op["ticket"] for op in card["ops"] if op["name"] == "aten.addmm"]
    assert [p["op"] for p in card["plans"]] == products and len(products) == 2
    assert {p["library"] for p in card["plans"]} == {"cublaslt"}
    assert all(p["line"].startswith("[cublasLt][Trace][cublasLtMatmul] m=2") for p in card["plans"])


def test_generator_of_the_card(tmp_path: pathlib.Path) -> None:
    card = run(tmp_path, "uniform")["card"]
    draws = [op["generators"][0] for op in card["ops"] if op["name"] == "aten.uniform_"]
    assert len(draws) == 2 and {g["device"] for g in draws} == {"cuda:0"}
    assert draws[0]["after"] == draws[1]["before"] != draws[0]["before"]


def test_facts_of_the_card(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, "facts") == {"ecc": 1, "mig": 1, "driver_cuda": 13000}


def test_facts_without_nvml(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, "facts", without=("libnvidia-ml.so.1",)) == {"ecc": 1, "mig": -1, "driver_cuda": 13000}


def test_a_captured_graph_is_refused(tmp_path: pathlib.Path) -> None:
    for what in ("one", "uniform"):
        (tmp_path / what).mkdir()
        card = run(tmp_path / what, what, FAKE_CARD_CAPTURING="1")["card"]
        assert card["error"].startswith("NotImplementedError: step-oracle: aten::")
        assert "record the step without CUDA graphs" in card["error"]
        assert not card["summary"]["complete"] and "graph was captured" in card["summary"]["reason"]


@pytest.mark.parametrize("fault", ["cuInit", "cuModuleLoadData", "cuDevicePrimaryCtxRetain"])
def test_a_card_that_cannot_digest_is_told_and_the_host_does_it(tmp_path: pathlib.Path, fault: str) -> None:
    card = run(tmp_path, "one", FAKE_CARD_FAULT=fault)["card"]
    assert card["error"] == "" and card["summary"]["card_launches"] == 0
    assert texts(card).count("Digests were taken on the host") == 1
    (tmp_path / "good").mkdir()
    assert sequence(card) == sequence(run(tmp_path / "good", "one")["card"])


def test_a_machine_without_the_driver(tmp_path: pathlib.Path) -> None:
    card = run(tmp_path, "one", without=("libcuda.so.1",))["card"]
    assert card["error"] == "" and "libcuda.so.1) is not installed" in texts(card)


@pytest.mark.parametrize("fault", ["cuLaunchKernel", "cuEventSynchronize", "cuMemHostAlloc", "cuMemAllocAsync"])
def test_a_fault_of_the_card_ends_the_recording_and_not_the_program(tmp_path: pathlib.Path, fault: str) -> None:
    card = run(tmp_path, "one", FAKE_CARD_FAULT=fault)["card"]
    assert card["summary"]["ops"] == 49, "the program ran to its end"
    assert card["error"].startswith(f"StepOracleError: The card's digest failed: {fault} gives 719 (")


def test_a_file_keeps_the_lines(tmp_path: pathlib.Path) -> None:
    found = run(tmp_path, "file")
    assert found["ops"] == 51 and len(found["plans"]) == 2
    assert found["card"] == {"index": 0, "name": "Fake H100", "sms": 114, "threads_per_sm": 2048, "memory": 80 << 30,
                             "compute_capability": "9.0", "ecc": 1, "mig": 1}


def test_replayed_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import step_oracle

    class Graph:
        def replay(self) -> str:
            return "ran"

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with pytest.raises(step_oracle.StepOracleError, match="CUDA graph was replayed"):
        with step_oracle.record(None):
            Graph().replay()
    with step_oracle.record(None, allow_incomplete=True) as rec:
        assert Graph().replay() == "ran"
    assert not rec.summary()["complete"]
    assert Graph().replay() == "ran"
