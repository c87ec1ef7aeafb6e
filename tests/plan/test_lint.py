"""step-oracle lint and plan family: what they say of a recorded step."""

import json
import math
from fractions import Fraction

import pytest
import torch

import step_oracle
from step_oracle import cli, plans
from step_oracle.lint import flash_keep_rate, lint

REDUCED = {"splits": 2, "width": 1024, "reduction": "in_place"}


@pytest.fixture
def trace(tmp_path):
    """A weight gradient of k = 2048, split in bfloat16, as "The step oracle", section 5.1, has them; an exact one."""
    row = {"op": "mm", "dtype": "bfloat16", "layout": "tn", "m": 96, "n": 80, "k": 2048, "plan": REDUCED}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "x", "source": "t",
                                "rows": [row]}))  # fmt: skip
    gen = torch.Generator().manual_seed(1)
    with step_oracle.card("l4", plans=path):
        a, b = (torch.randn(*s, generator=gen).to("oracle").bfloat16() for s in [(2048, 96), (2048, 80)])
        with step_oracle.record(tmp_path / "x.trace", keep="all"):
            _ = a.t() @ b
            _ = a[:64].t() @ b[:64]
    return tmp_path / "x.trace", path


def slow_counts(path) -> tuple[float, list[float]]:
    """The share of the first product's elements that differ from the exact one, and all relative errors in order; in
    rationals, element by element, without lint's tensors."""
    op = next(o for o in step_oracle.load(path).ops if o.op == "aten.mm")
    trace = step_oracle.load(path)
    a, b = (plans.kept(trace, op.tensors[arg["tensor"]], "before").tolist() for arg in op.args)
    out = plans.kept(trace, op.tensors[op.returns[0]["tensor"]], "after").tolist()
    columns = [[Fraction(x) for x in column] for column in zip(*b, strict=True)]
    errors, differing = [], 0
    for line, ours in zip(a[:ROWS], out[:ROWS], strict=True):
        factors = [Fraction(x) for x in line]
        for column, got in zip(columns, ours, strict=True):
            exact = bfloat16(sum(x * y for x, y in zip(factors, column, strict=True)))
            differing += exact != Fraction(got)
            if exact:
                errors.append(float(abs(Fraction(got) - exact) / abs(exact)))
    return differing / (len(columns) * ROWS), sorted(errors)


ROWS = 3


def bfloat16(x: Fraction) -> Fraction:
    """To 8 bits, nearest even; no value here is subnormal or overflows."""
    if x == 0:
        return x
    exponent = math.floor(math.log2(abs(x)))
    unit = Fraction(2) ** (exponent - 7)
    return round(x / unit) * unit


def reduced_trace(tmp_path, parts: int, reduction: str = "in_place", rows: int = ROWS):
    row = {"op": "mm", "dtype": "bfloat16", "layout": "nn", "m": rows, "n": 80, "k": 2048,
           "plan": {"splits": parts, "width": 2048 // parts, "reduction": reduction}}  # fmt: skip
    table = tmp_path / f"{parts}-{reduction}.json"
    table.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "x", "source": "t",
                                 "rows": [row]}))  # fmt: skip
    gen = torch.Generator().manual_seed(1)
    with step_oracle.card("l4", plans=table):
        a, b = (torch.randn(*s, generator=gen).bfloat16().to("oracle") for s in [(rows, 2048), (2048, 80)])
        with step_oracle.record(tmp_path / f"{parts}-{reduction}.trace", keep="all"):
            _ = a @ b
    return tmp_path / f"{parts}-{reduction}.trace", table


def test_the_share_and_the_quantiles_are_a_slow_counts(tmp_path):
    path, table = reduced_trace(tmp_path, 4)
    (found,) = lint(path, table=table).reduced
    share, errors = slow_counts(path)
    assert found["differing"] == share > 0
    for name, quantile in (("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("max", 1.0)):
        assert found["relative"][name] == errors[math.ceil(quantile * len(errors)) - 1]
    assert found["off"] == "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False"


def test_more_parts_reduced_in_bfloat16_are_less_exact(tmp_path):
    shares = []
    for parts in (2, 4, 8, 16):
        path, table = reduced_trace(tmp_path, parts, rows=64)
        (found,) = lint(path, table=table).reduced
        shares.append(found["differing"])
    assert shares == sorted(set(shares)), "each cut adds a rounding"


def test_a_plan_that_reduces_in_float32_is_no_finding(tmp_path):
    path, table = reduced_trace(tmp_path, 4, "compute_type")
    report = lint(path, table=table)
    assert report.products == 1 and report.reduced == []


def test_kinds_that_some_cards_split(tmp_path):
    """The lm_head's input gradient: eight parts on the RTX A6000, five on the H100 [paper 4, 5.24]."""
    with step_oracle.card("rtx-a6000", plans="pinned"):
        x, w = (torch.zeros(*s, device="oracle", dtype=torch.bfloat16) for s in [(2048, 50304), (50304, 768)])
        with step_oracle.record(tmp_path / "x.trace", keep="digests"):
            for rows in (x[:, :3072], x[:, :768]):
                _ = rows @ w[: rows.shape[1]]
    report = lint(tmp_path / "x.trace")
    assert report.plans_from == "the card's"
    (split,) = report.split_somewhere
    assert split["splits"] == {"rtx-a6000": 3, "h100-pcie": 1} and split["times"] == 1
    assert "(False, False)" in split["off"]
    assert report.reduced[0]["differing"] is None and "keep='all'" in report.reduced[0]["why_not"]


@pytest.mark.parametrize(("p", "kept"), [(0.1, 230), (0.5, 128), (0.2, 205)])
def test_flash_attention_keeps_whole_256ths(p, kept):
    assert flash_keep_rate(p) == kept / 256


def test_flash_dropout_of_a_trace():
    from step_oracle.lint import Lint, _dropout
    from step_oracle.trace import Record

    op = Record(op="aten._scaled_dot_product_flash_attention", module="h.0.attn",
                args=[{"tensor": 0}, {"tensor": 1}, {"tensor": 2}, 0.1, True])  # fmt: skip
    report = Lint("l4", "none")
    _dropout(7, op, report)
    (found,) = report.dropout
    assert found["kept"] == 230 / 256 and round(found["scale"], 4) == 0.9983 and "SDPBackend.MATH" in found["off"]


def test_the_command(trace, capsys):
    path, table = trace
    assert cli.main(["lint", str(path), "--plans", str(table)]) == 1
    text = capsys.readouterr().out
    assert "1 products are reduced in 16 bits; off: torch.backends.cuda.matmul.allow_bf16" in text
    assert "of the elements differ from the exact product; relative error: 0.5" in text
    assert cli.main(["lint", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == 0 and report["plans_from"] == "none"
    assert cli.main(["lint", str(path), "--card", "h99"]) == 2
    assert "there is no card 'h99'" in capsys.readouterr().err


def test_the_family_table_replays_a_pinned_program(trace, tmp_path, capsys):
    gen = torch.Generator().manual_seed(3)
    with step_oracle.card("rtx-a6000", plans="pinned"):
        a, b = (torch.randn(*s, generator=gen).to("oracle") for s in [(33, 70), (70, 21)])
        with step_oracle.record(tmp_path / "p.trace", keep="state"):
            _ = a @ b
            _ = a.bfloat16() @ b.bfloat16()
            _ = a @ b
    out = tmp_path / "pinned.json"
    assert cli.main(["plan", "family", str(tmp_path / "p.trace"), "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "2 kinds of product" in text and "algorithms 0, 20 with numSplitsK 1" in text
    found = plans.family(step_oracle.load(tmp_path / "p.trace"))
    assert [k["times"] for k in found["kinds"]] == [2, 1] and found["table"] == out.read_text()
    for table in (out, "pinned"):
        report = step_oracle.replay(tmp_path / "p.trace", mode="end-to-end", plans=table)
        assert report.ok and report.products["assumed"] == 0
    # Another card of the family computes the same bytes: float32 on the H100.
    assert step_oracle.replay(tmp_path / "p.trace", plans="pinned", card="l4").ok
