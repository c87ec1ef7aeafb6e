"""The bytes of a PyTorch training step on a given NVIDIA card, computed on a CPU."""

from . import _interrupt as _interrupt  # first: torch takes seconds

# isort: split
import torch as _torch

from . import _ops, plans
from . import device as _device
from .cards import Card, card, get_card, set_card
from .choices import choices
from .record import record
from .replay import Divergence, ReplayReport, replay
from .trace import Trace, diff, load

__version__ = "0.1.0"
__all__ = [
    "Card",
    "Divergence",
    "ReplayReport",
    "StepOracleError",
    "Trace",
    "card",
    "choices",
    "diff",
    "get_card",
    "load",
    "plans",
    "record",
    "replay",
    "set_card",
]


class StepOracleError(RuntimeError):
    """A file that does not say what it should, a failing system call, or a fault of step-oracle's."""


if _torch.cuda.device_count() == 0:
    _device.register_name()
_ops.install()
