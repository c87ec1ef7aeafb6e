"""Open choices: the order in which key blocks reach a query's gradient, found in a recording, stored, and used again.

A card's recording is stood in for by one of the virtual card's in an order that the test chose."""

from __future__ import annotations

import copy
import json
import pathlib
import random
import re
import sys
from typing import Any

import blake3
import forging
import pytest
import torch
import torch.nn.functional as F

import step_oracle
from step_oracle import choices as choose
from step_oracle import demo, recipe
from step_oracle.choices import dump, load
from step_oracle.cli import main
from step_oracle.recipe import canonical, document, from_trace, verification

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "recipe_mutations"))

OP = "_scaled_dot_product_efficient_attention_backward"
BATCH, HEADS, KEYS = 2, 2, 256  # four key tiles of 64, four blocks
TILES = KEYS // 64


def order(value: str, call: int | None = None) -> Any:
    return {OP: {"dq_order": [{"call": call, "value": value}]}}


def each_tile(seed: int) -> str:
    """An order of its own for every (batch, head, query tile), as recordings of a T4 and an L4 have them."""
    draw = random.Random(seed)
    rows = [draw.sample(range(i + 1), i + 1) for _ in range(BATCH * HEADS) for i in range(TILES)]
    return "|".join(" ".join(map(str, row)) for row in rows)


def recorded(path: pathlib.Path, value: str, *, keep: Any = "all", dead_head: bool = False, card: str = "l4") -> str:
    """A causal attention, forward and backward, whose blocks arrive in this order."""
    step_oracle.set_card(card)
    torch.manual_seed(3)
    q, k, v, g = (torch.randn(BATCH, HEADS, KEYS, 16).to("oracle") for _ in range(4))
    if dead_head:
        g[1, 0] = 0
    for t in (q, k, v):
        t.requires_grad_()
    with choose(order(value)), step_oracle.record(str(path), keep=keep):
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).backward(g)
    return str(path)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return recorded(tmp_path_factory.mktemp("choices") / "mixed.trace", each_tile(1))


def test_without_a_choice_it_is_a_race() -> None:
    step_oracle.set_card("l4")
    q = torch.randn(1, 1, KEYS, 16, device="oracle", requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"4 thread blocks .*use_deterministic.*step_oracle\.choices"):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


@pytest.mark.parametrize("mode", ["op-local", "end-to-end"])
def test_kept_bytes_tell_the_order_of_every_tile(mode: str, mixed: str) -> None:
    report = step_oracle.replay(mixed, mode=mode)
    assert report.ok and report.counts["carried"] == report.counts["mismatch"] == report.reads_from_recording == 0
    (found,) = report.choices
    assert found["value"] == each_tile(1) and found["op"] == OP and found["call"] == 0 and not found["given"]
    assert 1 < found["tried"] <= 24 and report.ties == [] and report.tied == 0


def test_a_digest_tells_an_order_that_all_tiles_share(tmp_path: pathlib.Path) -> None:
    report = step_oracle.replay(recorded(tmp_path / "alike.trace", "2 0 3 1", keep="state"))
    assert report.ok and [c["value"] for c in report.choices] == ["2 0 3 1"]
    report = step_oracle.replay(recorded(tmp_path / "in_step.trace", "in step", keep="state"))
    assert report.ok and [(c["value"], c["tried"]) for c in report.choices] == [("in step", 1)]
    report = step_oracle.replay(recorded(tmp_path / "mixed.trace", each_tile(2), keep="state"))
    assert not report.ok and report.choices == [] and report.counts["mismatch"] == 0
    assert "race" in report.unmodelled[0]["reason"]


def test_more_key_tiles_than_are_searched_are_carried(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(f"{__name__}.KEYS", 320)  # five key tiles: 120 orders
    for value, carried in (("0 1 2 3 4", 0), ("4 3 2 0 1", 0), ("1 0 2 3 4", 1)):
        report = step_oracle.replay(recorded(tmp_path / f"{carried}.trace", value))
        assert report.ok and report.counts["carried"] == carried and len(report.choices) == 1 - carried
    assert "a race" in report.carried[0]["reason"] and "5 thread blocks" in report.carried[0]["reason"]
    words = ["replay", str(tmp_path / "1.trace"), "--quiet"]
    assert (main(words), main([*words, "--strict"])) == (0, 1)


def test_wrong_bytes_are_no_order_s(mixed: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    """One bit of the recorded gradient changed: of four key tiles every order was tried, so it is no race's result."""
    trace = step_oracle.load(mixed)
    (op,) = [o for o in trace.ops if o.op == f"aten.{OP}"]
    was = bytes.fromhex(next(t for t in op.tensors if t.created).after)
    data = bytearray(trace._trace.blob(was.hex()))
    data[-1] ^= 1
    now = blake3.blake3(bytes(data)).digest()
    header, records, blobs = forging.read(mixed)

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: replaced(v) for k, v in value.items()}
        if isinstance(value, list):
            return list(now) if value == list(was) else [replaced(v) for v in value]
        return value

    forged = [
        (0, len(data), now + payload[32:48] + data) if payload.startswith(was) else (codec, raw, payload)
        for codec, raw, payload in blobs
    ]
    assert forged != blobs
    path = forging.write(str(tmp_path / "forged.trace"), header, replaced(records), forged)
    report = step_oracle.replay(path)
    assert not report.ok and report.counts["mismatch"] == 1 and report.counts["carried"] == 0 and report.choices == []
    assert re.search("none of 2[45] variants of dq_order .*, and there are no others", str(report.divergence))
    assert main(["replay", path, "--quiet"]) == 1
    assert "verdict: not verified" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["op-local", "end-to-end"])
def test_another_card_s_bytes_are_no_order_s(mode: str, mixed: str) -> None:
    report = step_oracle.replay(mixed, mode=mode, card="h100-sxm")
    assert not report.ok and report.choices == [] and report.counts["mismatch"] >= 2


def test_orders_of_equal_bytes_are_a_tie(tmp_path: pathlib.Path) -> None:
    path = recorded(tmp_path / "dead.trace", "1 3 0 2", dead_head=True)  # no gradient comes into one head
    report = step_oracle.replay(path, ties=True)
    assert report.ok and report.choices[0]["tried"] >= 24
    tied = {t["part"]: len(t["variants"]) for t in report.ties}
    assert tied == {f"batch 1 head 0 query tile {i}": n for i, n in ((1, 2), (2, 6), (3, 24))} and report.tied == 3
    # The untied heads' order is found; what is found gives the recorded bytes again.
    again = step_oracle.replay(path, choices=choose_of(report))
    assert again.ok and again.choices[0]["given"]


def choose_of(report: step_oracle.ReplayReport) -> Any:
    from step_oracle.choices import taken

    return taken(report.choices)


def test_a_given_choice_is_taken_and_not_searched_for(mixed: str) -> None:
    report = step_oracle.replay(mixed, choices=order(each_tile(1)))
    assert report.ok and [(c["given"], c["tried"], c["value"]) for c in report.choices] == [(True, 0, each_tile(1))]
    report = step_oracle.replay(mixed, choices=order("0 1 2 3"))
    assert not report.ok and report.counts["mismatch"] == 1 and report.divergence is not None
    assert report.divergence.cause.endswith("the given dq_order, '0 1 2 3'")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (order("0 1 2 3", call=1), f"no call takes dq_order of {OP}, call 1"),
        ({"_softmax": {"order": [{"call": None, "value": ""}]}}, "no call takes order of _softmax"),
        ({OP: {"dq_order": []}}, "give a list of choices"),
        ({OP: {}}, "has no name"),
        ({OP: {"dq_order": [{"value": "0 1"}]}}, "give call, value"),
        ({OP: {"dq_order": [{"call": -1, "value": "0"}]}}, "a number from 0, or null"),
        ({OP: {"dq_order": [{"call": True, "value": "0"}]}}, "a number from 0, or null"),
        ({OP: {"dq_order": [{"call": 0, "value": 3}]}}, "give a text"),
        ({OP: {"dq_order": [{"call": 0, "value": "\u00b20"}]}}, "give a text in ASCII"),
        ({OP: {"dq_order": [{"call": 1, "value": ""}, {"call": 0, "value": ""}]}}, "in the order of call"),
        ([], "give an object"),
    ],
)
def test_choices_that_are_refused(given: Any, message: str, mixed: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_oracle.replay(mixed, choices=given)


@pytest.mark.parametrize("value", ["3 2 1 0", "0 1 2", "0 1 2 3 ", "x", "0|0 1|0 1 2|0 1 2 3"])
def test_texts_that_are_no_order_s(value: str, mixed: str, tmp_path: pathlib.Path) -> None:
    report = step_oracle.replay(mixed, choices=order(value))
    assert not report.ok and "dq_order: " in report.unmodelled[0]["reason"]
    with pytest.raises(ValueError, match="dq_order: "):
        recorded(tmp_path / "t.trace", value)


def test_a_choice_that_no_call_takes_is_an_error_in_a_live_run() -> None:
    step_oracle.set_card("l4")
    with pytest.raises(ValueError, match="no call took dq_order"), choose(order("0 1 2 3")):
        torch.ones(3, device="oracle").exp()


def test_the_operator_below_has_its_positions_first(tmp_path: pathlib.Path) -> None:
    step_oracle.set_card("a100-sxm-80gb")
    torch.manual_seed(6)
    q, k, v, g = (torch.randn(BATCH, 190, HEADS, 16).to("oracle") for _ in range(4))
    rows = [draw.sample(range(3), 3) for draw in [random.Random(7)] for _ in range(BATCH * HEADS * 3)]
    value = "|".join(" ".join(map(str, row)) for row in rows)
    below = {"_efficient_attention_backward": {"dq_order": [{"call": None, "value": value}]}}
    path = str(tmp_path / "t.trace")
    with choose(below), step_oracle.record(path, keep="all"):
        out, lse, seed, offset, n, m = torch.ops.aten._efficient_attention_forward(
            q, k, v, None, None, None, None, None, 0.0, 0, True
        )
        torch.ops.aten._efficient_attention_backward(
            g, q, k, v, None, out, None, None, int(m), int(n), lse, 0.0, seed, offset, 0, False
        )
    report = step_oracle.replay(path)
    assert report.ok and [c["value"] for c in report.choices] == [value]


def test_calls_are_told_apart(tmp_path: pathlib.Path) -> None:
    step_oracle.set_card("t4")
    torch.manual_seed(5)
    q = torch.randn(1, 2, KEYS, 16, device="oracle", requires_grad=True)
    both = {OP: {"dq_order": [{"call": None, "value": "in step"}, {"call": 1, "value": "0 1 2 3"}]}}
    with choose(both), step_oracle.record(str(tmp_path / "t.trace"), keep="all"):
        for _ in range(3):
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    report = step_oracle.replay(str(tmp_path / "t.trace"))
    assert report.ok and [(c["call"], c["value"]) for c in report.choices] == [
        (0, "in step"), (1, "0 1 2 3"), (2, "in step")
    ]  # fmt: skip
    assert step_oracle.replay(str(tmp_path / "t.trace"), choices=both).ok


@pytest.mark.parametrize("keep", ["all", "state"])
def test_the_second_of_two_blocks_may_come_late(keep: str, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """Two key tiles: blocks in step are assumed and need no choice; a recording that shows another order has one."""
    monkeypatch.setattr(f"{__name__}.KEYS", 128)
    path = recorded(tmp_path / "late.trace", "0 1", keep=keep)
    report = step_oracle.replay(path)
    assert report.ok and report.counts["carried"] == 0 and [c["value"] for c in report.choices] == ["0 1"]
    report = step_oracle.replay(recorded(tmp_path / "step.trace", "in step", keep=keep))
    assert report.ok and report.choices == []
    some = ["0|1 0", "0|0 1", "0|0 1", "0|1 0"]  # of the four heads
    report = step_oracle.replay(recorded(tmp_path / "some.trace", "|".join(some), keep=keep))
    assert report.counts["mismatch"] == (keep == "state") and report.counts["carried"] == 0
    assert [c["value"] for c in report.choices] == ["|".join(some)] * (keep == "all")


def test_a_reading_of_the_machine_code_is_named(tmp_path: pathlib.Path) -> None:
    """FlashAttention-2's logsumexp as another build could compose it: named where its bytes are recorded."""
    step_oracle.set_card("l4")
    torch.manual_seed(4)
    q = torch.randn(2, 2, 200, 32, dtype=torch.bfloat16).to("oracle")
    path = str(tmp_path / "t.trace")

    def recorded_as(form: str) -> step_oracle.ReplayReport:
        given = {"_flash_attention_forward": {"logsumexp": [{"call": 1, "value": form}]}}
        with choose(given), step_oracle.record(path, keep="state"):
            for _ in range(2):
                F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)
        return step_oracle.replay(path)

    for form in ("fma(lg2, ln 2, max scale)", "max scale + log", "fma(max, scale, log), lg2 to nearest"):
        report = recorded_as(form)
        assert report.ok and [(c["call"], c["calls"], c["value"]) for c in report.choices] == [(1, 2, form)]
        assert step_oracle.replay(path, choices=choose_of(report)).ok
    report = recorded_as("fma(max, scale, log)")  # what is assumed
    assert report.ok and report.choices == [] and step_oracle.replay(path, ties=True).tied == 0


def test_the_command(mixed: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    saved = tmp_path / "choices.json"
    assert main(["replay", mixed, "--save-choices", str(saved), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert " match (1 by a choice), 0 mismatch" in out
    assert "choice: op" in out and "dq_order '0|" in out and "(found by the recorded bytes, " in out
    assert load(saved) == order(each_tile(1)) and saved.read_text() == dump(order(each_tile(1)))
    assert main(["replay", mixed, "--choices", str(saved), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["choices"][0]["given"] and report["tied"] == 0
    saved.write_text('{"format": "step-oracle choices 2", "choices": {}}')
    assert main(["replay", mixed, "--choices", str(saved), "--json"]) == 2
    assert "holds no choices of this version" in capsys.readouterr().err


# --- recipes ----------------------------------------------------------------------------------------------------------

STEPS, CONTEXT = 4, 160  # three key tiles, three blocks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Four steps in the default mode; the blocks of the first arrive in another order than those of the others."""
    folder = tmp_path_factory.mktemp("recipes") / "run"
    text = folder.parent / "corpus.txt"
    text.write_bytes(bytes(random.Random(9).choices(b"etaoin shrdlu", k=4000)))
    step_oracle.set_card("l4")
    torch.manual_seed(0)
    sampler = {"kind": "contiguous 1", "batch": 2, "context": CONTEXT}
    made = recipe.Run(folder, corpus=text, sampler=sampler, promises=range(STEPS), keep="all")
    config = demo.Config(width=32, heads=2, layers=2, context=CONTEXT, batch=2)
    model = made.build(lambda: demo.GPT(config))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for n in range(STEPS):
        with choose(order("1 0 2" if n == 0 else "0 1 2")):
            made.step(model, optimizer, step)
    made.close()
    return folder


@pytest.fixture(scope="module")
def written(run: pathlib.Path) -> str:
    return recipe.write(run, str(run.parent / "corpus.txt"))


def with_choices(text: str, value: Any) -> document.Recipe:
    return document.Recipe(canonical.dump(json.loads(text) | {"choices": value}))


def test_a_recipe_holds_what_its_recordings_show(written: str, run: pathlib.Path) -> None:
    corpus = str(run.parent / "corpus.txt")
    entries = json.loads(written)["choices"][OP]["dq_order"]
    assert entries == [
        {"step": None, "call": None, "value": "0 1 2"}, {"step": 0, "call": None, "value": "1 0 2"}
    ]  # fmt: skip
    verdict = verification.verify(document.Recipe(written), corpus)
    assert verdict.ok and verdict.kept == verdict.total == STEPS
    folder = str(run.parent / "kept")
    assert verification.verify(document.Recipe(written), corpus, folder=folder, until=1).ok
    assert verification.verify(document.Recipe(written), corpus, folder=folder).resumed_from == 1


@pytest.mark.parametrize("place", [0, 1])
def test_another_order_fails_at_the_promise(place: int, written: str, run: pathlib.Path) -> None:
    value = json.loads(written)["choices"]
    value[OP]["dq_order"][place]["value"] = "in step"
    verdict = verification.verify(with_choices(written, value), str(run.parent / "corpus.txt"))
    assert not verdict.ok and verdict.first_failed is not None
    assert (verdict.first_failed.step, verdict.first_failed.what) == (1 - place, "state")


def test_a_recipe_without_its_choice_is_refused(written: str, run: pathlib.Path) -> None:
    with pytest.raises(NotImplementedError, match="order of their arrival"):
        verification.verify(with_choices(written, {}), str(run.parent / "corpus.txt"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"step": 2, "call": 9, "value": "in step"}, "no call of the run took .*9"),
        ({"step": 2, "call": 1, "value": "2 1 0"}, "is written 'in step'"),
        ({"step": STEPS, "call": None, "value": "0 1 2"}, "the recipe has the steps 0 to 3"),
        ({"call": None, "value": "0 1 2"}, "give step, call, value"),
    ],
)
def test_entries_that_are_refused(entry: Any, message: str, written: str, run: pathlib.Path) -> None:
    value = copy.deepcopy(json.loads(written)["choices"])
    value[OP]["dq_order"].append(entry)
    with pytest.raises(ValueError, match=message):
        verification.verify(with_choices(written, value), str(run.parent / "corpus.txt"))


def test_no_change_of_a_choice_verifies(written: str, run: pathlib.Path) -> None:
    import mutations

    corpus, refused, caught = str(run.parent / "corpus.txt"), 0, 0
    value = json.loads(written)["choices"]
    for path in mutations.leaves(value):
        for what, new in mutations.others(mutations.at(value, path)):
            try:
                verdict = verification.verify(with_choices(written, mutations.changed(value, path, new)), corpus)
            except (ValueError, NotImplementedError):
                refused += 1
                continue
            assert not verdict.ok, (path, what)
            caught += 1
    assert refused >= 15 and refused + caught >= 20


def test_a_choice_that_another_hides_is_refused(written: str, run: pathlib.Path) -> None:
    value = {OP: {"dq_order": [{"step": None, "call": None, "value": "in step"}] + [
        {"step": n, "call": None, "value": "1 0 2" if n == 0 else "0 1 2"} for n in range(STEPS)]}}  # fmt: skip
    with pytest.raises(ValueError, match="no call of the run took .*in step"):
        verification.verify(with_choices(written, value), str(run.parent / "corpus.txt"))


def test_a_recipe_is_written_with_given_choices(written: str, run: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="the walk|after step"):
        recipe.write(run, str(run.parent / "corpus.txt"), choices=order("0 1 2"))


def test_a_recipe_of_a_lone_trace(run: pathlib.Path) -> None:
    init = str(run.parent / "lone.safetensors")
    text = from_trace.write(run / "step-1.trace", init)
    assert json.loads(text)["choices"] == {
        OP: {"dq_order": [{"step": None, "call": None, "value": "0 1 2"}]}
    }  # fmt: skip
    assert verification.verify(document.Recipe(text), None, init=init).ok
    with pytest.raises(ValueError, match="the recorded one has|and the recording"):
        from_trace.write(run / "step-1.trace", init, choices=order("in step"))
