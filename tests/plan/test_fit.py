"""Plans read off tensors, and the table on the command line."""

import json

import pytest
import torch

import step_oracle
from step_oracle import cli, device, plans


def product(dtype: torch.dtype, plan: dict[str, object], tmp_path, bias: torch.Tensor | None = None,
            card: str = "a100-pcie-40gb"):  # fmt: skip
    gen = torch.Generator().manual_seed(2)
    a, b = torch.randn(40, 300, generator=gen).to(dtype), torch.randn(300, 50, generator=gen).to(dtype)
    op = {"op": "mm", "layout": "nn"} if bias is None else {"op": "addmm", "layout": "nn", "epilogue": "bias"}
    row = {**op, "dtype": str(dtype).removeprefix("torch."), "m": 40, "n": 50, "k": 300, "plan": plan}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"format": "step-oracle plan table 1", "card": card, "library": "x",
                                "source": "test", "rows": [row]}))  # fmt: skip
    with step_oracle.card(card, plans=path):
        x, y = a.to("oracle"), b.to("oracle")
        out = x @ y if bias is None else torch.addmm(bias.to("oracle"), x, y)
    return a, b, out.cpu()


@pytest.mark.parametrize(("card", "dtype"), [("a100-pcie-40gb", torch.float32), ("a100-pcie-40gb", torch.bfloat16),
                                             ("a100-pcie-40gb", torch.float16), ("t4", torch.bfloat16)])  # fmt: skip
@pytest.mark.parametrize(
    "plan", [{}, {"splits": 3, "width": 128}, {"slices": 4, "slice_width": 16, "combine": "halves"}]
)
def test_the_plan_of_a_product_is_read_off_its_bytes(card, dtype, plan, tmp_path):
    a, b, out = product(dtype, plan, tmp_path, card=card)
    found = plans.fit(a, b, out, card=card, everything=True)
    assert plan in found["plans"]
    assert found["nearest"] is None
    assert len(found["matches"]) == len(found["plans"])


def test_the_place_of_a_bias_is_part_of_the_plan(tmp_path):
    bias = torch.linspace(-3, 3, 50)
    a, b, out = product(torch.float32, {"splits": 3, "width": 128, "bias": "first"}, tmp_path, bias)
    found = plans.fit(a, b, out, bias, card="a100-pcie-40gb")
    assert found["plans"] == [{"splits": 3, "width": 128, "bias": "first"}]


def test_other_bytes_have_no_plan_and_a_nearest_one(tmp_path):
    a, b, out = product(torch.float32, {}, tmp_path)
    found = plans.fit(a, b, out.nextafter(torch.tensor(0.0)), card="l4")
    assert found["matches"] == [] and found["ties"] == []
    assert 0 <= found["nearest_equal"] < 1
    row, col = found["nearest_at"]
    assert 0 <= row < 32 and 0 <= col < 50, "of the corner that is compared first"
    seen = []
    plans.fit(a, b, out, card="l4", progress=lambda done, all: seen.append(all) or done < 2)
    assert len(seen) == 2


def test_the_nearest_plan_first_differs_where_one_element_was_changed(tmp_path):
    a, b, out = product(torch.float32, {}, tmp_path)
    out[17, 23] = 1e30
    found = plans.fit(a, b, out, card="l4")
    assert (found["nearest"], tuple(found["nearest_at"])) == ("single pass", (17, 23))
    assert found["nearest_equal"] == 1 - 1 / (32 * 50), "of the corner that is compared first"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_is_enough_and_so_is_a_tile(dtype, tmp_path):
    plan = {"splits": 3, "width": 128}
    a, b, out = product(dtype, plan, tmp_path)
    by_bytes = plans.fit(a, b, out, card="a100-pcie-40gb")
    by_digest = plans.fit(a, b, device.extension().digest(out), card="a100-pcie-40gb")
    assert plan in by_digest["plans"] and by_digest["plans"] == by_bytes["plans"]
    assert plan in plans.fit(a[8:24], b[:, 16:48], out[8:24, 16:48], card="a100-pcie-40gb")["plans"]
    none = plans.fit(a, b, device.extension().digest(out.neg()), card="a100-pcie-40gb")
    assert none["matches"] == [] and none["nearest"] is None and none["tried"] == by_digest["tried"]


def test_the_likely_plans_are_tried_first_and_all_when_asked(tmp_path):
    plan = {"splits": 7, "deal": "balanced", "width": 32}  # no published step has it
    a, b, out = product(torch.bfloat16, plan, tmp_path)
    few = plans.fit(a, b, out, card="a100-pcie-40gb")
    every = plans.fit(a, b, out, card="a100-pcie-40gb", everything=True)
    assert few["tried"] <= 60 < every["tried"]
    assert plan not in few["plans"] and plan in every["plans"]


def test_shapes_that_are_no_product_are_refused(tmp_path):
    with pytest.raises(ValueError, match="out = a @ b"):
        plans.fit(torch.ones(2, 3), torch.ones(4, 5), torch.ones(2, 5), card="l4")


def test_plan_show(capsys):
    assert cli.main(["plan", "show", "--card", "rtx-a6000"]) == 0
    assert "splits 8, chunks of 6336, reduction in_place" in capsys.readouterr().out  # [paper 5.24]
    assert cli.main(["plan", "show", "--card", "l4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    assert cli.main(["plan", "show", "--card", "l99"]) == 2
    assert "there is no card 'l99'" in capsys.readouterr().err


def recorded(tmp_path, keep="all"):
    row = {"op": "mm", "dtype": "float32", "layout": "nn", "m": 40, "n": 50, "k": 300,
           "plan": {"splits": 3, "width": 104}}  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "x", "source": "test",
                                "rows": [row]}))  # fmt: skip
    gen = torch.Generator().manual_seed(4)
    with step_oracle.card("l4", plans=path):
        a, b, w, bias = (torch.randn(*s, generator=gen).to("oracle") for s in [(40, 300), (300, 50), (50, 300), (50,)])
        with step_oracle.record(tmp_path / "x.trace", keep=keep):
            a @ b
            torch.nn.functional.linear(a.bfloat16(), w.bfloat16(), bias.bfloat16())
    return tmp_path / "x.trace", row


def test_plan_fit_of_a_trace_writes_a_table_that_gives_its_bytes(tmp_path, capsys):
    trace, row = recorded(tmp_path)
    out = tmp_path / "fitted.json"
    assert cli.main(["plan", "fit", str(trace), "-o", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [o["op"] for o in report["ops"]] == ["aten.mm", "aten.addmm"]
    assert report["ops"][0]["plans"] == [row["plan"]]
    assert {} in report["ops"][1]["plans"]
    table = json.loads(out.read_text())
    assert table["card"] == "l4" and row in table["rows"]
    assert cli.main(["plan", "show", "--card", "l4", "--plans", str(out)]) == 0
    assert "splits 3, chunks of 104" in capsys.readouterr().out


def test_plan_fit_of_one_op(tmp_path, capsys):
    trace, _ = recorded(tmp_path)
    assert cli.main(["plan", "fit", str(trace), "--op", "0"]) == 0
    assert "op 0 aten.mm: splits 3, chunks of 104" in capsys.readouterr().out
    assert cli.main(["plan", "fit", str(trace), "--op", "0", "--tile", "16x8"]) == 0
    text = capsys.readouterr().out
    assert "splits 3, chunks of 104" in text and "by tile" in text
    with pytest.raises(SystemExit) as refused:
        cli.main(["plan", "fit", str(trace), "--op", "0", "--tile", "16"])
    assert refused.value.code == 2
    assert "16 is no tile" in capsys.readouterr().err
    assert cli.main(["plan", "fit", str(trace), "--op", "1"]) == 2
    assert "plans are fitted for aten.mm" in capsys.readouterr().err


def test_plan_fit_by_a_trace_s_digests(tmp_path, capsys):
    """keep='state': the factors' bytes, and of the result the digest."""
    trace, row = recorded(tmp_path, keep="state")
    assert cli.main(["plan", "fit", str(trace), "--op", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compared"] == "digest" and row["plan"] in found["plans"]


def test_plan_fit_needs_the_bytes(tmp_path, capsys):
    trace, _ = recorded(tmp_path, keep="digests")
    assert cli.main(["plan", "fit", str(trace), "--op", "0"]) == 2
    assert "record with keep='all'" in capsys.readouterr().err


def test_plan_show_of_a_family_of_cards_prints_rows_with_sources(capsys):
    assert cli.main(["plan", "show", "--card", "a100-pcie"]) == 0
    text = capsys.readouterr().out
    assert "a100-pcie-40gb: 0 rows" in text and "a100-pcie-80gb: 0 rows" in text
    assert text.count("assumed: the class default") == 8
    assert cli.main(["plan", "show", "--card", "a100-pcie", "--json"]) == 0
    assert [t["card"] for t in json.loads(capsys.readouterr().out)["tables"]] == ["a100-pcie-40gb", "a100-pcie-80gb"]
    assert cli.main(["plan", "show", "--card", "a100-pcie", "--plans", "pinned"]) == 2
    assert "may be a100-pcie-40gb or a100-pcie-80gb" in capsys.readouterr().err
    assert cli.main(["plan", "show", "--card", "a100-pcie-40gb", "--plans", "pinned"]) == 0
    assert "the program forces it" in capsys.readouterr().out
