"""A recipe of one recorded step, from a lone trace: its batch stands in the program, its start in a file beside."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch

from step_oracle.choices import Choices
from step_oracle.trace import Trace

from . import digests, document
from .canonical import dump
from .extract import Draft, Extractor, NotAProgram, program
from .settle import refuse_untaken, settled
from .writer import card_block, card_name, compare_state, initial_state, plan_table, switches, used_plans

NO_GENERATOR = {"seed": 0, "offset": 0}  # of a step that draws nothing: a part of the promise, and of no other byte


def write(
    path: str | os.PathLike[str],
    init: str,
    *,
    card: str | None = None,
    plans: str | None = None,
    choices: str | os.PathLike[str] | Choices | None = None,
) -> str:
    """The text of the recipe; the state that the step began from is written to the file ``init``."""
    from .writer import generator_fields

    trace = Trace(path)
    if trace.environment.device not in ("oracle", "cuda"):
        raise NotAProgram(f"{path} was recorded on '{trace.environment.device}', whose arithmetic is not modelled: "
                          'record on device "oracle" or on a card')  # fmt: skip
    draft = Extractor(trace, {}).draft()
    text = dump(program([draft], []))
    blob = digests.of_bytes(text.encode())
    name = card or card_name(trace.environment)
    recipe: dict[str, Any] = {
        "format": document.FORMAT,
        "torch": trace.environment.torch.split("+")[0],
        "libdevice": document.LIBDEVICE,
        "card": card_block(name),
        "class": document.classes(name),
        "plans": plan_table(name, plans),
        "choices": {},
        "switches": switches(trace.environment.switches),
        "corpus": None,
        "sampler": None,
        "init": initial_state(pathlib.Path(init), trace, draft),
        "generator": generator_fields(draft.generator[0]) if draft.generator else NO_GENERATOR,
        "optimizer": {"groups": [], "exceptions": []},
        "programs": [{"first": 0, "blob": blob}],
        "blobs": {blob: document.pack(text)},
        "steps": 1,
        "losses": ["00000000"],
        "promises": [{"step": 0, "state": "0" * 64, "loss": "00000000"}],
    }
    try:
        return settled(recipe, choices, {0: trace}, lambda r: _promised(r, init, draft), plans)
    except BaseException:
        pathlib.Path(init).unlink(missing_ok=True)  # a start without a recipe
        raise


def _promised(recipe: dict[str, Any], init: str, draft: Draft) -> str:
    """Walks the step; where it ends in the recorded loss and state, they are what the recipe promises."""
    from .walk import Walk, card_of, initial

    opened = document.Recipe(dump(recipe))
    with card_of(opened):
        walk = Walk(opened, None, initial(opened, init))
        loss = walk.advance()
        value = torch.frombuffer(bytearray(bytes.fromhex(loss))[::-1], dtype=torch.float32)
        if (found := digests.of_tensor(value.reshape(draft.loss_shape))) != draft.loss_digest:
            raise NotAProgram(f"the walk's loss is {value.item()!r} with the digest {found}, and the recorded one has "
                              f"{draft.loss_digest}: `step-oracle replay` names the first op that differs")  # fmt: skip
        compare_state(walk, draft, 0)
        refuse_untaken(walk)
        state = walk.digest()
        recipe["plans"] = used_plans(recipe["plans"])
    recipe["losses"] = [loss]
    recipe["promises"] = [{"step": 0, "state": state, "loss": loss}]
    text = dump(recipe)
    document.Recipe(text)
    return text
