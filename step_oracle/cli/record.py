"""step-oracle record: a step of an unmodified script, recorded."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from .command import DIFFERENT, SAME, Refused, add_command, print_json


def register(subparsers: Any) -> None:
    p = add_command(subparsers, "record", "record a training step of an unmodified script", run,
                    example="step-oracle record --step 3 -o step.trace train.py --batch 12")
    p.add_argument("--step", type=int, default=1, metavar="N",
                   help="which step: one ends where an optimizer's step() ends; 0 begins with the script (default: 1)")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="the trace")
    p.add_argument("--keep", choices=("digests", "state", "all"), default="digests",
                   help="bytes kept besides digests: what a replay needs (state), results too (all)")
    p.add_argument("--run-on", action="store_true", help="let the script run to its end; else it stops after the step")
    p.add_argument("--allow-incomplete", action="store_true",
                   help="go on where ops cannot be seen (inductor): the trace says that it is not complete")
    p.add_argument("script", help="a Python script")
    p.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


class StepIsDone(BaseException):
    """Unwinds the script once its step is recorded."""


class StepRecorder:
    """Counts the steps of a script, and records one."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.steps = 0
        self.recorder: Any = None
        self.done = False
        self._optimizers: list[Any] = []
        self._modules: dict[int, Any] = {}

    def _start(self) -> None:
        from step_oracle.record import record

        recorder = record(self._args.output, self._args.keep, model=self._roots(), optimizer=self._optimizers,
                          allow_incomplete=self._args.allow_incomplete, watch_optimizers=False)
        recorder.__enter__()
        self.recorder = recorder

    def finish(self, error: BaseException | None) -> None:
        """The script ended; the step may still be open."""
        if self.recorder is not None and not self.done:
            self.done = True
            self.recorder.__exit__(None if error is None else type(error), error, None)

    def _roots(self) -> list[Any]:
        """The outermost of the modules that ran so far."""
        inner = {id(c) for m in self._modules.values() for c in m.modules() if c is not m}
        return [m for key, m in self._modules.items() if key not in inner and any(True for _ in m.parameters())]

    def _module_runs(self, module: Any, args: Any) -> None:
        import torch

        if self.recorder is None and not torch.compiler.is_compiling():
            self._modules.setdefault(id(module), module)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not any(o is optimizer for o in self._optimizers):
            self._optimizers.append(optimizer)
        if self.recorder is not None and not self.done:
            self.recorder.step_begins(optimizer)

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.recorder is not None and not self.done:
            self.recorder.step_ends(optimizer)
            self.finish(None)
            if not self._args.run_on:
                raise StepIsDone
        elif self.recorder is None and self.steps == self._args.step:
            self._start()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        handles = [register_optimizer_step_pre_hook(self._step_begins),
                   register_optimizer_step_post_hook(self._step_ends),
                   register_module_forward_pre_hook(self._module_runs)]
        try:
            if self._args.step == 0:
                self._start()
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextlib.contextmanager
def as_main(script: str, arguments: list[str]) -> Iterator[None]:
    """sys.argv and sys.path as Python sets them for a script."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def check_output(path: str) -> None:
    """Refuses at once what would else be refused after all the steps before the recorded one."""
    folder = os.path.dirname(path) or "."
    if not path or os.path.isdir(path):
        raise Refused(f"-o {path!r} is no file: give the path of the trace to write")
    if not os.path.isdir(folder):
        raise Refused(f"-o {path!r}: there is no folder {folder!r}: make it, or give another path")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise Refused(f"-o {path!r} cannot be written: check its permissions, or give another path")


def line_of(script: str, error: BaseException) -> str:
    """Where in the script an error came from."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == script]
    return f", line {lines[-1]}," if lines else ""


def run(args: argparse.Namespace) -> int:
    from step_oracle import StepOracleError

    if args.step < 0:
        raise Refused(f"--step {args.step}: steps are counted from 0")
    if not os.path.isfile(args.script):
        raise Refused(f"there is no script {args.script!r}: give the path of a Python file")
    check_output(args.output)
    recorder = StepRecorder(args)
    code: object = None
    with as_main(args.script, args.arguments), recorder.watching():
        try:
            runpy.run_path(args.script, run_name="__main__")
        except StepIsDone:
            pass
        except SystemExit as leaving:
            code = leaving.code
        except BaseException as error:
            recorder.finish(error)
            if isinstance(error, (ValueError, NotImplementedError, StepOracleError, OSError)):
                raise  # perhaps the recorder's; a sentence in any case
            if not isinstance(error, Exception):
                raise
            raise Refused(f"{args.script}{line_of(args.script, error)} raised {type(error).__name__}: {error} "
                          "(step-oracle record --debug prints the traceback)") from error
        recorder.finish(None)
    if recorder.recorder is None and code not in (None, 0):
        raise Refused(f"{args.script} left with {code!r} after {recorder.steps} steps, before step {args.step} began: "
                      "see whether it runs without the recorder")
    if recorder.recorder is None:
        raise Refused(f"{args.script} made {recorder.steps} steps, so there is no step {args.step} to record: give a "
                      f"--step from 0 to {max(0, recorder.steps - 1)}")
    return report(args, recorder, code)


def report(args: argparse.Namespace, recorder: StepRecorder, code: object) -> int:
    s = recorder.recorder.summary()
    whole = recorder.steps > args.step
    out = {"output": args.output, "step": args.step, "whole_step": whole, **s}
    if args.json:
        print_json(out)
    else:
        print(f"{args.output}: step {args.step}, {s['ops']} ops, {s['digests']} digests of "
              f"{s['bytes_digested'] / 1e6:.1f} MB in {s['seconds']:.3f} s ({s['slow_down']:.2f} times bare), "
              f"{s['file_bytes'] / 1e6:.2f} MB on disk")
        if not whole:
            print("the script ended before an optimizer's step did: what ran is recorded")
        if not s["complete"]:
            print(f"not complete: {s['reason']}")
    return SAME if s["complete"] and code in (None, 0) else DIFFERENT
