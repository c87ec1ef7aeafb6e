"""Replay against forged traces: none verifies what it should not, none crashes, each refusal is one sentence."""

from __future__ import annotations

import copy
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import forging
import pytest
import torch

import step_oracle

Op = dict[str, Any]
REFUSED = (ValueError, NotImplementedError, step_oracle.StepOracleError)


def small_step(path: str, keep: Any = "all", **options: Any) -> str:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).to("oracle")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(5, 8, device="oracle")
    with step_oracle.record(path, keep=keep, model=model, optimizer=optimizer, **options):
        model(x).pow(2).mean().backward()
        optimizer.step()
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    with step_oracle.card("h100-sxm"):
        return forging.read(small_step(str(tmp_path_factory.mktemp("forge") / "real.trace")))


def ops(r: forging.Records, name: str) -> list[Op]:
    return [o for o in r["ops"] if o["name"] == name]


def tensors(r: forging.Records) -> list[Op]:
    return [t for o in r["ops"] for t in o["tensors"]]


def set_all(**fields: Any) -> Callable[[forging.Records], None]:
    def change(r: forging.Records) -> None:
        for t in tensors(r):
            t.update(fields)

    return change


def result_of_addmm(**fields: Any) -> Callable[[forging.Records], None]:
    return lambda r: ops(r, "aten::addmm")[0]["tensors"][-1].update(fields)


def weight_of_addmm(**fields: Any) -> Callable[[forging.Records], None]:
    return lambda r: ops(r, "aten::addmm")[0]["tensors"][1].update(before_state="Absent", **fields)


def on_device(device: str) -> Callable[[forging.Records], None]:
    def change(r: forging.Records) -> None:
        for t in tensors(r) + r["storages"]:
            t["device"] = device

    return change


def without_op(name: str) -> Callable[[forging.Records], None]:
    return lambda r: r.update(ops=[o for o in r["ops"] if o["name"] != name])


def last_write_raised(r: forging.Records) -> None:
    ops(r, "aten::_foreach_add_")[-1]["error"] = "RuntimeError: no"


def all_raised(r: forging.Records) -> None:
    for o in r["ops"]:
        o["error"] = "RuntimeError: no"


def hidden_write(r: forging.Records) -> None:
    for t in ops(r, "aten::_foreach_add_")[-1]["tensors"]:
        t.update(mutated=False, after={"bytes": [1] * 32})


def other_scalar(r: forging.Records) -> None:
    for o in ops(r, "aten::_foreach_add_"):
        o["args"][-1]["i"] = o["args"][-1].get("i", 0) ^ (1 << 52)


def read_contradicts(r: forging.Records) -> None:
    ops(r, "aten::relu")[0]["tensors"][0]["before"] = {"bytes": [7] * 32}


def card_op_as_host_op(r: forging.Records) -> None:
    for t in ops(r, "aten::addmm")[0]["tensors"]:
        t["device"] = "cpu"


def view_of_another_digest(r: forging.Records) -> None:
    ops(r, "aten::t")[0]["tensors"][-1]["after"] = {"bytes": [9] * 32}
    for o in r["ops"]:
        for t in o["tensors"]:
            t["before_state"] = "Absent"


def generator(before: Callable[[list[int]], list[int]]) -> Callable[[forging.Records], None]:
    def change(r: forging.Records) -> None:
        for o in r["ops"]:
            for g in o.get("generators") or []:
                g["before"] = before(g["before"])

    return change


def one_more(name: str, *args: Op) -> Callable[[forging.Records], None]:
    def change(r: forging.Records) -> None:
        o = copy.deepcopy(ops(r, "aten::relu")[0])
        o.update(name=name, ticket=10**6, args=list(args))
        r["ops"].append(o)

    return change


def other_names(r: forging.Records) -> None:
    for n in r["names"]:
        for e in n["entries"]:
            if n["moment"] == "End" and e.get("tensor"):
                e["tensor"]["after"] = {"bytes": [3] * 32}


def huge_storages(r: forging.Records) -> None:
    for s in r["storages"]:
        s["nbytes"] = 2**50


def other_types(r: forging.Records) -> None:
    for o in r["ops"]:
        for a in o["args"]:
            a.update({"Float": {"kind": "Int"}, "Tensor": {"kind": "List", "list": []}}.get(a["kind"], {}))


FORGERIES: dict[str, Callable[[forging.Records], object]] = {
    "no ops": lambda r: r.update(ops=[]),
    "an op left out": without_op("aten::relu"),
    "a write left out": without_op("aten::_foreach_add_"),
    "no digest at all": set_all(after_state="Absent"),
    "a result that was never written": result_of_addmm(after_state="NeverWritten"),
    "a result that is pending": result_of_addmm(after_state="Pending"),
    "a result without a storage": result_of_addmm(storage=0, after_state="Unreadable"),
    "a write that the trace hides": hidden_write,
    "a write whose op raised": last_write_raised,
    "every op raised": all_raised,
    "another scalar": other_scalar,
    "a read that contradicts the write": read_contradicts,
    "other final digests": other_names,
    "another digest of a view": view_of_another_digest,
    "an op of the card as one of the host": card_op_as_host_op,
    "all on the host": on_device("cpu"),
    "recorded on the host": lambda r: r["environment"][0].update(device="cpu"),
    "no card": lambda r: r["environment"][0].update(cards=[]),
    "another card's SMs": lambda r: r["environment"][0]["cards"][0].update(sms=7),
    "a card that is not listed": on_device("oracle:1"),
    "card 99": on_device("oracle:99"),
    "a card without a number": on_device("oracle:x"),
    "a number that is none": on_device("cuda:99999999999"),
    "an unknown device": on_device("foo"),
    "a short generator state": generator(lambda b: b[:5]),
    "an odd generator state": generator(lambda b: [255] * 16),
    "strides outside the storage": weight_of_addmm(strides=[10**12, 10**9]),
    "strides that overflow": weight_of_addmm(strides=[2**62, 2**62]),
    "negative strides": weight_of_addmm(strides=[-1, -1]),
    "an offset outside the storage": weight_of_addmm(offset=10**10),
    "sizes outside the storage": weight_of_addmm(sizes=[2**31, 2**30]),
    "another dtype": weight_of_addmm(dtype="Complex64"),
    "more strides than sizes": weight_of_addmm(layout="Sparse", strides=[1]),
    "huge storages": huge_storages,
    "too few arguments": lambda r: r["ops"][0].update(args=[]),
    "too few results": lambda r: r["ops"][0].update(returns=[]),
    "arguments of other types": other_types,
    "an operator that torch has not": lambda r: ops(r, "aten::addmm")[0].update(name="aten::nosuch"),
    "a replay in a replay": one_more("oracle::replay", {"kind": "String", "text": "x.trace"}),
}


def test_the_forger_alone_changes_nothing(source: tuple[Any, ...], tmp_path: pathlib.Path) -> None:
    path = forging.write(str(tmp_path / "same.trace"), *source)
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(path, mode)
        assert report.ok and report.counts["match"] > 20, report


@pytest.mark.parametrize("mode", ["op-local", "end-to-end"])
@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_forged_trace_is_not_verified(
    source: tuple[Any, ...], tmp_path: pathlib.Path, forgery: str, mode: str
) -> None:
    header, records, blobs = copy.deepcopy(source)
    FORGERIES[forgery](records)
    path = forging.write(str(tmp_path / "forged.trace"), header, records, blobs)
    try:
        report = step_oracle.replay(path, mode)
    except REFUSED as error:
        assert "\n" not in str(error).strip()
    else:
        assert not report.ok
        assert report.divergence is not None or report.unmodelled


def test_a_trace_makes_no_file(source: tuple[Any, ...], tmp_path: pathlib.Path) -> None:
    header, records, blobs = copy.deepcopy(source)
    none, target = {"kind": "None"}, tmp_path / "made"
    args = [{"kind": "String", "text": str(target)}, {"kind": "Bool", "i": 1}, {"kind": "Int", "i": 64}, *[none] * 4]
    one_more("aten::from_file", *args)(records)
    report = step_oracle.replay(forging.write(str(tmp_path / "forged.trace"), header, records, blobs))
    assert not report.ok and not target.exists()


def test_a_recording_without_digests_is_refused(tmp_path: pathlib.Path) -> None:
    path = small_step(str(tmp_path / "none.trace"), digests=False)
    with pytest.raises(NotImplementedError, match="no digest of a result"):
        step_oracle.replay(path)


def test_a_recording_that_keeps_digests_only_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    path = small_step(str(tmp_path / "digests.trace"), keep="digests")
    out = subprocess.run([sys.executable, "-m", "step_oracle.cli", "replay", path], capture_output=True, text=True)
    assert out.returncode == 2 and not out.stdout and 'keep="state"' in out.stderr and out.stderr.count("\n") == 1


def test_a_trace_of_the_cpu_is_not_verified_by_naming_a_card(tmp_path: pathlib.Path) -> None:
    with step_oracle.record(tmp_path / "cpu.trace", keep="all", model=(model := torch.nn.Linear(8, 4))):
        model(torch.ones(2, 8)).sum().backward()
    with pytest.raises(NotImplementedError, match="host's arithmetic"):
        step_oracle.replay(tmp_path / "cpu.trace", card="h100-sxm")


def test_storages_that_change_their_size(tmp_path: pathlib.Path) -> None:
    x = torch.randn(5, 8, device="oracle")
    with step_oracle.record(tmp_path / "resize.trace", keep="state"):
        a = torch.empty(0, device="oracle")
        torch.add(x, 1, out=a)  # grows its output
        a.resize_(3, 3).mul_(2)
        b = torch.ones(4, device="oracle")
        b.resize_(2, 1)
        b.mul_(2)
        b.resize_(8)
        b.fill_(1)
        b * 2
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(tmp_path / "resize.trace", mode)
        assert report.ok, (report.divergence, report.unmodelled)


def test_parts_of_a_large_storage(tmp_path: pathlib.Path) -> None:
    """Of a storage over 64 MiB that is read in small parts the recorder keeps the parts."""
    data = torch.zeros(17 << 20, device="oracle")
    data[:8] = torch.arange(8.0)
    with step_oracle.record(tmp_path / "parts.trace", keep="state"):
        (data[:4] * 2 + data[4:8]).sum()
    assert (tmp_path / "parts.trace").stat().st_size < 1 << 20
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(tmp_path / "parts.trace", mode)
        assert report.ok and report.declared_inputs == 2, (report.divergence, report.unmodelled)


def test_a_batch_drawn_on_the_host(tmp_path: pathlib.Path) -> None:
    """keep="state" keeps what the host computes and the card's program starts from."""
    model = torch.nn.Linear(8, 4).to("oracle")
    with step_oracle.record(tmp_path / "host.trace", keep="state", model=model):
        batch, target = torch.rand(5, 8), torch.randint(0, 4, (5,))
        torch.nn.functional.cross_entropy(model(batch.to("oracle")), target.to("oracle")).backward()
    for mode in ("op-local", "end-to-end"):
        report = step_oracle.replay(tmp_path / "host.trace", mode)
        assert report.ok and report.counts["carried"] == report.reads_from_recording == 2, report


def test_the_default_dtype_is_the_recorded_one(tmp_path: pathlib.Path) -> None:
    with step_oracle.record(tmp_path / "dtype.trace", keep="state"):
        torch.arange(0.0, 5.0, device="oracle") / 2
    torch.set_default_dtype(torch.float64)
    try:
        assert step_oracle.replay(tmp_path / "dtype.trace").ok
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_two_cards_in_one_trace(tmp_path: pathlib.Path) -> None:
    """Each index is replayed as the card that it was; in a fresh process, for a card that was added stays."""
    code = f"""
import torch, step_oracle
step_oracle.set_card("h100-sxm")
step_oracle.set_card("l4", index=1)
with step_oracle.record({str(tmp_path / "two.trace")!r}, keep="state"):
    torch.randn(400000, device="oracle:0").to("oracle:1") + torch.randn(400000, device="oracle:1")
step_oracle.set_card("t4", index=1)
for mode in ("op-local", "end-to-end"):
    report = step_oracle.replay({str(tmp_path / "two.trace")!r}, mode)
    assert report.ok, report.divergence
assert step_oracle.get_card(1).name == "t4"
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr


def test_a_replay_leaves_cards_and_generators_as_they_were(tmp_path: pathlib.Path) -> None:
    path = small_step(str(tmp_path / "step.trace"), keep="state")
    with step_oracle.card("l4"):
        torch.manual_seed(5)
        state = torch.oracle.get_rng_state()  # type: ignore[attr-defined]
        assert step_oracle.replay(path, "end-to-end").ok
        assert step_oracle.get_card().name == "l4"
        assert torch.equal(state, torch.oracle.get_rng_state())  # type: ignore[attr-defined]


def test_replays_in_threads_and_in_a_recording(tmp_path: pathlib.Path) -> None:
    path = small_step(str(tmp_path / "step.trace"), keep="state")
    verdicts: list[bool] = []
    threads = [threading.Thread(target=lambda: verdicts.append(step_oracle.replay(path).ok)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert verdicts == [True] * 3
    with step_oracle.record(None), pytest.raises(ValueError, match="recording is running"):
        step_oracle.replay(path)
    with pytest.raises(ValueError, match="replay is running"):
        step_oracle.replay(path, progress=lambda done, total: step_oracle.replay(path))


def test_progress_that_raises_ends_the_replay(tmp_path: pathlib.Path) -> None:
    path = small_step(str(tmp_path / "step.trace"), keep="state")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step_oracle.replay(path, progress=interrupted)
    assert step_oracle.replay(path).ok


def test_the_record_command_refuses_in_a_sentence(tmp_path: pathlib.Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import torch\ntorch.ones(3) * 2\n")
    bad.write_text("1 / 0\n")
    for output, script, what in (("/nonexistent/x.trace", good, "there is no folder"), ("/dev/full", good, "/dev/full"),
                                 (good, good, "good.py"), (tmp_path / "x.trace", bad, "raised ZeroDivisionError")):
        command = [sys.executable, "-m", "step_oracle.cli", "record", "--step", "0", "-o", str(output), str(script)]
        out = subprocess.run(command, capture_output=True, text=True)
        assert out.returncode == 2 and out.stderr.count("\n") == 1, out.stderr
        assert what in out.stderr and "internal error" not in out.stderr
    assert good.read_text().startswith("import torch")
