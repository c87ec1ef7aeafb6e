"""One test for each rule of the recorder: what it sees, what it says of what it cannot see, what it leaves alone."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from recording import digest, find, names, recorded, texts

import step_oracle

# --- storages ---------------------------------------------------------------------------------------------------------


def test_temporaries_at_one_address_are_many_storages() -> None:
    records = recorded(lambda: [torch.ones(7, 9) for _ in range(50)] and None)
    assert len({op["tensors"][-1]["storage"] for op in records["ops"] if op["name"] == "aten.ones"}) == 50

    def one_by_one() -> None:
        for _ in range(50):
            torch.ones(7, 9)

    ids = [op["tensors"][-1]["storage"] for op in recorded(one_by_one)["ops"]]
    assert len(set(ids)) == 50


def test_views_share_a_storage() -> None:
    x = torch.randn(4, 6)
    records = recorded(lambda: x[1:].t().add_(1))
    assert {t["storage"] for op in records["ops"] for t in op["tensors"] if t["sizes"]} == {1}
    assert find(records, "aten.add_.Tensor")["tensors"][0]["after"] == digest(x[1:].t())


def test_resize_makes_a_generation() -> None:
    def block() -> torch.Tensor:
        x = torch.ones(4)
        x.resize_(1 << 12)
        return x.fill_(2)

    records = recorded(block)
    fill = find(records, "aten.fill_.Scalar")["tensors"][0]
    assert fill["generation"] == 1
    assert fill["before_state"] == "never written"
    assert fill["after"] == digest(torch.full((1 << 12,), 2.0))


def test_two_storages_over_one_memory() -> None:
    memory = bytearray(4096 * 4)
    a, b = torch.frombuffer(memory, dtype=torch.float32), torch.frombuffer(memory, dtype=torch.float32)[100:]

    def block() -> None:
        b * 1
        a.fill_(3)
        b * 1

    records = recorded(block)
    first, second = (find(records, "aten.mul.Tensor", i)["tensors"][0] for i in (0, 1))
    assert first["before"] == digest(torch.zeros(3996)) and second["before"] == digest(torch.full((3996,), 3.0))
    assert first["storage"] != find(records, "aten.fill_.Scalar")["tensors"][0]["storage"]


def test_memory_that_nobody_wrote_is_noise() -> None:
    def block() -> None:
        e = torch.empty(64)
        e[:32].fill_(1.0)
        e[:32] + 1
        e + 1

    records = recorded(block)
    partly, whole = (find(records, "aten.add.Tensor", i)["tensors"][0] for i in (0, 1))
    assert find(records, "aten.empty.memory_format")["tensors"][-1]["after_state"] == "never written"
    assert partly["before"] == digest(torch.ones(32))
    assert whole["before_state"] == "never written"
    assert texts(records).count("never written") == 1


def test_memory_filled_piece_by_piece_is_written() -> None:
    def block() -> None:
        e = torch.empty(8, 6)
        for i in range(6):
            e[:, i].fill_(float(i))
        e + 1

    records = recorded(block)
    want = torch.arange(6.0).expand(8, 6)
    assert find(records, "aten.add.Tensor")["tensors"][0]["before"] == digest(want)
    assert "never written" not in texts(records)


# --- what ops write ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paranoid", [False, True])
def test_batch_norm_writes_what_its_schema_does_not_say(paranoid: bool) -> None:
    m = torch.nn.BatchNorm1d(8)
    x = torch.randn(4, 8)
    op = find(recorded(lambda: m(x), paranoid=paranoid), "aten.native_batch_norm")
    mean, var = op["tensors"][3], op["tensors"][4]
    assert mean["undeclared"] and var["undeclared"]
    assert mean["before"] == digest(torch.zeros(8)) and mean["after"] == digest(m.running_mean)
    m.eval()
    quiet = find(recorded(lambda: m(x)), "aten.native_batch_norm")
    assert not any(t["undeclared"] for t in quiet["tensors"])


def test_an_op_that_raises_is_recorded() -> None:
    def block() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(3, 4) @ torch.ones(3, 4)

    op = find(recorded(block), "aten.mm")
    assert "cannot be multiplied" in op["error"]
    assert not any(t["created"] for t in op["tensors"])


def test_paranoid_sees_a_write_that_no_schema_declares() -> None:
    with torch.library._scoped_library("step_oracle_test", "FRAGMENT") as library:
        library.define("sly(Tensor x) -> Tensor")

        def sly(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

        library.impl("sly", sly, "CPU")
        records = recorded(lambda: torch.ops.step_oracle_test.sly(torch.zeros(4)), paranoid=True)
    op = find(records, "step_oracle_test.sly")
    assert op["tensors"][0]["undeclared"] and op["tensors"][0]["after"] == digest(torch.ones(4))
    assert "schema does not say so" in texts(records)


# --- tensors without bytes of their own -------------------------------------------------------------------------------


def test_unreadable_tensors() -> None:
    s = torch.eye(4).to_sparse()
    records = recorded(lambda: s @ torch.ones(4, 2))
    states = {t["before_state"] for op in records["ops"] for t in op["tensors"][:1]}
    assert "unreadable" in states


def test_meta_and_fake_tensors_are_counted_not_recorded() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def block() -> None:
        torch.ones(3, device="meta") + 1
        with FakeTensorMode():
            torch.ones(3) + 1

    records = recorded(block)
    assert names(records) == []
    assert records["summary"]["ops_without_bytes"] > 0


class Wrapper(torch.Tensor):
    """A subclass with a tensor inside."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        out = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        out.inner = inner
        return out

    @classmethod
    def __torch_dispatch__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return Wrapper(f(*plain, **(kwargs or {})))


def test_a_subclass_shows_the_ops_on_its_inner_tensor() -> None:
    x = torch.randn(4)
    records = recorded(lambda: Wrapper(x) + 1)
    assert find(records, "aten.add.Tensor")["tensors"][0]["before"] == digest(x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.vmap(torch.sin)(x), lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
        lambda x: torch.func.jvp(torch.sin, (x,), (x,)), lambda x: torch.func.hessian(lambda y: y.pow(3).sum())(x[0]),
        lambda x: torch.conj(torch.complex(x, x)).imag * 1,
        lambda x: torch.complex(x, x).conj().t() @ torch.complex(x, x),
        lambda x: torch.nn.functional.embedding(torch.tensor([1]), x.requires_grad_(), sparse=True).sum().backward(),
    ],
)  # fmt: skip
def test_transforms_give_what_they_give(f: Any) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    bare = f(x.clone())
    records = recorded(lambda: f(x.clone()))
    flat = torch.utils._pytree.tree_leaves
    assert all(torch.equal(a, b) for a, b in zip(flat(bare), flat(records["result"]), strict=True) if a is not None)
    assert records["summary"]["ops"] > 0


def test_inference_mode_shows_the_parts_of_a_composite() -> None:
    x, w = torch.randn(2, 3, 4), torch.randn(5, 4)

    def block() -> None:
        with torch.inference_mode():
            torch.nn.functional.linear(x, w)
            torch.matmul(x, w.t())

    seen = names(recorded(block))
    assert "aten.matmul" not in seen
    assert "aten.mm" in seen or "aten.addmm" in seen


# --- generators, links, phases ----------------------------------------------------------------------------------------


def test_generator_states() -> None:
    own = torch.Generator().manual_seed(1)

    def block() -> None:
        torch.rand(3)
        torch.randn(3, generator=own)
        torch.ones(3) + 1

    torch.manual_seed(5)
    before, mine = digest(torch.get_rng_state()), digest(own.get_state())
    records = recorded(block)
    rand, randn = find(records, "aten.rand"), find(records, "aten.randn.generator")
    assert rand["generators"][0]["before"] == before
    assert rand["generators"][0]["after"] == digest(torch.get_rng_state()) != before
    assert (randn["generators"][0]["before"], randn["generators"][0]["after"]) == (mine, digest(own.get_state()))
    assert find(records, "aten.add.Tensor")["generators"] == []


def test_backward_ops_belong_to_forward_modules() -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    o = torch.optim.SGD(m.parameters(), lr=0.1, foreach=True)
    x = torch.randn(3, 4)

    def block() -> None:
        m(x).square().mean().backward()
        o.step()

    records = recorded(block, model=m, optimizer=o)
    gelu = find(records, "aten.gelu_backward")
    assert (gelu["phase"], gelu["module"]) == ("backward", "1")
    forward = find(records, "aten.gelu")
    assert (forward["phase"], forward["module"]) == ("forward", "1")
    assert forward["sequence"] == gelu["node_sequence"] >= 0
    assert {op["module"] for op in records["ops"] if op["name"] == "aten.mm"} == {"0", "2"}
    assert {op["phase"] for op in records["ops"] if op["name"].startswith("aten._foreach")} == {"optimizer"}
    linked = [op for op in records["ops"] if op["phase"] == "backward" and op["node_sequence"] >= 0]
    assert len(linked) >= 10


def test_recomputed_ops_are_marked() -> None:
    from torch.utils.checkpoint import checkpoint

    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    x = torch.randn(2, 4)
    records = recorded(lambda: checkpoint(m, x, use_reentrant=False).sum().backward(), model=m)
    assert [op["phase"] for op in records["ops"] if op["name"] == "aten.tanh"] == ["forward", "recompute"]
    again = recorded(lambda: torch.autograd.grad(m(x).sum(), m[0].weight, create_graph=True), model=m)
    assert "recompute" not in {op["phase"] for op in again["ops"]}


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_of_state_that_the_step_makes(tmp_path) -> None:
    torch.manual_seed(0)
    m = torch.nn.Linear(3, 2)
    o = torch.optim.AdamW(m.parameters(), lr=0.125)
    with step_oracle.record(tmp_path / "t", model=m, optimizer=o):
        loss = m(torch.ones(1, 3)).sum()
        loss.backward()
        o.step()
    trace = step_oracle.load(tmp_path / "t")
    start = {n.name: n for n in trace.names}
    end = {n.name: n for n in trace.names_end}
    assert {"weight", "bias", "group.0.lr"} <= start.keys() and "weight.exp_avg" not in start
    assert start["group.0.lr"].value == 0.125
    assert {"weight", "weight.grad", "weight.exp_avg", "weight.exp_avg_sq", "weight.step", "loss"} <= end.keys()
    assert end["weight"].tensor.after == digest(m.weight) != start["weight"].tensor.before
    assert end["weight.exp_avg"].tensor.after == digest(o.state[m.weight]["exp_avg"])
    assert end["loss"].role == "loss" and end["loss"].tensor.after == digest(loss)
    assert [e.value for e in trace.events if e.kind == "loss"] == [loss.item()]


def test_names_without_being_told(tmp_path) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(3, 2))
    o = torch.optim.Adam(m.parameters())
    m(torch.ones(1, 3)).sum().backward()
    o.step()
    with step_oracle.record(tmp_path / "t"):
        m(torch.ones(1, 3)).sum().backward()
        o.step()
    trace = step_oracle.load(tmp_path / "t")
    assert {"0.weight", "0.bias", "0.weight.exp_avg"} <= {n.name for n in trace.names}
    assert all(n.tensor.before for n in trace.names if n.role == "parameter")


def test_tied_weights_are_one_storage_with_two_names(tmp_path) -> None:
    import gpt

    t = gpt.Training("tied")
    with step_oracle.record(tmp_path / "t", model=t.model, optimizer=t.optimizer):
        t.step()
    ids = {n.name: n.tensor.storage for n in step_oracle.load(tmp_path / "t").names if n.role == "parameter"}
    assert ids["wte.weight"] == ids["head.weight"] != ids["wpe.weight"]


# --- threads and processes --------------------------------------------------------------------------------------------


def test_threads_that_start_inside_are_seen() -> None:
    def block() -> torch.Tensor:
        box: dict[str, torch.Tensor] = {}
        t = threading.Thread(target=lambda: box.update(y=torch.ones(4).exp()))
        t.start()
        t.join()
        return box["y"].sum()

    records = recorded(block)
    assert find(records, "aten.exp")["thread"] != find(records, "aten.sum")["thread"]
    assert find(records, "aten.exp")["tensors"][-1]["after"] == find(records, "aten.sum")["tensors"][0]["before"]
    assert records["summary"]["complete"]


def test_ops_of_threads_that_were_there_before_make_it_incomplete() -> None:
    go, done = threading.Event(), threading.Event()

    def outside() -> None:
        go.wait()
        torch.ones(4).cosh()
        done.set()

    thread = threading.Thread(target=outside)
    thread.start()
    records = recorded(lambda: (go.set(), done.wait(), torch.ones(2)) and None)
    thread.join()
    assert not records["summary"]["complete"]
    assert "thread that was not watched" in records["summary"]["reason"] and "cosh" in records["summary"]["reason"]


def test_many_threads_and_python_kernels_do_not_deadlock() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    shared = torch.randn(1 << 16)

    def work() -> None:
        for _ in range(20):
            x = torch.randn(1 << 15, requires_grad=True)
            Double.apply(x).sum().backward()
            shared.sum()

    def block() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert not any(t.is_alive() for t in threads)

    records = recorded(block)
    assert len({op["thread"] for op in records["ops"]}) == 4
    assert len(names(records)) == len({op["ticket"] for op in records["ops"]})


def test_a_forked_child_leaves_the_recording_alone(tmp_path) -> None:
    with step_oracle.record(tmp_path / "t"):
        torch.ones(3) + 1
        child = os.fork()
        if child == 0:
            ok = bool((torch.ones(3) * 2).sum() == 6)
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(3) * 3
    trace = step_oracle.load(tmp_path / "t")
    assert trace.complete and [op.op for op in trace.ops if "mul" in op.op] == ["aten.mul.Tensor"]


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor(float(i)) ** 2


def test_loader_workers_are_mentioned() -> None:
    recorded(lambda: torch.ones(1 << 16) + 1)  # an ended recording in the parent once hung its forked workers
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=1)
    records = recorded(lambda: [b + 1 for b in loader])
    assert "worker processes" in texts(records)
    assert len([n for n in names(records) if n == "aten.add.Tensor"]) == 2


# --- the block --------------------------------------------------------------------------------------------------------


def test_one_recording_at_a_time(tmp_path) -> None:
    with step_oracle.record(tmp_path / "a") as rec:
        with pytest.raises(ValueError, match="already running"), step_oracle.record(tmp_path / "b"):
            pass
        seen: list[BaseException] = []

        def other() -> None:
            try:
                with step_oracle.record(tmp_path / "c"):
                    pass
            except ValueError as error:
                seen.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(seen) == 1
        torch.ones(2) + 1
    assert rec.summary()["ops"] == 2
    with pytest.raises(ValueError, match="used already"), rec:
        pass
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_exception_inside_goes_on_and_the_trace_is_closed(tmp_path, error: BaseException) -> None:
    with pytest.raises(type(error)), step_oracle.record(tmp_path / "t"):
        torch.ones(2) + 1
        raise error
    trace = step_oracle.load(tmp_path / "t")
    assert len(trace.ops) == 2 and not trace.complete
    assert type(error).__name__ in trace.reason
    with step_oracle.record(tmp_path / "t"):  # nothing is left behind
        torch.ones(2) + 1
    assert step_oracle.load(tmp_path / "t").complete


def test_hooks_are_taken_out_again() -> None:
    from torch.nn.modules import module
    from torch.optim import optimizer

    held = (module._global_forward_pre_hooks, module._global_forward_hooks, optimizer._global_optimizer_pre_hooks)
    before = [dict(h) for h in held]
    functions = (threading.Thread._bootstrap_inner, torch.autograd._engine_run_backward)
    recorded(lambda: torch.ones(2))
    assert [dict(h) for h in held] == before
    assert functions == (threading.Thread._bootstrap_inner, torch.autograd._engine_run_backward)
    assert not torch._C._dispatch_tls_is_dispatch_key_included("Fake")


def test_a_context_that_ends_inside_switches_recording_off_and_it_says_so() -> None:
    mode = torch._C._InferenceMode(True)
    rec = step_oracle.record(None)
    rec.__enter__()
    del mode
    torch.ones(2) + 1
    rec.__exit__(None, None, None)
    assert not rec.summary()["complete"]


def test_paths_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("not a trace, and dear to somebody")
    for path in (tmp_path / "none" / "t", tmp_path / "file", tmp_path):
        with pytest.raises((ValueError, step_oracle.StepOracleError)), step_oracle.record(path):
            pass
    assert (tmp_path / "file").read_text() == "not a trace, and dear to somebody"
    recorded(lambda: torch.ones(2))


def test_inductor_is_refused_and_left_alone(tmp_path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()

    torch._dynamo.reset()
    g = torch.compile(f)
    x = torch.randn(8)
    want = g(x)
    with pytest.raises(step_oracle.StepOracleError, match="inductor"), step_oracle.record(tmp_path / "t"):
        g(x)
    assert not step_oracle.load(tmp_path / "t").complete
    with step_oracle.record(tmp_path / "u", allow_incomplete=True) as rec:
        got = g(x)
        got + 1
    assert torch.equal(want, got)
    assert not rec.summary()["complete"] and "inductor" in rec.summary()["reason"]


def test_summary_and_notes(tmp_path) -> None:
    with step_oracle.record(tmp_path / "t", keep="state") as rec:
        rec.note("here")
        torch.ones(1000) + torch.ones(1000)
    with pytest.raises(ValueError, match="has ended"):
        rec.note("too late")
    s = rec.summary()
    assert s["ops"] == 3 and s["digests"] >= 3 and s["bytes_digested"] >= 12000 and s["slow_down"] >= 1
    assert s["file_bytes"] == os.path.getsize(tmp_path / "t")
    assert "here" in [e.text for e in step_oracle.load(tmp_path / "t").events]


def test_keep_state_keeps_what_enters(tmp_path) -> None:
    w, x = torch.randn(6, 5), torch.randn(40, 5)
    with step_oracle.record(tmp_path / "t", keep="state"):
        y = x[3:7] @ w.t()
        y.add_(1)
    trace = step_oracle.load(tmp_path / "t")
    entered = [s for s in trace._trace.storages if s["entered"]]
    assert {s["initial"] for s in entered} >= {digest(w), digest(x)}
    assert all(trace._trace.has_blob(s["initial"]) for s in entered)
    assert not trace._trace.has_blob(digest(y))


# --- accidents --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, time
import torch, step_oracle
with step_oracle.record(sys.argv[1]):
    for i in range(300):
        torch.ones(100) + i
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
FULL = """
import resource, signal, sys
import torch, step_oracle
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    with step_oracle.record(sys.argv[1], keep="all"):
        for i in range(50):
            torch.randn(10000)
except step_oracle.StepOracleError as error:
    print("refused:", error)
"""


def run_script(text: str, path: Any) -> subprocess.CompletedProcess[str]:
    root = pathlib.Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", text, str(path)], capture_output=True, text=True, timeout=200,
                          check=False, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"})


def test_a_killed_recording_reads_up_to_its_last_record(tmp_path) -> None:
    done = run_script(KILLED, tmp_path / "t")
    assert done.returncode == -9
    trace = step_oracle.load(tmp_path / "t")
    assert not trace.complete and trace.reason
    assert len(trace.ops) == 600


def test_a_full_disk_is_one_sentence(tmp_path) -> None:
    done = run_script(FULL, tmp_path / "t")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:") and done.stdout.count("\n") == 1 and str(tmp_path / "t") in done.stdout
