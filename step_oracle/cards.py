"""Virtual cards: their names and properties, and which one stands behind the device "oracle"."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DEFAULT_CARD = "h100-sxm"


@dataclass(frozen=True)
class Card:
    """What of a card enters the bytes."""

    name: str
    product: str  # as cudaGetDeviceProperties names it
    sms: int  # multiprocessors
    threads_per_sm: int  # most resident threads of a multiprocessor
    compute_capability: str
    source: str  # where the number of multiprocessors comes from


def cards() -> list[Card]:
    """All cards, from the one table the kernels read."""
    from . import device

    return [Card(**row) for row in device.extension().cards()]


def get_card(index: int = -1) -> Card:
    """The card behind ``oracle:<index>``; the current device's for -1."""
    from . import device

    device.ensure_loaded()
    return Card(**device.extension().card(index))


def set_card(name: str, plans: str | os.PathLike[str] | None = None, index: int = 0) -> None:
    """Make ``oracle:<index>`` the card ``name``. Indices are filled in order; another index adds another card.

    Tensors stay where they are: the next kernel computes as the new card does.
    """
    from . import device

    if plans is not None:
        raise NotImplementedError(
            f"set_card(plans={os.fspath(plans)!r}): plan tables are not read yet; leave plans=None, and matrix "
            "products are the fp32 chain of docs/limits.md"
        )
    device.ensure_loaded(first_card=name if index == 0 else None)
    device.extension().set_card(index, name)


@contextlib.contextmanager
def card(name: str, plans: str | os.PathLike[str] | None = None, index: int = 0) -> Iterator[Card]:
    """``with step_oracle.card("l40s"):`` the device computes as that card inside, and as before after it."""
    from . import device

    before: Any = get_card(index).name if device.is_loaded() and index < device.device_count() else None
    set_card(name, plans, index)
    try:
        yield get_card(index)
    finally:
        if before is not None:
            set_card(before, index=index)
