"""Every script of tests/reports, recorded: what its EXPECT says of recording and of the diff."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import digest

import step_oracle

FOLDER = pathlib.Path(__file__).parents[1] / "reports"
SCRIPTS = {int(p.name[:2]): p.stem for p in sorted(FOLDER.glob("[0-9]*.py"))}


def script(number: int) -> Any:
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(SCRIPTS[number])


def record(module: Any, path: pathlib.Path, run: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """The trace of ``run()``, and its result."""
    module.REC = lambda: step_oracle.record(path, keep="all", **options)
    try:
        result = run()
    finally:
        module.REC = contextlib.nullcontext
    return step_oracle.load(path), result


class Pair:
    """run_a and run_b of a script, recorded, and their diff."""

    def __init__(self, number: int, tmp: pathlib.Path, b: str = "run_b", **arguments: Any) -> None:
        self.module = script(number)
        self.a, self.result_a = record(self.module, tmp / "a", self.module.run_a)
        self.b, self.result_b = record(self.module, tmp / "b", functools.partial(getattr(self.module, b), **arguments))
        self.diff = step_oracle.diff(self.a, self.b)

    def check_first(self) -> None:
        """FIRST_OP and CAUSE of the script."""
        first = self.diff.first
        assert first is not None and first.op.startswith(self.module.FIRST_OP), first
        assert first.cause.startswith(self.module.CAUSE), first.cause


def ops(trace: Any, name: str) -> list[Any]:
    return [op for op in trace.ops if op.op == name or op.op.startswith(name + ".")]


def test_all_scripts_are_here() -> None:
    assert sorted(SCRIPTS) == list(range(1, 18))


@pytest.mark.parametrize("number", [n for n in range(1, 18) if n not in (2, 10, 11)])
def test_recording_changes_no_result(number: int, tmp_path: pathlib.Path) -> None:
    module = script(number)
    run = module.run if module.KIND == "record" else module.run_a
    bare = run()
    _, seen = record(module, tmp_path / "t", run)
    for name in bare:
        assert bare[name].detach().numpy().tobytes() == seen[name].detach().numpy().tobytes(), name


def test_01_inplace_input(tmp_path: pathlib.Path) -> None:
    module = script(1)
    trace, _ = record(module, tmp_path / "t", module.run)
    (mul,), (relu,), (add,) = ops(trace, "aten.mul_"), ops(trace, "aten.relu_"), ops(trace, "aten.add")
    x = mul.tensors[0]
    assert (x.before, x.after) == (digest(torch.full((4,), 2.0)), digest(torch.full((4,), 6.0)))
    assert mul.returns == [{"tensor": 0}] and not any(t.created for t in mul.tensors)
    r = relu.tensors[0]
    assert (r.before, r.after) == (digest(torch.tensor([-1.0, 5])), digest(torch.tensor([0.0, 5])))
    out = add.tensors[-1]
    assert (out.before, out.after) == (digest(torch.zeros(2)), digest(torch.tensor([11.0, 22])))


def test_02_compiled_foreach_alias(tmp_path: pathlib.Path) -> None:
    module = script(2)
    eager, _ = record(module, tmp_path / "a", module.run_a)
    assert [op.op for op in eager.ops] == ["aten.flip", "aten._foreach_add_.List"]
    x = eager.ops[1].tensors[0]
    assert (x.before, x.after) == (digest(torch.arange(1.0, 9)), digest(torch.full((8,), 9.0)))
    with pytest.raises(step_oracle.StepOracleError, match="inductor"):
        record(module, tmp_path / "b", module.run_b)
    refused = step_oracle.load(tmp_path / "b")
    assert not refused.complete and "inductor" in refused.reason
    bare = module.run_b()
    seen, result = record(module, tmp_path / "c", module.run_b, allow_incomplete=True)
    assert torch.equal(bare["x"], result["x"])  # looking does not change which code runs
    assert not seen.complete
    assert step_oracle.diff(eager, seen).first.cause.startswith("compiled code")


def test_03_blind_hashes(tmp_path: pathlib.Path) -> None:
    pair = Pair(3, tmp_path)
    pair.check_first()
    by_op = {d.index: d for d in pair.diff.root}
    names = list(pair.module.PAIRS)
    assert sorted(by_op) == [i for i, n in enumerate(names) if n != "strides"]
    for index, d in by_op.items():
        word = {"f32 and bf16": "dtype", "f32 and f64": "dtype", "shape": "shape"}.get(names[index], "values")
        assert d.cause.startswith("input data") and word in d.cause, (names[index], d.cause)
    assert [n.index for n in pair.diff.layouts] == [names.index("strides")]


def test_04_resume_without_rng(tmp_path: pathlib.Path) -> None:
    pair = Pair(4, tmp_path)
    pair.check_first()
    assert pair.diff.start.equal == pair.diff.start.compared > 0
    assert len(pair.diff.root) == 1 and pair.diff.knock_on > 0
    assert "set_rng_state" in pair.diff.first.cause
    assert Pair(4, tmp_path, restore_rng=True).diff.equal


def test_05_dataloader_workers(tmp_path: pathlib.Path) -> None:
    pair = Pair(5, tmp_path)
    pair.check_first()
    assert "no op is to blame" in pair.diff.first.cause
    assert pair.diff.start.equal == pair.diff.start.compared > 0


def test_06_checkpoint_dropout(tmp_path: pathlib.Path) -> None:
    pair = Pair(6, tmp_path)
    pair.check_first()
    first, again = ops(pair.a, "aten.bernoulli_")
    assert (first.phase, again.phase) == ("forward", "recompute")
    assert first.generators[0].before == again.generators[0].before
    assert pair.diff.first.index == again.index
    plain, _ = record(pair.module, tmp_path / "p", pair.module.plain)
    end = {t: {n.name: n.tensor.after for n in t.names_end if n.role == "gradient"} for t in (plain, pair.a)}
    assert end[plain] == end[pair.a] and end[plain]
    assert len(plain.ops) != len(pair.a.ops)


def test_07_checkpoint_inplace_view(tmp_path: pathlib.Path) -> None:
    pair = Pair(7, tmp_path)
    assert pair.result_a["w.grad"] == pair.module.run_a()["w.grad"]
    assert pair.diff.first.cause.startswith("program") and "no kernel is to blame" in pair.diff.first.cause
    write = ops(pair.b, "aten.relu_")[0].tensors[0]
    base = ops(pair.b, "aten.add")[0].tensors[-1]
    assert write.storage == base.storage and write.mutated


def test_08_normal_layout(tmp_path: pathlib.Path) -> None:
    pair = Pair(8, tmp_path)
    pair.check_first()
    a, b = pair.a.ops[0], pair.b.ops[0]
    assert a.generators[0].before == b.generators[0].before
    assert b.tensors[0].after == digest(pair.result_b["t"])


def test_09_ops_in_threads(tmp_path: pathlib.Path) -> None:
    module = script(9)
    trace, _ = record(module, tmp_path / "t", module.run)
    (exp,), (total,) = ops(trace, "aten.exp"), ops(trace, "aten.sum")
    assert exp.thread != total.thread and exp.tensors[-1].after == total.tensors[0].before


def test_12_accumulation_tokens(tmp_path: pathlib.Path) -> None:
    pair = Pair(12, tmp_path)
    assert pair.diff.first.cause.startswith("program") and "no kernel is to blame" in pair.diff.first.cause
    assert pair.diff.only_b_count > 0 and pair.diff.start.equal == pair.diff.start.compared > 0
    divisors = {float.fromhex("0x0p0") if not t else len(t) for t in [ops(pair.b, "aten.div")]}
    assert divisors  # the mean's divisor is an argument of an op that only b has
    scaled = Pair(12, tmp_path, scale=True)
    assert not scaled.diff.equal
    assert (scaled.result_a["grad"] - scaled.result_b["grad"]).abs().max() < 1e-6


def test_13_tied_weights_assign(tmp_path: pathlib.Path) -> None:
    pair = Pair(13, tmp_path)
    ids = {n.name: n.tensor.storage for n in pair.a.names if n.role == "parameter"}
    assert ids["emb.weight"] == ids["head.weight"]
    assert pair.diff.first.cause.startswith("alias")
    assert "share a storage in a and not in b" in pair.diff.first.cause


def test_14_autocast_stale_cast(tmp_path: pathlib.Path) -> None:
    pair = Pair(14, tmp_path)
    pair.check_first()
    first, second = [op for op in pair.a.ops if op.op == "aten.mm" and op.phase == "forward"]
    assert (first.tensors[1].storage, first.tensors[1].before) == (second.tensors[1].storage, second.tensors[1].before)
    assert "_to_copy" in pair.diff.first.cause
    assert any(op.op == "aten._to_copy" for op in pair.diff.only_b)


def test_15_zero_size_batch(tmp_path: pathlib.Path) -> None:
    module = script(15)
    trace, result = record(module, tmp_path / "t", module.run)
    empty = digest(torch.empty(0))
    zero = [t for op in trace.ops for t in op.tensors if 0 in t.shape]
    assert len(zero) > 20 and {t.before or t.after for t in zero} == {empty}
    assert len({t.storage for t in zero}) > 5 and {tuple(t.shape) for t in zero} >= {(0, 4), (0, 8), (0, 2)}
    (mean,) = ops(trace, "aten.mean")
    assert mean.tensors[-1].after == digest(result["loss"]) and mean.tensors[-1].shape == []
    (norm,) = [op for op in trace.ops if op.op == "aten.cat"]
    assert norm.error == ""


def test_16_thread_count(tmp_path: pathlib.Path) -> None:
    pair = Pair(16, tmp_path)
    assert (pair.a.environment.threads, pair.b.environment.threads) == (1, 2)
    if pair.diff.equal:
        pytest.skip("one and two threads give equal bytes on this host")
    assert pair.diff.first.cause.startswith("threads"), pair.diff.first.cause


def test_17_empty_is_noise(tmp_path: pathlib.Path) -> None:
    pair = Pair(17, tmp_path)
    assert pair.diff.equal
    read, _ = record(pair.module, tmp_path / "c", pair.module.run_c)
    (mul,) = ops(read, "aten.mul")
    assert mul.tensors[0].before_state == "never written"
    assert any("never written" in e.text and f"storage {mul.tensors[0].storage}" in e.text for e in read.events)


# --- several processes ------------------------------------------------------------------------------------------------

_recorded: dict[str, int] = {}


def rank_recorder(base: str) -> Any:
    """In a child process: one trace a rank and a block."""
    import torch.distributed as dist

    _recorded[base] = _recorded.get(base, -1) + 1
    return step_oracle.record(f"{base}.{dist.get_rank()}.{_recorded[base]}", keep="all")


@pytest.fixture
def children_import_this(monkeypatch: pytest.MonkeyPatch) -> None:
    here = pathlib.Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}:{FOLDER}:{here.parents[1]}")


@pytest.mark.usefixtures("children_import_this")
def test_10_ddp_bucket_size(tmp_path: pathlib.Path) -> None:
    module = script(10)
    module.run(0.005, functools.partial(rank_recorder, str(tmp_path / "a")))
    module.run(25, functools.partial(rank_recorder, str(tmp_path / "b")))
    assert step_oracle.diff(tmp_path / "a.0.0", tmp_path / "b.0.0").equal
    for rank in range(module.WORLD):
        a, b = (step_oracle.load(tmp_path / f"{x}.{rank}.1") for x in "ab")
        assert a.complete and b.complete, (a.reason, b.reason)
        assert (a.environment.rank, a.environment.world) == (rank, module.WORLD)
        buckets = [[op.collective for op in ops(t, "c10d.allreduce_")] for t in (a, b)]
        assert [len(x) for x in buckets] == [6, 1]
        assert [c.bucket for c in buckets[0]] == list(range(6))
        assert sum(buckets[1][0].bucket_sizes) == 6 * (64 * 64 + 64)
        assert sorted(n for c in buckets[0] for n in c.bucket_parameters) == sorted(buckets[1][0].bucket_parameters)
        local = [sorted(op.tensors[0].before for op in t.ops if op.node.endswith("AccumulateGrad") and "mul" in op.op)
                 for t in (a, b)]
        assert local[0] == local[1]
        first = step_oracle.diff(tmp_path / f"a.{rank}.1", tmp_path / f"b.{rank}.1").first
        assert (first.op, first.kind) == ("c10d.allreduce_", module.CAUSE)
        ends = [{n.name: n.tensor.after for n in t.names_end if n.role == "gradient"} for t in (a, b)]
        assert ends[0] != ends[1]


@pytest.mark.usefixtures("children_import_this")
def test_11_async_collective(tmp_path: pathlib.Path) -> None:
    module = script(11)
    module.run(functools.partial(rank_recorder, str(tmp_path / "t")))
    want = digest(torch.full((1 << 18,), 3.0))
    for rank in range(module.WORLD):
        for i in range(20):
            trace = step_oracle.load(tmp_path / f"t.{rank}.{i}")
            (launch,), (done,) = ops(trace, "c10d.allreduce_"), trace.completions
            assert launch.tensors[0].before == digest(torch.full((1 << 18,), float(rank + 1)))
            assert launch.tensors[0].after == want and done.tensors[0][1] == want
            assert launch.collective.reduce == "sum" and done.launch == launch.index < done.before_op
            early = next(op for op in trace.ops if op.op == "aten.sum")
            if early.tensors[0].before is None:
                assert any("in flight" in e.text and f"op {early.ticket} " in e.text for e in trace.events)
            assert ops(trace, "aten.sum")[1].tensors[0].before == want
