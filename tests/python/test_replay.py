"""Recorded, replayed, equal: real small GPT steps on the virtual card."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import step_oracle

CODE = """
import sys, torch, step_oracle
from torch.nn.attention import SDPBackend, sdpa_kernel
sys.path.insert(0, {folder!r})
import gpt
step_oracle.set_card({card!r})
run = gpt.Training({shape!r}, {optimizer!r}, "oracle")
with sdpa_kernel(SDPBackend.MATH):
    for _ in range(2):
        run.step()
    with step_oracle.record({path!r}, keep={keep!r}, model=run.model, optimizer=run.optimizer):
        loss = run.step()
print(float(loss))
"""


def in_fresh_process(code: str, **environment: str) -> str:
    merged = {**os.environ, **environment}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=merged)
    assert out.returncode == 0, out.stderr[-3000:]
    return out.stdout


def recorded(tmp: pathlib.Path, shape: str, optimizer: str, keep: str = "state", **env: str) -> str:
    path = str(tmp / f"{shape}-{optimizer}.trace")
    folder = str(pathlib.Path(__file__).parent)
    code = CODE.format(folder=folder, card="h100-sxm", shape=shape, optimizer=optimizer, path=path, keep=keep)
    in_fresh_process(code, **env)
    return path


@pytest.mark.parametrize("optimizer", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize("shape", ["tied", "ragged", "gqa"])
def test_a_gpt_step_replays_to_the_same_bytes(tmp_path: pathlib.Path, shape: str, optimizer: str) -> None:
    path = recorded(tmp_path, shape, optimizer)
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(path, mode=mode)
        assert report.counts["mismatch"] == 0, str(report.divergence)
        assert report.counts["unmodelled"] == 0, report.unmodelled[:3]
        assert report.ok and report.divergence is None
        assert report.counts["match"] > 100 and report.outputs > 100
        assert report.reads_from_recording == 0
    trace = step_oracle.load(path)
    ends = {n.name: n for n in trace.names_end if n.tensor}
    assert set(report.final) == set(ends)
    roles = {n.role for n in ends.values()}
    assert {"parameter", "optimizer"} <= roles


@pytest.mark.parametrize(("shape", "optimizer"), [("tied", "foreach"), ("ragged", "fused"), ("gqa", "for-loop")])
def test_the_host_decides_nothing(tmp_path: pathlib.Path, shape: str, optimizer: str) -> None:
    path = recorded(tmp_path, shape, optimizer)
    isas = step_oracle.device.extension().isas()
    print("not run, this CPU has none of:", set(isas["compiled"]) - set(isas["usable"]))
    code = f"import step_oracle; r = step_oracle.replay({path!r}, 'end-to-end'); assert r.ok; print(r.outputs)"
    for isa in isas["usable"]:
        for threads in ("1", "2"):
            outputs = in_fresh_process(code, STEP_ORACLE_ISA=isa, STEP_ORACLE_THREADS=threads)
            assert int(outputs) > 100, (isa, threads)


def test_the_final_state_by_name(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "tied", "fused")
    state = torch.ops.oracle.replay(path)
    again = step_oracle.replay(path, "end-to-end").final
    assert state.keys() == again.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor.cpu(), again[name].cpu()), name


def test_another_card_differs_and_the_op_is_named(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "tied", "foreach", keep="all")
    report = step_oracle.replay(path, mode="op-local", card="t4")
    assert report.card == "t4"
    if report.divergence is not None:  # small tensors fit on every card: nothing need differ
        assert report.divergence.op.startswith(("aten.native_dropout", "aten.sum", "aten.linalg_vector_norm"))


def test_a_trace_of_digests_says_what_to_do(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "ragged", "fused", keep="digests")
    with pytest.raises(NotImplementedError, match='keep="state"'):
        report = step_oracle.replay(path)
        assert not report.ok
        raise NotImplementedError(report.unmodelled[0]["reason"])


def test_a_trace_of_the_cpu_is_refused(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "cpu.trace")
    in_fresh_process(f"import torch, step_oracle\nwith step_oracle.record({path!r}, keep='state'): torch.ones(3) * 2")
    with pytest.raises(NotImplementedError, match="host's arithmetic"):
        step_oracle.replay(tmp_path / "cpu.trace")


def test_the_command(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path, "ragged", "fused")

    def command(*words: str) -> tuple[int, str, str]:
        line = [sys.executable, "-m", "step_oracle.cli", "replay", *words]
        out = subprocess.run(line, capture_output=True, text=True)
        return out.returncode, out.stdout, out.stderr

    code, out, _ = command(path, "--mode", "end-to-end", "--json")
    report = json.loads(out)
    assert code == 0 and report["ok"] and report["divergence"] is None
    assert set(report["counts"]) == {"match", "mismatch", "unmodelled", "carried"}
    assert report["reads_from_recording"] == 0
    code, out, err = command(str(tmp_path / "none.trace"))
    assert code == 2 and not out and err.count("\n") == 1 and err.startswith("step-oracle: ")
    code, out, err = command(path, "--card", "h300")
    assert code == 2 and "h100-sxm" in err
