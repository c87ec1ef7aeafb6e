"""Recording: ``with step_oracle.record("step.trace", model=model, optimizer=opt) as rec: ...``."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal

import torch

from . import _record, record_hooks
from .environment import environment

Keep = Literal["digests", "state", "all"]
Entry = tuple[str, str, Any]  # name, role, tensor or number

INDUCTOR_RAN = (
    "code compiled by torch.compile's inductor ran inside the recording, and its ops cannot be seen: record with "
    "backend='eager' or 'aot_eager', or without torch.compile"
)
GRAPH_RAN = (
    "a CUDA graph was replayed inside the recording, and its ops cannot be seen: record the step without CUDA graphs"
)

_entering = threading.Lock()


def local(value: Any) -> Any:
    """This rank's part of a DTensor; anything else as it is."""
    return getattr(value, "_local_tensor", value)


class record:
    """Records what torch computes inside the ``with`` block, on any device, into a trace file.

    ``keep``: what of the tensors' bytes goes into the file besides their digests: nothing ("digests"), what the
    program reads and did not make itself ("state": enough to replay it), or results too ("all"). ``model`` and
    ``optimizer`` give names to parameters, buffers and optimizer tensors; without them the names come from the modules
    and the optimizer that the block runs.

    A graph compiled by inductor raises StepOracleError when it is called, unless ``allow_incomplete``: then it runs,
    and the trace says that it is not complete. ``paranoid`` digests every argument before and after every op, at once,
    and tells of writes that no schema declares: slow.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        keep: Keep = "digests",
        model: torch.nn.Module | Iterable[torch.nn.Module] | None = None,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        *,
        allow_incomplete: bool = False,
        paranoid: bool = False,
        digests: bool = True,
        card_digests: bool = True,  # False: the host computes them on a CUDA card too
        watch_optimizers: bool = True,  # False: the caller tells by step_begins() and step_ends()
    ) -> None:
        self.path = None if path is None else os.fspath(path)  # None: into memory, for tests
        self._keep, self._paranoid, self._digests = keep, paranoid, digests
        self._allow_incomplete = allow_incomplete
        self._models = [model] if isinstance(model, torch.nn.Module) else list(model or [])
        self._watch_optimizers, self._card_digests = watch_optimizers, card_digests
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or [])
        self._optimizers: list[torch.optim.Optimizer] = optimizers
        self._given = bool(optimizers)
        self._roots: list[tuple[torch.nn.Module, str]] = []
        self._hooks = contextlib.ExitStack()
        self._recording: Any = None
        self._result: dict[str, Any] | None = None
        self._losses = 0
        self._loader_noted = False
        self._pid = 0

    # --- the block ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> record:
        if self._recording is not None:
            raise ValueError("this recording was used already: make a new step_oracle.record() for each block")
        if str(torch.__version__).split("+")[0] != _record.TORCH_VERSION:
            raise NotImplementedError(f"torch {torch.__version__} is loaded, and step-oracle was built for "
                                      f"{_record.TORCH_VERSION}: build it again with this torch")
        with _entering:
            if _record.is_running():
                raise ValueError("a recording is already running in this process: end its block before the next")
            self._start()
        return self

    def _start(self) -> None:
        self._pid = os.getpid()
        workers = max(1, min(4, (os.cpu_count() or 1) - torch.get_num_threads()))
        _record.install()
        self._recording = _record.Recording(self.path, self._keep, environment(self._device()), self._digests,
                                            self._paranoid, workers, self._card_digests)
        self._paths = record_hooks.ModulePaths(self._recording, self._found_root)
        enter = self._hooks.enter_context
        try:
            for model in self._models:
                self._paths.add_root(model)
            if self._given:
                self._recording.names(False, self._optimizer_names(self._optimizers))
            enter(self._paths.hooked())
            if self._watch_optimizers:
                enter(record_hooks.optimizer_steps(self.step_begins, self.step_ends))
            enter(record_hooks.backward_calls(self._recording, self._loss))
            enter(record_hooks.collective_waits(self._recording))
            enter(record_hooks.new_threads())
            enter(record_hooks.loader_workers(self._loader_used))
            enter(record_hooks.inductor_calls(self._inductor))
            enter(record_hooks.graph_replays(self._graph))
            self._recording.step(False)
            self._recording.start()
        except BaseException:
            self._hooks.close()
            self._recording = None
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: the recording is its parent's
        watched = self._recording.detach()
        self._hooks.close()
        try:
            if not watched:
                self._recording.incomplete("Recording was switched off inside the block: a context manager that began "
                                           "before it (such as torch.inference_mode) ended inside it.")
            if error is not None:
                self._recording.incomplete(f"The recorded block raised {kind.__name__ if kind else 'an exception'}: "
                                           f"the step is not whole.")
            self._names_at_end()
            self._result = self._recording.stop()
        except BaseException as own:
            if error is None:
                raise
            warnings.warn(f"the trace could not be finished: {own}", stacklevel=2)

    def summary(self) -> dict[str, Any]:
        """Counts and costs: ops, digests, bytes_digested, storages, file_bytes, seconds, slow_down, complete, reason.

        ``slow_down`` is the block's time over the same time less what the recorder took of it on the threads that ran
        the ops, measured in this run.
        """
        if self._recording is None:
            raise ValueError("nothing was recorded yet: enter the block first")
        s = dict(self._result or self._recording.summary())
        rest = s["seconds"] - s.pop("overhead_seconds")
        s["slow_down"] = s["seconds"] / rest if rest > 0 else float("inf")
        return s

    def note(self, text: str) -> None:
        """Writes a sentence into the trace, at this place."""
        self._recording.note(text)

    # --- names --------------------------------------------------------------------------------------------------------

    def _found_root(self, root: torch.nn.Module, prefix: str) -> None:
        self._roots.append((root, prefix))
        self._recording.names(False, self._model_names(root, prefix))

    @staticmethod
    def _model_names(root: torch.nn.Module, prefix: str) -> list[Entry]:
        out: list[Entry] = []
        for name, p in root.named_parameters(remove_duplicate=False):
            out.append((prefix + name, "parameter", local(p)))
            if p.grad is not None:
                out.append((f"{prefix}{name}.grad", "gradient", local(p.grad)))
        out += [(prefix + name, "buffer", local(b)) for name, b in root.named_buffers(remove_duplicate=False)]
        return out

    def _parameter_names(self) -> dict[int, str]:
        out: dict[int, str] = {}
        for root, prefix in self._roots:
            for name, p in root.named_parameters():
                out.setdefault(id(p), prefix + name)
        return out

    def _optimizer_names(self, optimizers: list[torch.optim.Optimizer]) -> list[Entry]:
        names = self._parameter_names()
        out: list[Entry] = []
        for o in optimizers:
            first = "" if len(self._optimizers) < 2 else f"optimizer.{self._optimizers.index(o)}."
            for g, group in enumerate(o.param_groups):
                for key, value in group.items():
                    if isinstance(value, (int, float)) and not isinstance(value, bool):
                        out.append((f"{first}group.{g}.{key}", "optimizer", value))
                    elif isinstance(value, torch.Tensor):
                        out.append((f"{first}group.{g}.{key}", "optimizer", value))
                for i, p in enumerate(group["params"]):
                    name = names.get(id(p))
                    if name is None:
                        name = f"group.{g}.param.{i}"
                        out.append((first + name, "parameter", local(p)))
                    for key, value in o.state.get(p, {}).items():
                        if isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool):
                            out.append((f"{first}{name}.{key}", "optimizer", local(value)))
        return out

    def _names_at_end(self) -> None:
        for root, prefix in self._roots:
            self._recording.names(True, self._model_names(root, prefix))
        self._recording.names(True, self._optimizer_names(self._optimizers))

    def _device(self) -> str:
        kinds = {p.device.type for model in self._models for p in model.parameters()} - {"meta"}
        if len(kinds) == 1:
            return kinds.pop()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return "cuda"
        from . import device

        return "oracle" if device.is_loaded() else "cpu"

    # --- what the hooks tell ------------------------------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(o is optimizer for o in self._optimizers):
            self._optimizers.append(optimizer)
            self._recording.names(False, self._optimizer_names([optimizer]))
        self._recording.optimizer(True)

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self._recording.optimizer(False)
        self._recording.step(True)

    def _loss(self, loss: torch.Tensor) -> None:
        name = "loss" if self._losses == 0 else f"loss.{self._losses}"
        self._losses += 1
        self._recording.loss(name, loss)

    def _loader_used(self) -> None:
        if not self._loader_noted:
            self._loader_noted = True
            self.note("A DataLoader's worker processes made data inside the recording: what ran in them was not seen.")

    def _inductor(self, call: Any) -> Any:
        return self._unseen(call, "Code compiled by inductor ran: its ops were not seen.", INDUCTOR_RAN)

    def _graph(self, call: Any) -> Any:
        return self._unseen(call, "A CUDA graph was replayed: its ops were not seen.", GRAPH_RAN)

    def _unseen(self, call: Any, reason: str, refusal: str) -> Any:
        from . import StepOracleError

        self._recording.incomplete(reason)
        if not self._allow_incomplete:
            raise StepOracleError(refusal)
        self._recording.know_all()
        try:
            return call()
        finally:
            self._recording.doubt_all()
