"""What "The step oracle" (seeds of this project) states of plans and that needs no card."""

import collections
import json
import pathlib

import pytest
import torch

from step_oracle import cards, device, plan_facts

PLANS = pathlib.Path(cards.__file__).parent / "data" / "plans"
SCORE = pathlib.Path(__file__).parents[1] / "data" / "plan_recovery.json"


def rows(card: str) -> list[dict]:
    return json.loads((PLANS / f"{card}.json").read_text())["rows"]


def kind(row: dict) -> tuple:
    return row["op"], row["layout"], row["m"], row["n"], row["k"]


def gpt2_products() -> collections.Counter:
    """The matrix products of a GPT-2 124 M step, batch 2 x 1024, vocabulary padded to 50,304: how often each kind."""
    tokens, width, layers, vocabulary = 2048, 768, 12, 50304
    linears = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]  # in, out
    counts: collections.Counter = collections.Counter()
    for inner, outer in linears:
        counts["addmm", "nt", tokens, outer, inner] += layers
        counts["mm", "nn", tokens, inner, outer] += layers
        counts["mm", "tn", outer, inner, tokens] += layers
    counts["mm", "nt", tokens, vocabulary, width] += 1
    counts["mm", "nn", tokens, width, vocabulary] += 1
    counts["mm", "tn", vocabulary, width, tokens] += 1
    return counts


def test_147_tensor_core_products_of_15_kinds():
    products = gpt2_products()
    assert sum(products.values()) == 147 and len(products) == 15


def test_the_a6000_splits_thirteen_of_them_under_the_default_and_none_without_reduced_precision():
    products = gpt2_products()
    for setting, expected in ((True, 13), (False, 0)):
        table = {kind(r): r["plan"] for r in rows("rtx-a6000") if r.get("reduced_precision", setting) == setting}
        assert set(table) == set(products)
        split = {k: p for k, p in table.items() if p.get("splits", 1) > 1}
        assert sum(products[k] for k in split) == expected
        assert all(p["reduction"] == "in_place" for p in split.values())
    assert sum(products.values()) - 13 == 134


def test_the_h100_splits_one_in_both_settings():
    products = gpt2_products()
    table = {kind(r): r["plan"] for r in rows("h100-pcie")}
    assert set(table) == set(products) and not any("reduced_precision" in r for r in rows("h100-pcie"))
    split = [k for k, p in table.items() if p]
    assert split == [("mm", "nn", 2048, 768, 50304)] and table[split[0]] == {"splits": 5, "width": 10112}
    assert sum(products.values()) - 1 == 146


def test_twelve_products_of_the_l40_are_algorithm_30s():
    products = gpt2_products()
    sliced = [kind(r) for r in rows("l40") if r["plan"].get("slices") == 4]
    assert [products[k] for k in sliced] == [12]


@pytest.mark.parametrize(("k", "splits", "width"), [(3072, 3, 1024), (50304, 8, 6336), (50304, 5, 10112)])
def test_published_chunks_round_to_64(k, splits, width):
    assert plan_facts.chunk(k, splits, 64) == width
    assert (splits - 1) * width < k <= splits * width, "every part has its share"


def test_seventeen_of_51_bf16_products_are_split_in_a_third():
    """Sections 3.4 and 5.1: weight gradients with k = 2048 and one input gradient; 34 in one pass."""
    layers = 4  # the 3.2 M-parameter program: qkv, proj, fc, proj a layer, and the head: 17 linears
    linears = 4 * layers + 1
    assert linears == 17 and 3 * linears == 51 and 51 - 17 == 34


def test_a_published_count_of_candidates_and_of_elements():
    shape = (2048, 768)  # op 73's outputs, algorithm 30's witness
    assert shape[0] * shape[1] == 1_572_864
    assert 768 * 768 == 589_824 and 3072 * 768 == 2_359_296, "the legacy kernel's two shapes on the A100"


def test_cards_of_one_multiprocessor_count_may_differ_and_tables_of_others_must():
    """Section 7: a derived table that is equal across cards that differ was made from one card's log."""
    shipped = {p.stem: json.loads(p.read_text()) for p in PLANS.glob("*.json")}
    assert len(shipped) >= 3
    for name, table in shipped.items():
        for other, twin in shipped.items():
            if name < other:
                device.extension().check_plan_tables(json.dumps(table), json.dumps(twin))
    copied = {**shipped["rtx-a6000"], "card": "l4"}
    with pytest.raises(ValueError, match="one was made from the other card's log"):
        device.extension().check_plan_tables(json.dumps(shipped["rtx-a6000"]), json.dumps(copied))


def test_every_row_says_published():
    for path in PLANS.glob("*.json"):
        table = json.loads(path.read_text())
        for row in table["rows"]:
            assert "published" in row.get("source", table["source"]), (path.name, row)


def test_flash_attention_keeps_230_of_256():
    threshold = int(torch.tensor((1 - 0.1) * 255, dtype=torch.float32).floor())
    assert threshold == 229 and (threshold + 1) / 256 == 230 / 256
    assert round(230 / 256 / 0.9, 4) == 0.9983

def test_the_recovery_score_is_whole():
    """scripts/check_plans --write: forty products of every form and type."""
    score = json.loads(SCORE.read_text())["rows"]
    assert len({r["form"] for r in score}) >= 27 and len(score) >= 80
    assert {r["type"] for r in score} == {"float32", "bfloat16-8", "bfloat16-16", "float16-8"}
    for row in score:
        assert row["shapes"] == row["right"] == 40, row
    strangers = [r for r in score if r["source"] == "none"]
    assert len(strangers) == 8 and all(r["ties"] == 0 for r in strangers)
