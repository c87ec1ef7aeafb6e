"""The seventeen edits that "The step oracle" reports (sections 4, 5.15, 5.22), on this suite's run."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from mutations import changed_ops, other_digit, repacked

from step_oracle.recipe import document
from step_oracle.recipe.canonical import dump

Edit = tuple[str, str, bytes]  # name, recipe, corpus


def with_field(recipe: dict[str, Any], *path_and_value: Any) -> str:
    out = copy.deepcopy(recipe)
    at = out
    for key in path_and_value[:-2]:
        at = at[key]
    at[path_and_value[-2]] = path_and_value[-1]
    return dump(out)


def edits(recipe: dict[str, Any], corpus: bytes) -> Iterator[Edit]:
    text, steady = dump(recipe), recipe["programs"][-1]["blob"]
    program = json.loads(document.unpack(steady, recipe["blobs"][steady]))
    ops = program["ops"]
    middle = len(ops) // 2
    yield "a corpus byte", text, corpus[:99] + bytes([corpus[99] ^ 1]) + corpus[100:]
    yield "a corpus byte at the end", text, corpus[:-1] + bytes([corpus[-1] ^ 1])
    blobs = recipe["blobs"] | {steady: document.pack(dump(changed_ops(program, ops[:middle] + ops[middle + 1 :])))}
    yield "a deleted op", dump(recipe | {"blobs": blobs}), corpus
    yield (
        "a deleted op, its digest put right",
        repacked(recipe, steady, changed_ops(program, ops[:middle] + ops[middle + 1 :])),
        corpus,
    )
    yield (
        "an op at another place",
        repacked(recipe, steady, changed_ops(program, [*ops[:-2], ops[-1], ops[-2]])),
        corpus,
    )
    yield "a contraction index", with_field(recipe, "choices", {"gelu_backward": 3}), corpus
    yield "a split-K chunk", with_field(recipe, "plans", "rows", 0, "plan", "width", 24), corpus
    yield "a plan row gone", dump(recipe | {"plans": None}), corpus
    yield "a plan row more", dump(recipe | {"plans": more_rows(recipe["plans"])}), corpus
    yield "the initialisation's generator", with_field(recipe, "init", "generator", "seed", 1), corpus
    yield "the initialisation's program", init_range(recipe), corpus
    state = recipe["promises"][0]["state"]
    yield "a promise", with_field(recipe, "promises", 0, "state", other_digit(state[0]) + state[1:]), corpus
    yield "the SM count", with_field(recipe, "card", "sms", 108), corpus
    yield "the threads of a multiprocessor", with_field(recipe, "card", "threads_per_sm", 1024), corpus
    yield "the learning rate", with_field(recipe, "optimizer", "groups", 0, "schedule", "lr", 1.1e-3), corpus
    yield "beta2", with_field(recipe, "optimizer", "groups", 0, "beta2", 0.99), corpus
    yield "another card of the same numbers of threads", swapped_card(recipe), corpus


def more_rows(plans: dict[str, Any]) -> dict[str, Any]:
    extra = copy.deepcopy(plans["rows"][0]) | {"m": 417}
    return plans | {"rows": [*plans["rows"], extra]}


def init_range(recipe: dict[str, Any]) -> str:
    """The host's path that drew the weights is this run's program on the card: its first spread by some ulps."""
    key = recipe["init"]["blob"]
    program = json.loads(document.unpack(key, recipe["blobs"][key]))
    op = next(o for o in program["ops"] if o[0] == "aten::normal_")
    op[2][2] *= 1 + 2**-22
    return repacked(recipe, key, program)


def swapped_card(recipe: dict[str, Any]) -> str:
    from step_oracle.cards import cards

    other = next(c for c in cards() if c.name == "a100-sxm-80gb")
    plans = recipe["plans"] | {"card": other.name}
    card = {
        "name": other.name,
        "sms": other.sms,
        "threads_per_sm": other.threads_per_sm,
        "compute_capability": other.compute_capability,
    }
    return dump(recipe | {"card": card, "plans": plans, "class": document.classes(other.name)})
