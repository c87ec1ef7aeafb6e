"""The document: a run as canonical JSON (docs/recipe-format.md). Reading it checks all that can be known without
computing; a walk then reads every field, and one that nothing reads is an error."""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import os
import pathlib
from typing import Any

import torch

from step_oracle.choices import Choices
from step_oracle.choices import check as check_choices

from . import digests, sampler, terms
from .canonical import MOST_BYTES, Block, Malformed, dump, is_digest, parse

FORMAT = "step-oracle recipe 1"
LIBDEVICE = "CUDA 13.0"  # whose functions csrc/kernels/arith/libdevice.h computes
FIELDS = (
    "format torch libdevice card class plans choices switches corpus sampler init generator optimizer programs blobs "
    "steps losses promises"
)
MOST_STEPS = terms.MOST_STEPS


class Recipe:
    """A recipe whose static checks hold. ``root``: its fields; ``programs``: what walks run, by blob."""

    def __init__(self, text: str | bytes, path: str = "") -> None:
        from step_oracle import device

        device.extension()
        data = text.encode() if isinstance(text, str) else text
        self.path = path
        self.root = Block(parse(data))
        self.digest: str = digests.of_bytes(data.removesuffix(b"\n"))
        self._check()
        self.root.forget_reads()

    # --- static checks ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        r = self.root
        if r.raw("format") != FORMAT:
            raise r.fail("format", f"this version reads '{FORMAT}'")
        if "ddp" in r:
            raise Malformed("the recipe has a ddp block: runs of several ranks are not supported yet")
        r.only(FIELDS)
        ours = str(torch.__version__).split("+")[0]
        if r.raw("torch") != ours:
            raise r.fail("torch", f"this build computes the kernels of torch {ours}")
        if r.raw("libdevice") != LIBDEVICE:
            raise r.fail("libdevice", f"this build computes the functions of libdevice of {LIBDEVICE}")
        self._check_card()
        self._check_switches()
        self.steps = r.integer("steps", 1, MOST_STEPS)
        self._check_choices()
        self._check_inputs()
        self._check_programs()
        self._check_promises()

    def _check_card(self) -> None:
        from step_oracle import cards, device

        card = self.root.block("card")
        card.only("name sms threads_per_sm compute_capability")
        known = {c.name: c for c in cards.cards()}
        if not isinstance(card.raw("name"), str) or card.raw("name") not in known:
            raise card.fail("name", f"give one of {', '.join(known)}")
        own = known[card.raw("name")]
        for field in ("sms", "threads_per_sm", "compute_capability"):
            if card.raw(field) != getattr(own, field) or type(card.raw(field)) is not type(getattr(own, field)):
                raise card.fail(field, f"the {own.name} has {getattr(own, field)!r}")
        self.card = own.name
        klass = self.root.block("class")
        klass.only("float32 tensor_cores")
        for field, value in classes(self.card).items():
            if klass.raw(field) != value:
                raise klass.fail(field, f"the {own.name} has '{value}'")
        plans = self.root.raw("plans")
        if plans is not None:
            canonical = device.extension().format_plan_table(dump(plans))
            if json.loads(canonical) != plans:
                raise Malformed("plans: the plan table is not in its canonical form")
            if plans["card"] != self.card:
                raise Malformed(f"plans: a plan table of {plans['card']}, and the card is {self.card}")
            if plans != bare(plans):
                raise Malformed(f"plans: a recipe's table has {NO_SOURCE}, and rows without a source")

    def _check_switches(self) -> None:
        from step_oracle import device

        switches = self.root.block("switches")
        switches.only(" ".join(device.extension().numeric_switches()))
        for key in switches:
            allowed = ("float32", "float64", "float16", "bfloat16") if key == "default_dtype" else ("True", "False")
            if switches.raw(key) not in allowed:
                raise switches.fail(key, f"give one of {', '.join(allowed)}")

    def _check_choices(self) -> None:
        try:
            own = check_choices(self.root.raw("choices"), "step", "call", "value")
        except ValueError as error:
            raise Malformed(str(error)) from None
        for op, names in own.items():
            for name, entries in names.items():
                if any(e["step"] is not None and e["step"] >= self.steps for e in entries):
                    raise Malformed(f"choices: {op}, {name}: the recipe has the steps 0 to {self.steps - 1}")
        self.choices: Choices = own

    def _check_inputs(self) -> None:
        r = self.root
        if (r.raw("corpus") is None) != (r.raw("sampler") is None):
            raise Malformed("corpus and sampler: give both, or null for both where no program reads a batch")
        self.has_corpus = r.raw("corpus") is not None
        if self.has_corpus:
            corpus = r.block("corpus")
            corpus.only("bytes blake3")
            corpus.integer("bytes", 1)
            corpus.digest("blake3")
            sampler.check(r.block("sampler"))
        init = r.block("init")
        kinds = {"state": "kind state", "card program": "kind blob generator", "host draws": "kind term"}
        if not isinstance(init.raw("kind"), str) or init.raw("kind") not in kinds:
            raise init.fail("kind", f"give one of {', '.join(kinds)}")
        init.only(kinds[init.raw("kind")])
        if init.raw("kind") == "state":
            init.digest("state")
        elif init.raw("kind") == "host draws":
            from step_oracle import initialisation

            initialisation.check(init.block("term").value())
        else:
            init.digest("blob")
            if init.raw("generator") is not None:
                self._check_generator(init, "generator")
        self._check_generator(r, "generator")
        optimizer = r.block("optimizer")
        optimizer.only("groups exceptions")
        for group in optimizer.blocks("groups"):
            group.only("", "schedule " + " ".join(terms.LITERALS))
            for name, (least, most) in terms.LITERALS.items():
                if name in group:
                    group.number(name, least, most)
                    if name in ("beta1", "beta2") and group.raw(name) == 1.0:
                        raise group.fail(name, "give a number below 1.0: a correction divides by 1 - beta ^ t")
            if "schedule" in group:
                terms.check_schedule(group.block("schedule"), self.steps)
        for e in _list(optimizer, "exceptions"):
            if (
                not isinstance(e, list)
                or len(e) != 4
                or e[0] not in ("power", "cosine")
                or not all(isinstance(x, str) and len(x) == 16 and set(x) <= set("0123456789abcdef") for x in e[1:])
            ):
                raise Malformed("optimizer.exceptions: give [function, bits, bits, bits of the result] each")
            self._check_exception(e)

    @staticmethod
    def _check_exception(e: list[str]) -> None:
        """A libm is within an ulp or so: an exception cannot smuggle in another number."""
        a, b, value = (terms.float_of(x) for x in e[1:])
        if e[0] == "power" and not (0 < a < 1 and (b == 0.5 or (b == int(b) and 1 <= b <= MOST_STEPS))):
            raise Malformed("optimizer.exceptions: a power of a number that no term raises")
        if e[0] == "cosine" and not (0 <= a <= 4 and b == 0):
            raise Malformed("optimizer.exceptions: a cosine that no term takes")
        exact = terms.power(a, b) if e[0] == "power" else terms.cosine(a)
        if not abs(value - exact) <= abs(exact) * 2**-52 or value == exact:
            raise Malformed(f"optimizer.exceptions: {e[0]}({a!r}, {b!r}) is {exact!r}, and no libm gives {value!r}")

    @staticmethod
    def _check_generator(block: Block, field: str) -> None:
        g = block.block(field)
        g.only("seed offset")
        for part in ("seed", "offset"):
            g.integer(part, 0, (1 << 64) - 1)
        if g.raw("offset") % 4:
            raise g.fail("offset", "give a multiple of 4")

    def _check_programs(self) -> None:
        r = self.root
        blobs = r.block("blobs")
        self.texts = {key: unpack(key, blobs.raw(key)) for key in blobs}
        self.schedule: list[tuple[int, str]] = []  # from which step on, which blob
        for p in r.blocks("programs", 1):
            p.only("blob first")
            p.digest("blob")
            first = p.integer("first", 0, self.steps - 1)
            if first <= self.schedule[-1][0] if self.schedule else first != 0:
                raise p.fail("first", "programs begin at step 0, and each later than the one before")
            self.schedule.append((first, p.raw("blob")))
        self.init_blob = r.block("init").raw("blob")
        wanted = {b for _, b in self.schedule} | ({self.init_blob} if self.init_blob else set())
        for key in sorted(wanted ^ set(self.texts)):
            raise Malformed(f"blobs: {key} is {'not there' if key in wanted else 'of no program'}")
        self.programs = {key: program(text) for key, text in self.texts.items()}
        self._check_flow()

    def _check_flow(self) -> None:
        """What a program reads, the one before it hands on; terms and batches are the recipe's."""
        state: dict[str, Any] | None = None
        if self.init_blob:
            first = self.programs[self.init_blob]
            if first.state_in or first.batch or first.terms or first.has_loss:
                raise Malformed("init: its program reads state, a batch or a term, or has a loss")
            if first.draws != (self.root.block("init").raw("generator") is not None):
                raise Malformed("init.generator: given without a draw, or missing")
            state = first.state_out
        shape, micro = [], 0
        if self.has_corpus:
            size = self.root.block("sampler")
            shape, micro = [size.raw("batch"), size.raw("context")], int(size.raw("micro"))
        names = {f"{n}.{i}" for n in "xy" for i in range(micro)}
        for name in sorted({n for p in self.programs.values() for n in (*p.state_in, *p.state_out)}):
            if any(c < " " or c == "\x7f" for c in name):
                raise Malformed(f"the state has the name {name!r}: control characters would make its digest ambiguous")
        for at, (_, blob) in enumerate(self.schedule):
            p = self.programs[blob]
            if not p.has_loss:
                raise Malformed(f"programs[{at}] has no loss")
            if state is not None:
                for name, place in p.state_in.items():
                    if state.get(name) != place:
                        raise Malformed(
                            f"programs[{at}] reads the state '{name}' as {place}, and before it stands "
                            f"{state.get(name)}"
                        )
                if set(p.state_in) - set(p.state_out):
                    raise Malformed(f"programs[{at}] does not hand on {sorted(set(p.state_in) - set(p.state_out))[0]}")
                for name in sorted(set(state) - set(p.state_in)):
                    raise Malformed(f"programs[{at}] loses the state '{name}'")
            if set(p.batch) != names or any(b["shape"] != shape or b["dtype"] != "int64" for b in p.batch.values()):
                gives = f"the sampler gives {sorted(names)} of {shape}" if names else "there is no sampler"
                raise Malformed(
                    f"programs[{at}] reads the batches {sorted(p.batch)} of {[b['shape'] for b in p.batch.values()]}, "
                    f"and {gives}"
                )
            state = p.state_out
        last = self.programs[self.schedule[-1][1]]
        if last.state_in != last.state_out and self.schedule[-1][0] != self.steps - 1:
            raise Malformed("the last program does not hand on the state that it reads, so that it cannot run again")
        groups = self.root.block("optimizer").blocks("groups")
        for _, blob in self.schedule:
            terms.evaluate(self.programs[blob].terms, groups, 0, terms.Functions())
        needed = terms.groups_of(key for _, blob in self.schedule for key in self.programs[blob].terms)
        if len(groups) > needed:
            raise Malformed(
                f"optimizer.groups has {len(groups)} groups, and the programs' terms name {needed}: leave out those "
                "that decide nothing"
            )

    def _check_promises(self) -> None:
        r = self.root
        self.losses: list[str] = _list(r, "losses")
        if len(self.losses) != self.steps or not all(is_bits(x) for x in self.losses):
            raise Malformed(f"losses: give the bits of {self.steps} losses, 8 hexadecimal digits each")
        self.promises: dict[int, str] = {}  # after step -> state digest
        last = -1
        for p in r.blocks("promises", 1):
            p.only("step state loss")
            step = p.integer("step", last + 1, self.steps - 1)
            self.promises[step] = p.digest("state")
            if p.raw("loss") != self.losses[step]:
                raise p.fail("loss", f"losses[{step}] is {self.losses[step]}")
            last = step

    # --- for a walk -------------------------------------------------------------------------------------------------

    def program_at(self, step: int) -> Any:
        return self.programs[[blob for first, blob in self.schedule if first <= step][-1]]

    def state_places(self, step: int) -> dict[str, Any]:
        """Geometry of the state before a step, by name."""
        places: dict[str, Any] = (
            self.program_at(step - 1).state_out if step else self.programs[self.schedule[0][1]].state_in
        )
        return places


NO_SOURCE = {"library": "any", "source": "this recipe"}


def bare(plans: dict[str, Any]) -> dict[str, Any]:
    """A plan table without the texts that decide nothing."""
    rows = [{k: v for k, v in row.items() if k != "source"} for row in plans["rows"]]
    return {**plans, **NO_SOURCE, "rows": rows}


def classes(card: str) -> dict[str, str]:
    from step_oracle import device

    return {"float32": "one FMA chain, k ascending", "tensor_cores": device.extension().adder_class(card)}


def is_bits(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 8 and set(value) <= set("0123456789abcdef")


def _list(block: Block, field: str) -> list[Any]:
    value = block.raw(field)
    if not isinstance(value, list):
        raise block.fail(field, "give a list")
    return value


def program(text: str) -> Any:
    from step_oracle import device

    return device.extension().Program(text)


def pack(text: str) -> str:
    return base64.b64encode(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)).decode()


def unpack(key: str, packed: Any) -> str:
    """A blob's text; its key is the text's digest."""

    if not is_digest(key):
        raise Malformed(f"blobs: the key '{key[:80]}' is no digest")
    if not isinstance(packed, str):
        raise Malformed(f"blobs.{key} is no text")
    try:
        data = base64.b64decode(packed, validate=True)
        if base64.b64encode(data).decode() != packed:
            raise Malformed(f"blobs.{key} is not canonical base64")
        unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=256 << 20)
        out = unpacker.decompress(data, max_length=MOST_BYTES)
    except (lzma.LZMAError, binascii.Error, ValueError) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed(f"blobs.{key} does not unpack: {error}") from None
    if not unpacker.eof or unpacker.unused_data:
        raise Malformed(f"blobs.{key} is cut, too long, or has bytes behind its end")
    if digests.of_bytes(out) != key:
        raise Malformed(f"blobs.{key}: its bytes have another digest: they were changed")
    dumped = dump(parse(out, f"blobs.{key}"))
    if dumped.encode() != out:
        raise Malformed(f"blobs.{key} is not in its canonical form")
    return dumped


def load(path: str | os.PathLike[str]) -> Recipe:
    size = os.path.getsize(path)
    if size > MOST_BYTES:
        raise Malformed(f"{os.fspath(path)} has {size} bytes, and a recipe has at most {MOST_BYTES}")
    data = pathlib.Path(path).read_bytes()
    try:
        if not data.endswith(b"\n"):
            raise Malformed("it is not in its canonical form: no line feed at its end")
        return Recipe(data, os.fspath(path))
    except Malformed as error:
        raise Malformed(f"{os.fspath(path)}: {error}") from None


__all__ = ["FORMAT", "LIBDEVICE", "Recipe", "classes", "is_digest", "load", "pack", "program", "unpack"]
