"""Recording changes no byte of a run, and sees the ops that a Python dispatch mode sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gpt
import pytest
import torch
from recording import names, recorded
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def three_steps(make: Callable[[], gpt.Training], record_second: bool) -> dict[str, torch.Tensor]:
    training = make()
    training.step()
    if record_second:
        recorded(training.step, model=training.model, optimizer=training.optimizer, keep="all")
    else:
        training.step()
    training.step()
    return training.state()


def autocast(training: gpt.Training) -> gpt.Training:
    forward = training.model.forward

    def cast(*args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args)

    training.model.forward = cast  # type: ignore[method-assign]
    return training


def checkpointed(reentrant: bool) -> Callable[[gpt.Training], gpt.Training]:
    def wrap(training: gpt.Training) -> gpt.Training:
        for block in training.model.h:
            forward = block.forward
            block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=reentrant)
        return training

    return wrap


def compiled(backend: str) -> Callable[[gpt.Training], gpt.Training]:
    def wrap(training: gpt.Training) -> gpt.Training:
        torch._dynamo.reset()
        training.model.compile(backend=backend)
        return training

    return wrap


WAYS: dict[str, Callable[[], gpt.Training]] = {
    "plain foreach": lambda: gpt.Training("plain", "foreach"),
    "tied fused": lambda: gpt.Training("tied", "fused"),
    "ragged for-loop": lambda: gpt.Training("ragged", "for-loop"),
    "gqa foreach": lambda: gpt.Training("gqa", "foreach"),
    "autocast": lambda: autocast(gpt.Training("tied", "foreach")),
    "checkpoint reentrant": lambda: checkpointed(True)(gpt.Training("tied", "foreach")),
    "checkpoint": lambda: checkpointed(False)(gpt.Training("tied", "foreach")),
    "compile eager": lambda: compiled("eager")(gpt.Training("plain", "foreach")),
    "compile aot_eager": lambda: compiled("aot_eager")(gpt.Training("plain", "foreach")),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_byte_changes(way: str) -> None:
    with one_thread():
        bare, seen = three_steps(WAYS[way], False), three_steps(WAYS[way], True)
    assert bare.keys() == seen.keys()
    for name in bare:
        assert bare[name].numpy().tobytes() == seen[name].numpy().tobytes(), name


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(f).removesuffix(".default")
        if not name.startswith("profiler."):
            self.names.append(name)
        return f(*args, **(kwargs or {}))


def without_artefacts(ops: list[str]) -> list[str]:
    """A Python mode accumulates gradients out of place, makes a view of `_reshape_alias` and adds `detach`."""
    same = {"aten.add_.Tensor": "aten.add.Tensor", "aten._reshape_alias": "aten.view"}
    return [same.get(op, op) for op in ops if op != "aten.detach"]


@pytest.mark.parametrize("way", [w for w in WAYS if not w.startswith("compile")])
def test_the_ops_are_a_dispatch_modes(way: str) -> None:
    a, b = WAYS[way](), WAYS[way]()
    a.step(), b.step()
    records = recorded(a.step)
    with Names() as mode:
        b.step()
    assert without_artefacts(names(records)) == without_artefacts(mode.names)
    assert len(names(records)) > 200
    assert records["summary"]["complete"], records["summary"]["reason"]


def test_compiled_code_is_the_same_code() -> None:
    """Under torch.compile the hooks trace to nothing: the graph stays whole."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph

    torch._dynamo.reset()
    training = gpt.Training("plain")
    training.model.compile(backend=backend)
    training.step()
    before = list(graphs)
    records = recorded(lambda: [training.step() for _ in range(2)])
    assert len(before) == 1
    assert set(graphs) == set(before) and len(graphs) <= 2  # the same graph, compiled at most once more
    assert "aten.addmm" in names(records)


def test_no_write_goes_unseen() -> None:
    training = gpt.Training("tied", "foreach")
    training.step()
    records = recorded(training.step, paranoid=True)
    assert not any(t["undeclared"] for op in records["ops"] for t in op["tensors"])
    assert "schema does not say" not in "".join(e["text"] for e in records["events"])


@pytest.mark.parametrize(("shape", "optimizer"), [("tied", "foreach"), ("ragged", "fused"), ("gqa", "for-loop")])
def test_no_byte_changes_on_the_virtual_card(shape: str, optimizer: str) -> None:
    import step_oracle

    step_oracle.set_card("h100-sxm")
    with sdpa_kernel(SDPBackend.MATH):  # the attention that the virtual card models
        bare, seen = (three_steps(lambda: gpt.Training(shape, optimizer, device="oracle"), on) for on in (False, True))
    for name in bare:
        assert bare[name].cpu().numpy().tobytes() == seen[name].cpu().numpy().tobytes(), name
