"""step-oracle lint and plan family: what they say of a recorded step."""

import json

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


def test_a_third_of_the_elements_of_a_product_reduced_in_bfloat16_is_inexact(trace):
    path, table = trace
    report = lint(path, table=table)
    assert report.products == 2 and [r["index"] for r in report.reduced] == [report.reduced[0]["index"]]
    found = report.reduced[0]
    assert found["plan"] == REDUCED
    assert 0.18 <= found["differing"] <= 0.36, "18 to 36 % [paper 5.1]"
    assert 0.006 <= found["relative"]["0.99"] <= 0.047, "99th percentile 0.6 to 4.7 % [paper 5.1]"
    assert found["off"] == "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False"


def test_an_exact_product_is_nearly_exact(trace, tmp_path):
    path, table = trace
    nothing = json.loads(table.read_text())
    nothing["rows"][0]["plan"] = {}
    other = tmp_path / "o.json"
    other.write_text(json.dumps(nothing))
    assert lint(path, table=other).reduced == []


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
