"""The command step-oracle. Each subcommand is a module of this package with ``register(subparsers)``."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback

from .command import REFUSED, Parser, Refused, one_line

# In the order of --help.
COMMANDS = ("demo", "doctor", "cards", "record", "replay", "diff", "trace", "plan", "lint", "recipe", "identify")


def parser() -> Parser:
    from step_oracle import __version__

    top = Parser(prog="step-oracle",
                 description="The bytes of a PyTorch training step on a given NVIDIA card, computed and verified on a "
                             "CPU.",
                 epilog="Exit status: 0 equal or verified, 1 different or failed, 2 refused or bad input.")
    top.add_argument("--version", action="version", version=f"step-oracle {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        importlib.import_module(f"{__name__}.{name}").register(subparsers)
    return top


def main(argv: list[str] | None = None) -> int:
    from step_oracle import StepOracleError, _interrupt, plans

    args = parser().parse_args(argv)
    if args.command != "record":  # a live run; the reports of the others say what was assumed
        plans.quiet()
    code: int | None = None
    try:
        _interrupt.loaded()
        code = args.run(args)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone; what was found still is the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE if code is None else code
    except KeyboardInterrupt:
        print("step-oracle: interrupted.", file=sys.stderr)
        return 130
    except (Refused, ValueError, NotImplementedError, StepOracleError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        print(f"step-oracle: {one_line(error)}", file=sys.stderr)
        return REFUSED
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        print(f"step-oracle: internal error, {type(error).__name__}: {one_line(error)}. Run it again with --debug for "
              "the traceback.", file=sys.stderr)
        return REFUSED
