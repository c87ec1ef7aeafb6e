"""Ctrl-C while the command step-oracle loads its modules, which takes seconds and stands in no try of the command's."""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"step-oracle: interrupted.\n")
    os._exit(130)


def _loading() -> None:
    """A program that imports step_oracle keeps what Python does: only the command ends here."""
    program = sys.argv[0] if sys.argv else ""
    module = program == "-m" and "step_oracle.cli" in sys.orig_argv
    if (module or os.path.basename(program) == "step-oracle") and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _end)


def loaded() -> None:
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_loading()
