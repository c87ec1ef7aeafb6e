"""A recipe from a run's folder: programs are found in the recorded steps, and walked to see that they are right."""

from __future__ import annotations

import json
import os
import pathlib
import struct
from typing import Any

import torch

from step_oracle import initialisation
from step_oracle.choices import Choices
from step_oracle.trace import Trace

from . import digests, document, terms
from . import sampler as samplers
from .canonical import Block, Malformed, dump
from .extract import Draft, Extractor, NotAProgram, named_state, program, split_name
from .runs import FORMAT as RUN_FORMAT
from .sampler import Corpus, Sampler
from .settle import refuse_untaken, settled
from .walk import Walk, card_of, check_corpus, generator_state, initial, state_digest


def write(
    folder: str | os.PathLike[str],
    corpus: str,
    *,
    card: str | None = None,
    plans: str | None = None,
    choices: str | os.PathLike[str] | Choices | None = None,
) -> str:
    """The text of the recipe of a run folder (step_oracle.recipe.Run, or `recipe write --help`).

    ``choices``: what kernels left open in every step (a file of `step-oracle replay --save-choices`, or the object);
    without them, what replays of the recorded steps find, the last one's for all later steps.
    """
    where = pathlib.Path(folder)
    about = _about(where)
    text = Corpus(corpus)
    if {"bytes": text.size, "blake3": text.digest} != about["corpus"]:
        raise ValueError(f"{corpus} is not the corpus of the run: its digest is {text.digest}")
    traces = {n: Trace(where / f"step-{n}.trace") for n in about["recorded"]}
    if 0 not in traces:
        raise ValueError(f"{where} has no recording of step 0")
    drafts = _drafts(traces, about, text)
    functions = terms.HostFunctions()
    groups = [Block(g, "group") for g in about["groups"]]
    values = {n: terms.candidates(groups, n, functions) for n in traces}
    programs, blobs = _programs(drafts, values)
    environment = traces[0].environment
    name = card or card_name(environment)
    init, init_text = _init(where, about, traces[0], drafts[0])
    if init_text is not None:
        blobs[init["blob"]] = init_text
    for group in about["groups"]:
        if group["schedule"]["kind"] == "table":  # a run may stop before its table does
            group["schedule"]["lr"] = group["schedule"]["lr"][: len(about["losses"])]
    used = _groups(about["groups"], {k for t in blobs.values() for k in document.program(t).terms})
    recipe: dict[str, Any] = {
        "format": document.FORMAT,
        "torch": environment.torch.split("+")[0],
        "libdevice": document.LIBDEVICE,
        "card": card_block(name),
        "class": document.classes(name),
        "plans": plan_table(name, plans),
        "choices": {},
        "switches": switches(environment.switches),
        "corpus": about["corpus"],
        "sampler": about["sampler"],
        "init": init,
        "generator": generator_fields(about["generator"]),
        "optimizer": {"groups": used, "exceptions": _exceptions(used, blobs, programs, len(about["losses"]))},
        "programs": programs,
        "blobs": {k: document.pack(t) for k, t in blobs.items()},
        "steps": len(about["losses"]),
        "losses": about["losses"],
        "promises": [
            {"step": int(n), "state": about["states"][n], "loss": about["losses"][int(n)]}
            for n in sorted(about["states"], key=int)
        ],
    }
    return settled(recipe, choices, traces, lambda r: _checked(r, corpus, drafts, where), plans)


def _about(folder: pathlib.Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run.json: record the run with step_oracle.recipe.Run") from None
    except ValueError as error:
        raise ValueError(f"{folder}/run.json is not JSON: {error}") from None
    if not isinstance(about, dict) or about.get("format") != RUN_FORMAT:
        raise ValueError(f"{folder}/run.json is no run of this version ('{RUN_FORMAT}')")
    try:
        _check_about(Block(about))
    except Malformed as error:
        raise ValueError(f"{folder}/run.json: {error}") from None
    return about


def _check_about(about: Block) -> None:
    about.only("format corpus sampler init generator losses states groups recorded")
    corpus = about.block("corpus")
    corpus.only("bytes blake3")
    corpus.integer("bytes", 1)
    corpus.digest("blake3")
    samplers.check(about.block("sampler"))
    _check_state(about, "generator")
    losses, recorded, groups = (about.raw(f) for f in ("losses", "recorded", "groups"))
    if not isinstance(losses, list) or not losses or not all(document.is_bits(x) for x in losses):
        raise about.fail("losses", "give the bits of each step's loss, of one step at least")
    steps = {str(n) for n in range(len(losses))}
    states = about.block("states")
    for step in states:
        if step not in steps:
            raise Malformed(f"states has the step '{step[:40]}', and the run has the steps 0 to {len(losses) - 1}")
        states.digest(step)
    if not list(states):
        raise about.fail("states", "give the state after one step at least: a recipe needs a promise")
    whole = isinstance(recorded, list) and all(type(n) is int and 0 <= n < len(losses) for n in recorded)
    if not whole or not recorded:
        raise about.fail("recorded", f"give steps from 0 to {len(losses) - 1}")
    if not isinstance(groups, list) or not groups:
        raise about.fail("groups", "give the optimizer's groups")
    for group in about.blocks("groups"):
        group.only("schedule", " ".join(terms.LITERALS))
        for name, (least, most) in terms.LITERALS.items():
            if name in group:
                group.number(name, least, most)
        schedule = group.block("schedule")
        table = schedule.raw("lr")
        terms.check_schedule(schedule, len(table) if isinstance(table, list) else len(losses))
        if isinstance(table, list) and len(table) < len(losses):
            raise schedule.fail("lr", f"give the learning rate of each of the {len(losses)} steps")
    init = about.raw("init")
    if init is not None:
        block = about.block("init")
        block.only("term" if "term" in block else "generator")
        if "term" in block:
            initialisation.check(block.block("term").value())
        else:
            _check_state(block, "generator")


def _check_state(block: Block, field: str) -> None:
    value = block.raw(field)
    if not isinstance(value, str) or len(value) != 32 or set(value) - set("0123456789abcdef"):
        raise block.fail(field, "give the card's generator: 32 hexadecimal digits")


def _drafts(traces: dict[int, Trace], about: dict[str, Any], corpus: Corpus) -> dict[int, Draft]:

    sampler = Sampler(Block(about["sampler"], "sampler"), corpus)
    out = {}
    for step in range(max(traces) + 1):
        batch = sampler.next()
        if step in traces:
            names = {digests.of_tensor(t): (name, list(t.shape)) for name, t in batch.items()}
            out[step] = Extractor(traces[step], names, traces.values()).draft()
    for a, b in zip(sorted(out), sorted(out)[1:], strict=False):
        before, after = out[a].generator, out[b].generator
        if b == a + 1 and before and after and before[1] != after[0]:
            raise NotAProgram(f"the card's generator was set between step {a} and step {b}")
    return out


def _programs(
    drafts: dict[int, Draft], values: dict[int, dict[str, float]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One program for each stretch of alike steps."""
    stretches: list[list[int]] = []
    for step in sorted(drafts):
        if stretches and drafts[step].shape() == drafts[stretches[-1][0]].shape():
            stretches[-1].append(step)
        elif stretches and step != stretches[-1][-1] + 1:
            raise NotAProgram(
                f"the recorded steps {stretches[-1][-1]} and {step} are of two programs, and which steps between "
                "them are of which is not known: record the steps between"
            )
        else:
            stretches.append([step])
    if len(stretches[-1]) < 2:
        raise NotAProgram(
            f"step {stretches[-1][0]} is the only recording of the last program: record two alike steps at least, "
            "so that the numbers that change are found"
        )

    programs, blobs = [], {}
    for steps in stretches:
        text = dump(program([drafts[n] for n in steps], [values[n] for n in steps]))
        key = digests.of_bytes(text.encode())
        programs.append({"first": steps[0], "blob": key})
        blobs[key] = text
    return programs, blobs


def card_name(environment: Any) -> str:
    from step_oracle.cards import cards

    recorded = environment.cards[0]
    for c in cards():
        if recorded.name in (c.name, c.product) and (recorded.sms, recorded.threads_per_sm) == (
            c.sms,
            c.threads_per_sm,
        ):
            return c.name
    raise ValueError(
        f"the run's card '{recorded.name}' ({recorded.sms} multiprocessors) is none of `step-oracle cards`: give --card"
    )


def card_block(name: str) -> dict[str, Any]:
    from step_oracle.cards import cards

    c = next((c for c in cards() if c.name == name), None)
    if c is None:
        raise ValueError(f"there is no card '{name}'; give one of {', '.join(c.name for c in cards())}")
    return {
        "name": c.name,
        "sms": c.sms,
        "threads_per_sm": c.threads_per_sm,
        "compute_capability": c.compute_capability,
    }


def plan_table(card: str, path: str | None) -> Any:
    """The card's table, whole; the rows that the run takes are found by the walk."""
    from step_oracle import device
    from step_oracle.cards import plan_text, shipped_plans

    text = plan_text(path, card) if path else shipped_plans(card)
    return None if text is None else document.bare(json.loads(device.extension().format_plan_table(text)))


def switches(recorded: dict[str, str]) -> dict[str, str]:
    from step_oracle import device

    out = {}
    for key in device.extension().numeric_switches():
        value = str(recorded.get(key, ""))
        out[key] = "True" if value.startswith(("True", "(True")) else value if key == "default_dtype" else "False"
    return out


def generator_fields(state: str) -> dict[str, int]:
    seed, offset = struct.unpack("<QQ", bytes.fromhex(state))
    return {"seed": seed, "offset": offset}


def _groups(groups: list[dict[str, Any]], used: set[str]) -> list[dict[str, Any]]:
    """Only the groups and literals that a term of the programs needs."""
    out = []
    for i, group in enumerate(groups[: terms.groups_of(used)]):
        block = Block(group, f"optimizer.groups[{i}]")
        for key in used:
            if key.endswith(f"@{i}"):
                terms.evaluate([key.replace(f"@{i}", "@0")], [block], 0, terms.Functions())
        out.append(
            {
                k: v
                for k, v in group.items()
                if k not in block.unread() and f"optimizer.groups[{i}].{k}" not in block.unread()
            }
        )
    return out


def _exceptions(
    groups: list[dict[str, Any]], blobs: dict[str, str], programs: list[dict[str, Any]], steps: int
) -> list[list[str]]:
    host = terms.HostFunctions()
    blocks = [Block(g, "group") for g in groups]
    needed = [(p["first"], document.program(blobs[p["blob"]]).terms) for p in programs]
    for step in range(steps):
        terms.evaluate([keys for first, keys in needed if first <= step][-1], blocks, step, host)
    return [[*key, value] for key, value in sorted(host.exceptions.items())]


def _init(folder: pathlib.Path, about: dict[str, Any], first: Trace, draft: Draft) -> tuple[dict[str, Any], str | None]:
    if about["init"] is None:
        return initial_state(folder / "init.safetensors", first, draft), None
    if "term" in about["init"]:
        return {"kind": "host draws", "term": about["init"]["term"]}, None

    trace = Trace(folder / "init.trace")
    drafted = Extractor(trace, {}).draft(loss=False)
    wanted = {s.name for s in draft.slots if s.kind == "state"}
    if wanted - set(drafted.state):
        raise NotAProgram(
            f"step 0 reads the state '{sorted(wanted - set(drafted.state))[0]}', which the model's making did not give"
        )
    drafted.state = {n: use for n, use in drafted.state.items() if n in wanted}
    text = dump(program([drafted], []))
    key = digests.of_bytes(text.encode())
    return {
        "kind": "card program",
        "blob": key,
        "generator": generator_fields(about["init"]["generator"]) if drafted.generator else None,
    }, text


def initial_state(out: pathlib.Path, first: Trace, draft: Draft) -> dict[str, Any]:
    """The state that step 0 began from, as bytes in the file ``out``; the recipe names it by digest."""
    from . import checkpoints

    state = {}
    for name, t in named_state(first.names, ("parameter", "buffer", "optimizer", "gradient")).items():
        if not any(s.kind == "state" and s.name == name for s in draft.slots):
            continue
        if not t.before or not first.has_blob(t.before):
            raise ValueError(
                f"the recording of step 0 does not keep the bytes of '{name}': record it with keep='state', or "
                "make the model with Run.build()"
            )
        raw = bytearray(first.blob(t.before))
        dtype = getattr(torch, t.dtype)
        state[name] = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(t.shape)
    checkpoints.write(out, state, step=None, generator="", loss="")
    return {"kind": "state", "state": state_digest(state, "")}


def _checked(recipe: dict[str, Any], corpus: str, drafts: dict[int, Draft], folder: pathlib.Path) -> str:
    """Walks the recorded steps; each must end in the recorded state. Of the plan table, rows that were taken stay."""
    init = str(folder / "init.safetensors") if recipe["init"]["kind"] == "state" else None
    opened = document.Recipe(dump(recipe))
    with card_of(opened):
        walk = Walk(opened, check_corpus(opened, corpus), initial(opened, init))
        for step in range(max(drafts) + 1):
            loss = walk.advance()
            if loss != recipe["losses"][step]:
                raise NotAProgram(f"the walk's loss of step {step} is {loss}, and the run's {recipe['losses'][step]}")
            if step in opened.promises and (found := walk.digest()) != opened.promises[step]:
                raise NotAProgram(
                    f"after step {step} the walk has the state {found}, and run.json promises {opened.promises[step]}"
                )
            if step not in drafts:
                continue
            compare_state(walk, drafts[step], step)
        refuse_untaken(walk)
        recipe["plans"] = used_plans(recipe["plans"])
    text = dump(recipe)
    document.Recipe(text)
    return text


def compare_state(walk: Walk, draft: Draft, step: int) -> None:
    """NotAProgram where the walk, after a recorded step, is not where the recording was."""
    for name, digest in draft.state_digests.items():
        if name in walk.state and (own := digests.of_tensor(walk.state[name])) != digest:
            raise NotAProgram(f"after step {step} the walk has '{name}' as {own}, and the recording {digest}")
    if (after := draft.generator) and after[1] != generator_state():
        raise NotAProgram(
            f"after step {step} the walk's generator is {generator_state()}, and the recorded one {after[1]}"
        )


def used_plans(plans: Any) -> Any:
    """Of the card's table, the rows that a product took since it was set."""
    from step_oracle import device

    if plans is None:
        return None
    used = json.loads(device.extension().used_plans(0))
    return used if used["rows"] or "otherwise" in used else None


__all__ = ["Malformed", "split_name", "write"]
