"""What the recorder hangs into torch while a recording runs, and takes out again at its end.

Every hook only tells the recorder something; none changes which code runs. Under torch.compile the hooks trace to
nothing.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim

from . import _record

INDUCTOR = "torch._inductor.output_code"


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` is ``make(original)`` meanwhile."""
    own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


class ModulePaths:
    """Tells the recorder which module a thread is in."""

    def __init__(self, recording: Any, found_root: Callable[[torch.nn.Module, str], None]) -> None:
        self._recording = recording
        self._found_root = found_root
        self._handles: dict[int, int] = {}
        self._keep: list[torch.nn.Module] = []  # ids stay theirs
        self._roots = 0
        self._ddp: set[int] = set()

    def add_root(self, root: torch.nn.Module) -> None:
        name = type(root).__name__
        prefix = "" if self._roots == 0 else f"{name}."
        self._roots += 1
        for path, module in root.named_modules():
            self._add(module, prefix + path if path else name)
        self._found_root(root, prefix)

    def _add(self, module: torch.nn.Module, path: str) -> int:
        if id(module) not in self._handles:
            self._handles[id(module)] = self._recording.intern(path)
            self._keep.append(module)
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                self._recording.ddp_module(self._handles[id(module)])
                self._ddp.add(id(module))
        return self._handles[id(module)]

    def _new(self, module: torch.nn.Module) -> int:
        inside = self._recording.module()
        if inside:
            return self._add(module, f"{inside}/{type(module).__name__}")
        self.add_root(module)
        return self._handles[id(module)]

    def before(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        handle = self._handles.get(id(module))
        if id(module) in self._ddp:
            self._recording.ddp_forward()
        self._recording.enter(self._new(module) if handle is None else handle)

    def after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        handle = self._handles.get(id(module))
        if handle is not None:
            self._recording.leave(handle)

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [nn_module.register_module_forward_pre_hook(self.before),
                   nn_module.register_module_forward_hook(self.after, always_call=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextlib.contextmanager
def optimizer_steps(begin: Callable[[Any], None], end: Callable[[Any], None]) -> Iterator[None]:
    handles = [optim.register_optimizer_step_pre_hook(lambda o, args, kwargs: begin(o)),
               optim.register_optimizer_step_post_hook(lambda o, args, kwargs: end(o))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def backward_calls(recording: Any, loss: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """``loss(t)`` for each scalar on which backward is called."""

    def make(original: Any) -> Any:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
            outputs = tuple(outputs)
            if kwargs.get("accumulate_grad") and len(outputs) == 1 and isinstance(outputs[0], torch.Tensor):
                if outputs[0].numel() == 1:
                    loss(outputs[0])
            if not create_graph:
                return original(outputs, *args, **kwargs)
            recording.create_graph(True)
            try:
                return original(outputs, *args, **kwargs)
            finally:
                recording.create_graph(False)

        return run_backward

    with replaced(torch.autograd, "_engine_run_backward", make):
        yield


@contextlib.contextmanager
def new_threads() -> Iterator[None]:
    """Threads that start meanwhile are watched: they do not inherit torch's thread-local keys."""

    def make(original: Any) -> Any:
        def bootstrap(self: threading.Thread) -> None:
            _record.watch_thread(True)
            try:
                original(self)
            finally:
                _record.watch_thread(False)

        return bootstrap

    with replaced(threading.Thread, "_bootstrap_inner", make):
        yield


@contextlib.contextmanager
def loader_workers(seen: Callable[[], None]) -> Iterator[None]:
    from torch.utils.data import dataloader

    def make(original: Any) -> Any:
        def next_data(self: Any) -> Any:
            seen()
            return original(self)

        return next_data

    with replaced(dataloader._MultiProcessingDataLoaderIter, "_next_data", make):
        yield


@contextlib.contextmanager
def collective_waits(recording: Any) -> Iterator[None]:
    """Tells of each Work that the program came back from waiting for."""
    if not torch.distributed.is_available():
        yield
        return

    def make(original: Any) -> Any:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            recording.waits(self, True)
            result = original(self, *args, **kwargs)
            recording.waits(self, False)
            return result

        return wait

    with replaced(torch.distributed.Work, "wait", make):
        yield


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``then(module)`` once ``name`` has been imported."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        loader, then = spec.loader, self._then
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            then(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def inductor_calls(around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Calls of graphs that inductor compiled go through ``around(call)``."""
    with contextlib.ExitStack() as stack:

        def make(original: Any) -> Any:
            def call(self: Any, inputs: Any) -> Any:
                return around(lambda: original(self, inputs))

            return call

        def patch(module: types.ModuleType) -> None:
            for name in ("CompiledFxGraph", "CompiledAOTI"):
                stack.enter_context(replaced(getattr(module, name), "__call__", make))

        if INDUCTOR in sys.modules:
            patch(sys.modules[INDUCTOR])
            yield
            return
        finder = _AfterImport(INDUCTOR, patch)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


@contextlib.contextmanager
def graph_replays(around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Replays of CUDA graphs go through ``around(call)``."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None:
        yield
        return

    def make(original: Any) -> Any:
        def replay(self: Any) -> Any:
            return around(lambda: original(self))

        return replay

    with replaced(graph, "replay", make):
        yield
