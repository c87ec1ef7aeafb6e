"""Virtual cards: their names and properties, and which one stands behind the device "oracle"."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

DEFAULT_CARD = "h100-sxm"
PINNED = "pinned"  # as a plan table: every matrix product is a single pass

_plans: dict[int, str | os.PathLike[str] | None] = {}  # what set_card was given, by index


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


def find_cards(name: str) -> list[Card]:
    """The card of a name, or those whose names it begins ("a100-pcie": a100-pcie-40gb and a100-pcie-80gb)."""
    known = cards()
    found = [card for card in known if card.name == name] or [c for c in known if c.name.startswith(f"{name}-")]
    if not found:
        raise ValueError(f"there is no card '{name}'; give one of: {', '.join(card.name for card in known)}")
    return found


def find_card(name: str) -> Card:
    """The one card of a name."""
    found = find_cards(name)
    if len(found) > 1:
        raise ValueError(f"'{name}' may be {' or '.join(card.name for card in found)}; give one of them")
    return found[0]


def get_card(index: int = -1) -> Card:
    """The card behind ``oracle:<index>``; the current device's for -1."""
    from . import device

    device.ensure_loaded()
    return Card(**device.extension().card(index))


def set_card(name: str, plans: str | os.PathLike[str] | None = None, index: int = 0) -> None:
    """Make ``oracle:<index>`` the card ``name``. Indices are filled in order; another index adds another card.

    ``plans`` is the path of a plan table of that card (docs/plan-table.md), or "pinned": every matrix product is a
    single pass, because the program forces it; without one, the table that comes with step-oracle, where there is one.
    Tensors stay where they are: the next kernel computes as the new card does.
    """
    from . import device

    text = plan_text(plans, name) if plans is not None else shipped_plans(name)
    extension = device.extension()
    if text is not None and (card_of_table := extension.plan_table(text)["card"]) != name:
        raise ValueError(f"{plans} is a plan table of {card_of_table}, not of {name}; give a table of this card")
    device.ensure_loaded(first_card=name if index == 0 else None)
    extension.set_card(index, name)
    extension.clear_plans(index)
    if text is not None:
        extension.set_plans(index, text)
    _plans[index] = plans


PLAN_FOLDER = pathlib.Path(__file__).parent / "data" / "plans"


def shipped_plans(name: str) -> str | None:
    """The text of the plan table that comes with step-oracle for a card."""
    path = PLAN_FOLDER / f"{name}.json"
    return path.read_text() if path.exists() else None


def plan_text(plans: str | os.PathLike[str], card: str) -> str:
    """The text of a plan table: of a file's, or of the pinned one, which has no rows."""
    from . import plan_table

    if plans == PINNED:
        table = {"format": "step-oracle plan table 1", "card": card, "library": "any",
                 "source": "the program forces the single pass (docs/plan-table.md, The pinned arm)",
                 "otherwise": "pinned", "rows": []}
        return json.dumps(table)
    return plan_table.read(plans)


@contextlib.contextmanager
def card(name: str, plans: str | os.PathLike[str] | None = None, index: int = 0) -> Iterator[Card]:
    """``with step_oracle.card("l40s"):`` the device computes as that card inside, and as before after it."""
    from . import device

    before = get_card(index).name if index < device.device_count() else None
    plans_before = _plans.get(index)
    set_card(name, plans, index)
    try:
        yield get_card(index)
    finally:
        if before is not None:
            set_card(before, plans_before, index)
