"""What "The step oracle" (seeds of this project) states of plans and that needs no card, through our own code.

The step's products come from a recording: a GPT of small sizes with the published program's layers, whose sizes are
then exchanged for the published ones. What is split comes from the shipped tables, lint and plan_facts.
"""

import collections
import json
import pathlib

import pytest
import torch

import step_oracle
from step_oracle import cards, device, plan_facts, plans
from step_oracle.lint import lint

PLANS = pathlib.Path(cards.__file__).parent / "data" / "plans"
SCORE = pathlib.Path(__file__).parents[1] / "data" / "plan_recovery.json"
SMALL = {8: 768, 24: 2304, 32: 3072, 524: 50304, 64: 2048}  # recorded size -> of the 124 M step, batch 2 x 1024


def record_products(path: pathlib.Path, layers: int, tokens: int, table: pathlib.Path | str = "pinned", card="l4",
                    vocabulary: int = 524) -> pathlib.Path:
    """Forward and backward of the linear layers of a GPT of width 8, bfloat16; keeps what it computed."""
    torch.manual_seed(1)
    with step_oracle.card(card, plans=table):
        sizes = [(8, 24), (8, 8), (8, 32), (32, 8)] * layers
        net = [torch.nn.Linear(i, o).bfloat16().to("oracle") for i, o in sizes]
        head = torch.nn.Linear(8, vocabulary, bias=False).bfloat16().to("oracle")
        x = torch.randn(tokens, 8).bfloat16().to("oracle").requires_grad_()
        with step_oracle.record(path, keep="all"):
            h = x
            for qkv, proj, fc, out in zip(*[iter(net)] * 4, strict=True):
                h = h + proj(qkv(h)[:, :8])
                h = h + out(fc(h))
            head(h).backward(torch.randn(tokens, vocabulary).bfloat16().to("oracle"))
    return path


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> collections.Counter:
    """The products of the 124 M step: how often each (op, layout, m, n, k), as `plan family` reads them."""
    path = record_products(tmp_path_factory.mktemp("step") / "x.trace", layers=12, tokens=64)
    kinds = plans.family(step_oracle.load(path))["kinds"]
    return collections.Counter({key(k["row"], SMALL): k["times"] for k in kinds})


def key(row: dict, sizes: dict[int, int] | None = None) -> tuple:
    return row["op"], row["layout"], *((sizes or {}).get(row[s], row[s]) for s in "mnk")


def rows(card: str, reduced_precision: bool) -> dict[tuple, dict]:
    table = json.loads((PLANS / f"{card}.json").read_text())["rows"]
    assert device.extension().plan_table((PLANS / f"{card}.json").read_text())["card"] == card
    return {key(r): r["plan"] for r in table if r.get("reduced_precision", reduced_precision) == reduced_precision}


def split(step: collections.Counter, table: dict[tuple, dict]) -> tuple[int, int]:
    """Of the step's products: (in parts, in one pass). Every one must have a row."""
    assert set(table) == set(step)
    parts = sum(times for kind, times in step.items() if table[kind].get("splits", 1) > 1)
    return parts, step.total() - parts


def test_the_a6000_splits_thirteen_of_147_and_none_without_reduced_precision(step):
    """Sections 5.24 and 5.23."""
    table = rows("rtx-a6000", True)
    assert split(step, table) == (13, 134)
    assert {p["reduction"] for p in table.values() if "splits" in p} == {"in_place"}
    assert split(step, rows("rtx-a6000", False)) == (0, 147)


def test_the_h100_splits_one_in_both_settings(step):
    assert split(step, rows("h100-pcie", True)) == (1, 146)
    assert rows("h100-pcie", True) == rows("h100-pcie", False)
    assert [k[-1] for k, p in rows("h100-pcie", True).items() if p] == [50304]


def test_twelve_products_of_the_l40_are_algorithm_30s(step):
    (kind,) = [k for k, p in rows("l40", False).items() if p.get("slices") == 4]
    assert step[kind] == 12


def test_the_shipped_rows_are_what_the_published_algorithms_compute():
    """Section 4: algorithm 30, 64x64, for the K = 3072 projections, and its chunks round to 64."""
    def of(**fields):
        (known,) = plan_facts.plans_of(plan_facts.Algorithm(30, **fields["a"]), dtype="bfloat16", m=2048, n=768,
                                       k=fields["k"], bias=fields["bias"], compute_capability="8.9", sms=142,
                                       threads_per_sm=1536)  # fmt: skip
        return known.plan

    (sliced,) = [p for p in rows("l40", False).values() if p.get("slices") == 4]
    assert of(a={"tile": "64x64"}, k=3072, bias=True) == sliced
    assert of(a={"tile": "128x64"}, k=3072, bias=False) == {"slices": 2, "slice_width": 32}
    (l40,) = [p for p in rows("l40", True).values() if "splits" in p]
    assert of(a={"splits": 5, "reduction": "INPLACE"}, k=50304, bias=False) == l40


@pytest.mark.parametrize(("card", "k", "splits", "width"), [
    ("rtx-a6000", 3072, 3, 1024), ("rtx-a6000", 50304, 8, 6336), ("h100-pcie", 50304, 5, 10112),
    ("l40", 50304, 5, 10112)])  # fmt: skip
def test_published_chunks(card, k, splits, width):
    """Sections 4 and 5.24: the table's rows, the kernels' own function, and the reader, which refuses shorter ones."""
    (found,) = [p for kind, p in rows(card, True).items() if kind[-1] == k and p.get("splits", 1) > 1]
    assert (found["splits"], found["width"]) == (splits, width)
    assert plan_facts.chunk(k, splits, 64) == width
    row = {"op": "mm", "dtype": "bfloat16", "layout": "nn", "m": 2, "n": 2, "k": k}
    table = {"format": "step-oracle plan table 1", "card": card, "library": "x", "source": "t"}
    short = {**row, "plan": {"splits": splits, "width": width - k // splits // 8}}
    with pytest.raises(ValueError, match="do not fit k"):
        device.extension().plan_table(json.dumps({**table, "rows": [short]}))


def test_a_float32_chunk_of_one_kernel_rounds_to_32_and_to_4():
    """Section 5.18: which, a log does not say; both are among what from-log leaves open."""
    found = plan_facts.plans_of(plan_facts.Algorithm(20, splits=5), dtype="float32", m=2048, n=768, k=50304, bias=False,
                                compute_capability="8.9", sms=142, threads_per_sm=1536)  # fmt: skip
    widths = {f.plan["width"] for f in found}
    assert {10080, 10064} <= widths and len(widths) > 1


def test_hoppers_algorithm_55_deals_tiles_of_8_in_turn():
    """Section 5.21."""
    def of(capability):
        return plan_facts.plans_of(plan_facts.Algorithm(55, splits=4), dtype="float32", m=2048, n=768, k=3072,
                                   bias=False, compute_capability=capability, sms=114, threads_per_sm=2048)  # fmt: skip

    assert [f.plan for f in of("9.0")] == [{"splits": 4, "deal": "round_robin", "width": 8}]
    with pytest.raises(plan_facts.NotKnown, match="algorithm 55"):
        of("8.9")


def test_a_float32_addmm_in_parts_starts_from_its_bias():
    """Section 3.4."""
    found = plan_facts.plans_of(plan_facts.Algorithm(0, splits=3), dtype="float32", m=2048, n=768, k=3072, bias=True,
                                compute_capability="8.9", sms=58, threads_per_sm=1536)  # fmt: skip
    assert found and all(f.plan["bias"] == "first" for f in found)


def test_seventeen_of_51_bf16_products_are_reduced_in_bfloat16(tmp_path):
    """Sections 3.4 and 5.1: of a four-layer step, the weight gradients of K = 2048 and one input gradient, by five
    plans; lint counts them with a table that splits these kinds."""
    tokens = 2048
    free = record_products(tmp_path / "free.trace", layers=4, tokens=tokens, vocabulary=80)
    kinds = [k["row"] for k in plans.family(step_oracle.load(free))["kinds"]]
    weights = [r for r in kinds if r["layout"] == "tn" and r["k"] == tokens and r["m"] != 80]
    (head,) = [r for r in kinds if r["layout"] == "nn" and r["k"] == 80]
    halves = [{**r, "plan": {"splits": 2, "width": plan_facts.chunk(r["k"], 2, 8), "reduction": "in_place"}}
              for r in (*weights, head)]  # fmt: skip
    assert len(halves) == 5
    table = tmp_path / "t.json"
    table.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "x", "source": "t",
                                 "rows": halves}))  # fmt: skip
    report = lint(record_products(tmp_path / "x.trace", 4, tokens, table, vocabulary=80), table=table)
    assert report.products == 51 and len(report.reduced) == 17
    assert sum(r["product"]["k"] == tokens for r in report.reduced) == 16


@pytest.mark.parametrize(("card", "terms"), [("t4", 8), ("a100-pcie-40gb", 8), ("rtx-a6000", 8), ("l40", 8),
                                             ("h100-pcie", 16)])  # fmt: skip
def test_how_many_products_a_cards_adder_takes_at_once(card, terms):
    """Section 3.4, read off the bytes of a product without a row: 2^24 at 0, -2^24 at 8 and 1/2 at 1. With 16 at once
    the half is aligned to 2^24 and cut (25 bits leave it); with 8 the sum 2^24 + 1/2 loses it before -2^24 comes."""
    a = torch.zeros(1, 32)
    a[0, 0], a[0, 8], a[0, 1] = 2.0**12, -(2.0**12), 0.5
    b = torch.ones(32, 1)
    b[0, 0] = b[8, 0] = 2.0**12
    with step_oracle.card(card, plans="pinned"):
        out = (a.half().to("oracle") @ b.half().to("oracle")).cpu().item()
    assert out == (0.5 if terms == 16 else 0.0)
    (stated,) = [r["plan"] for r in plans.show(card)["defaults"] if r["product"] == "other float16"]
    assert stated == f"single pass, {terms} products at once"


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


def test_every_row_says_whether_it_was_printed_or_inferred():
    """`plan show` prints it: a row that follows from "the other 134 in one pass" is graded fit, not published."""
    for path in PLANS.glob("*.json"):
        for row in plans.show(path.stem)["rows"]:
            printed, inferred = "published:" in row["source"], "inferred from published totals (fit)" in row["source"]
            assert printed != inferred, (path.name, row)
            if row["plan"] == "single pass":
                assert inferred, (path.name, row)


def test_the_recovery_score_is_whole():
    """scripts/check_plans --write: forty products of every form and type."""
    score = json.loads(SCORE.read_text())["rows"]
    assert len({r["form"] for r in score}) >= 27 and len(score) >= 95
    assert {r["type"] for r in score} == {"float32", "bfloat16-8", "bfloat16-16", "float16-8", "bfloat16-1"}
    for row in score:
        assert row["shapes"] == row["right"] == 40, row
    strangers = [r for r in score if r["source"] == "none"]
    assert len(strangers) == 10 and all(r["ties"] == 0 for r in strangers)
