"""A recipe's run, walked step by step on the virtual card."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import torch

from step_oracle.choices import at_step

from . import digests, terms
from .canonical import Malformed, dump
from .document import Recipe, classes
from .sampler import Corpus, Sampler

State = dict[str, torch.Tensor]


@contextlib.contextmanager
def card_of(recipe: Recipe) -> Iterator[None]:
    """The recipe's card, plan table and generator at oracle:0; what was there before, after it."""
    from step_oracle import cards, device

    extension = device.extension()
    block = recipe.root.block("card")
    name = block.text("name")
    device.ensure_loaded(first_card=name)
    before, plans_before = cards.get_card(0).name, cards._plans.get(0)
    generator = device.get_rng_state(0)
    cards.set_card(name)
    own = cards.get_card(0)
    for field in ("sms", "threads_per_sm", "compute_capability"):
        if block.get(field) != getattr(own, field):
            raise block.fail(field, f"the {name} has {getattr(own, field)!r}")
    klass = recipe.root.block("class")
    for field, value in classes(name).items():
        if klass.get(field) != value:
            raise klass.fail(field, f"the {name} has '{value}'")
    extension.clear_plans(0)
    plans = recipe.root.get("plans")
    if plans is not None:
        extension.set_plans(0, dump(plans))
    try:
        yield
    finally:
        cards.set_card(before, plans_before)
        device.set_rng_state(generator, 0)


def generator_state() -> str:
    from step_oracle import device

    return bytes(device.get_rng_state(0).tolist()).hex()


def set_generator(state: str) -> None:
    from step_oracle import device

    device.set_rng_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8), 0)


def state_digest(state: State, generator: str) -> str:
    """Over the digests of all tensors in the order of their names' bytes, and the card's generator."""
    lines = []
    for name in sorted(state, key=str.encode):
        t = state[name].detach()
        shape = "x".join(map(str, t.shape))
        lines.append(f"{name}\0{str(t.dtype).removeprefix('torch.')}\0{shape}\0{digests.of_tensor(t)}\n")
    return digests.of_bytes("".join([*lines, f"\0generator\0{generator}\n"]).encode())


def loss_bits(loss: torch.Tensor) -> str:
    if loss.dtype != torch.float32 or loss.numel() != 1:
        raise Malformed(f"the loss is {loss.dtype} of {loss.numel()} elements; recipes hold losses of float32")
    return str(struct.pack(">f", float(loss.detach().cpu().reshape(()))).hex())


def place(t: torch.Tensor, where: dict[str, Any], name: str, path: str) -> torch.Tensor:
    """A copy with a program's geometry, of the tensor ``name`` of the file ``path``."""
    if list(t.shape) != where["shape"]:
        raise ValueError(f"{path} holds '{name}' of {list(t.shape)}, and the recipe's program reads {where['shape']}")
    out = torch.empty_strided(
        tuple(where["shape"]),
        tuple(where["strides"]),
        dtype=t.dtype,
        device="oracle:0" if where["device"] == "card" else "cpu",
    )
    return out.copy_(t)


class Walk:
    """``step``: the next one. ``advance()`` runs it and gives its loss. Inside ``card_of(recipe)``."""

    def __init__(self, recipe: Recipe, corpus: Corpus | None, state: State, step: int = 0) -> None:
        self.recipe, self.state, self.step = recipe, state, step
        root = recipe.root
        self.sampler = Sampler(root.block("sampler"), corpus, step) if corpus else None
        switches = root.block("switches")
        self.switches = {key: switches.text(key) for key in switches}
        optimizer = root.block("optimizer")
        self.groups = optimizer.blocks("groups")
        self.choices_taken: set[str] = set()
        self.functions = terms.Functions([tuple(e) for e in optimizer.get("exceptions")])
        self._use_literals(root)

    @staticmethod
    def _use_literals(root: Any) -> None:
        """Compared with what computes here: by the static checks, and again."""
        for field in ("format", "torch", "libdevice", "choices", "programs", "blobs", "steps"):
            root.get(field)
        for field in ("corpus", "sampler"):
            if root.raw(field) is None:
                root.get(field)
        for p in root.blocks("programs"):
            p.get("first"), p.get("blob")
        for key in root.block("blobs"):
            root.block("blobs").get(key)

    def advance(self) -> str:
        program = self.recipe.program_at(self.step)
        batch = self.sampler.next() if self.sampler else {}
        values = terms.evaluate(program.terms, self.groups, self.step, self.functions)
        given = at_step(self.recipe.choices, self.step)
        rows = [row for row, _ in given]
        self.state, loss, taken = program.run(self.state, batch, values, self.switches, rows)
        self.choices_taken |= {text for (_, text), times in zip(given, taken, strict=True) if times}
        self.step += 1
        return loss_bits(loss)

    def digest(self) -> str:
        return state_digest(self.state, generator_state())


def check_corpus(recipe: Recipe, path: str | None) -> Corpus | None:
    """The corpus, whose digest is the recipe's; None for a recipe without one."""
    if not recipe.has_corpus:
        if path is not None:
            raise ValueError("the recipe holds its batch and names no corpus: leave --corpus out")
        return None
    if path is None:
        raise ValueError("the recipe's batches are cut from a corpus: give its file with --corpus")
    block = recipe.root.block("corpus")
    corpus = Corpus(path)
    if corpus.size != block.integer("bytes"):
        raise ValueError(f"the corpus {path} has {corpus.size} bytes, and the recipe's has {block.integer('bytes')}")
    if corpus.digest != block.digest("blake3"):
        raise ValueError(
            f"the corpus {path} has the digest {corpus.digest}, and the recipe's has {block.digest('blake3')}"
        )
    return corpus


def initial(recipe: Recipe, init: str | None) -> State:
    """The state before step 0, from the recipe's init term; the card's generator is then where step 0 wants it."""
    block = recipe.root.block("init")
    kind = block.text("kind")
    if kind == "state":
        from . import checkpoints

        if init is None:
            raise ValueError("the recipe begins from a state that it names by digest: give its file with --init")
        saved = checkpoints.read(init)
        if (found := state_digest(saved.tensors, "")) != block.digest("state"):
            raise ValueError(f"{init} has the state digest {found}, and the recipe begins from {block.digest('state')}")
        if extra := sorted(set(saved.tensors) - set(recipe.state_places(0))):
            raise ValueError(f"{init} holds the tensor '{extra[0]}', which no program reads: it could say anything")
        state = _placed(recipe, saved.tensors, init)
    elif init is not None:
        raise ValueError("the recipe computes its initial state: leave --init out")
    elif kind == "host draws":
        from step_oracle import initialisation

        drawn = initialisation.tensors(block.block("term").value())
        state = _placed(recipe, drawn, "init.term")
    else:
        if block.get("generator") is not None:
            set_generator(_generator(block.block("generator")))
        switches = {key: recipe.root.block("switches").text(key) for key in recipe.root.block("switches")}
        state, _, _ = recipe.programs[block.digest("blob")].run({}, {}, {}, switches, [])
    set_generator(_generator(recipe.root.block("generator")))
    return state


def _placed(recipe: Recipe, tensors: State, path: str) -> State:
    """What the first program reads."""
    places = recipe.state_places(0)
    if missing := sorted(set(places) - set(tensors)):
        raise ValueError(f"{path} holds no tensor '{missing[0]}'")
    return {name: place(tensors[name], where, name, path) for name, where in places.items()}


def _generator(block: Any) -> str:
    return struct.pack("<QQ", block.integer("seed", 0, (1 << 64) - 1), block.integer("offset", 0, (1 << 64) - 1)).hex()
