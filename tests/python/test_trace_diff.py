"""step_oracle.diff on recordings: the first root difference, its cause, and what is only knock-on."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import step_oracle
from step_oracle.cli import main

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    old = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(old)


@pytest.fixture
def diff(tmp_path: pathlib.Path) -> Callable[..., Any]:
    def run(a: Step, b: Step, keep: str = "state") -> Any:
        for name, step in (("a", a), ("b", b)):
            torch.manual_seed(0)
            prepared = step()
            with step_oracle.record(tmp_path / f"{name}.trace", keep=keep):
                prepared()
        return step_oracle.diff(tmp_path / "a.trace", tmp_path / "b.trace")

    return run


def network(seed: int | None = None, p: float = 0.5, x: torch.Tensor | None = None, lr: float = 0.1) -> Step:
    """A step of a small model; its parameters are those of seed 0, its dropout draws from `seed`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(p), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batch = torch.randn(4, 8)
    if x is not None:
        batch = x
    if seed is not None:
        torch.manual_seed(seed)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def test_equal_runs(diff: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = diff(network, network)
    assert report.equal and report.first is None and report.root == [] and report.knock_on == 0
    assert main(["diff", str(tmp_path / "a.trace"), str(tmp_path / "b.trace"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]


def test_generator(diff: Any) -> None:
    report = diff(network, lambda: network(seed=1))
    assert report.first.op == "aten.bernoulli_.float" and report.first.kind == "generator"
    assert report.first.cause.startswith("generator")
    assert len(report.root) == 1 and report.knock_on > 5
    assert report.start.compared == report.start.equal > 0


def test_input_data(diff: Any, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    torch.manual_seed(5)
    x = torch.randn(4, 8)
    y = x.clone()
    y[1, 2] = torch.nextafter(x[1, 2], torch.tensor(torch.inf))
    report = diff(lambda: network(x=x), lambda: network(x=y))
    assert report.first.op == "aten.addmm" and report.first.kind == "input data"
    assert "worker processes" in report.first.cause and "1 of 32 elements" in report.first.cause
    assert report.first.coordinates == [1, 2] and report.first.ulps == 1
    assert len(report.root) == 1 and report.knock_on > 5
    assert main(["diff", str(tmp_path / "a.trace"), str(tmp_path / "b.trace")]) == 1
    assert "at [1, 2]: 0x" in capsys.readouterr().out


X = torch.linspace(-2, 2, 64).view(8, 8)
PAIRS = {
    "sign": (X, -X, "values"),
    "permutation": (X, X.flip(0).contiguous(), "another order"),
    "minus zero": (torch.zeros(8), -torch.zeros(8), "8 of 8"),
    "dtype": (X, X.double(), "dtype float32 against float64"),
    "shape": (X, X.reshape(64), "shape float32[8, 8] against float32[64]"),
    "mask": (torch.tensor([True, False]), torch.tensor([False, True]), "another order"),
    "small beside large": (torch.tensor([1e9, 1e-8]), torch.tensor([1e9, 2e-8]), "1 of 2"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_named(diff: Any, name: str) -> None:
    a, b, part = PAIRS[name]
    report = diff(lambda: lambda: a * 1, lambda: lambda: b * 1)
    assert report.first.kind == "input data" and part in report.first.cause, report.first


def test_layout_alone_is_no_difference(diff: Any) -> None:
    y = X.t().contiguous().t()
    report = diff(lambda: lambda: X * 1, lambda: lambda: y * 1)
    assert report.equal and "strides" in report.layouts[0].text


def test_layout_as_a_cause(diff: Any) -> None:
    report = diff(lambda: torch.zeros(16, 20).normal_, lambda: torch.zeros(20, 16).t().normal_)
    assert report.first.op == "aten.normal_" and report.first.kind == "layout"


def test_argument(diff: Any) -> None:
    report = diff(network, lambda: network(lr=0.25))
    assert {r.kind for r in report.root} == {"argument"}
    assert "-0.1 in a and -0.25 in b" in report.first.cause and report.first.op == "aten.add_.Tensor"


def test_threads(diff: Any) -> None:
    big = torch.randn(1 << 20)

    def with_threads(n: int) -> Step:
        torch.set_num_threads(n)
        return big.sum

    report = diff(lambda: with_threads(1), lambda: with_threads(2))
    if report.equal:
        pytest.skip("two threads add in the same order here")
    assert report.first.op == "aten.sum" and report.first.kind == "threads"
    assert {"field": "threads", "a": "1", "b": "2"} in report.environment


def test_tied_weights(diff: Any) -> None:
    def step(tied: bool) -> Step:
        emb, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        head.weight = emb.weight if tied else torch.nn.Parameter(emb.weight.detach().clone())
        model = torch.nn.Sequential(emb, head)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        def run() -> None:
            model(torch.tensor([1, 2, 3])).square().sum().backward()
            optimizer.step()

        return run

    report = diff(lambda: step(True), lambda: step(False))
    assert report.first.kind == "alias" and "in a and not in b" in report.first.cause
    assert report.start.compared == report.start.equal


def test_other_programs_blame_no_kernel(diff: Any) -> None:
    m, x = torch.nn.Linear(8, 3), torch.randn(4, 8)

    def accumulated() -> None:
        for half in (x[:2], x[2:]):
            (m(half).square().sum() / 4).backward()

    report = diff(lambda: lambda: (m(x).square().sum() / 4).backward(), lambda: accumulated)
    assert report.first.kind == "program" and "no kernel" in report.first.cause
    assert report.only_b_count > 0 and any(n.op == "aten.slice.Tensor" for n in report.only_b)


def test_recomputed_dropout(diff: Any) -> None:
    def step(preserve: bool) -> Step:
        m = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 16))
        x = torch.randn(4, 16)
        return lambda: checkpoint(m, x, use_reentrant=False, preserve_rng_state=preserve).square().sum().backward()

    report = diff(lambda: step(True), lambda: step(False))
    assert report.first.kind == "generator" and report.first.op == "aten.bernoulli_.float"
    assert len(report.root) == 1


def test_stale_cast(diff: Any) -> None:
    def step(one_block: bool) -> Step:
        w, x = torch.nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)

        def update() -> None:
            (x @ w).float().square().mean().backward()
            with torch.no_grad():
                w.sub_(10 * w.grad)
                w.grad = None

        def run() -> None:
            if one_block:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    update(), update()
            else:
                for _ in range(2):
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        update()

        return run

    report = diff(lambda: step(True), lambda: step(False))
    assert report.first.kind == "stale copy" and report.first.op == "aten.mm"
    assert any(n.op == "aten._to_copy" for n in report.only_b)


def test_the_first_nan_is_named(tmp_path: pathlib.Path) -> None:
    x = torch.zeros(0, 4)
    with step_oracle.record(tmp_path / "nan.trace", keep="all"):
        (x.mean() * 2).exp()
    site = step_oracle.load(tmp_path / "nan.trace").first_nan()
    assert site is not None and site.op == "aten.mean" and not site.entered


def dirt(v: float) -> None:
    for n in (40, 400, 4096):
        [torch.full((n,), v) for _ in range(8)]


def test_memory_that_nobody_wrote_is_no_difference(diff: Any) -> None:
    def step(v: float) -> Step:
        dirt(v)

        def run() -> None:
            w = torch.empty(4096).uniform_(-1, 1)
            torch.mul(w[:400], 2, out=torch.empty(400))
            torch.empty(40).fill_(1.0)

        return run

    report = diff(lambda: step(1.0), lambda: step(-5.0))
    assert report.equal and not report.never_written_a


def test_memory_that_is_read_unwritten_is_named(diff: Any) -> None:
    def run() -> None:
        e = torch.empty(4096)
        e[0] = 1.0
        (e * 0).sum()

    report = diff(lambda: run, lambda: run)
    assert any("nobody wrote" in n.text for n in report.never_written_a)
