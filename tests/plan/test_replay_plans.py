"""Plans in a replay: which table it takes, the search by digest, and what it says was assumed."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import step_oracle
from step_oracle import cli, plans

PLAN = {"splits": 3, "width": 128, "reduction": "in_place"}
PRODUCT = "mm bfloat16 nn m 40 n 50 k 300"


def table(path: pathlib.Path, plan: dict, card: str = "l4", dtype: str = "bfloat16") -> pathlib.Path:
    row = {"op": "mm", "dtype": dtype, "layout": "nn", "m": 40, "n": 50, "k": 300, "plan": plan}
    path.write_text(json.dumps({"format": "step-oracle plan table 1", "card": card, "library": "x", "source": "test",
                                "rows": [row]}))  # fmt: skip
    return path


@pytest.fixture
def trace(request, tmp_path):
    """Two products of one kind and one of another, digests only; the first kind split."""
    gen = torch.Generator().manual_seed(1)
    card = getattr(request, "param", "l4")
    with step_oracle.card(card, plans=table(tmp_path / "t.json", PLAN, card)):
        a, b, c = (torch.randn(*s, generator=gen).to("oracle").bfloat16() for s in [(40, 300), (300, 50), (40, 300)])
        with step_oracle.record(tmp_path / "x.trace", keep="state"):
            x = a @ b
            _ = x @ x.t()
            _ = c @ b
    step_oracle.set_card("h100-sxm")
    return tmp_path / "x.trace"


@pytest.mark.parametrize("trace", ["l4", "t4"], indirect=True)
@pytest.mark.parametrize("mode", ["op-local", "end-to-end"])
def test_the_search_by_digest_finds_the_plan_once_and_keeps_it(trace, tmp_path, mode):
    assert not step_oracle.replay(trace, mode=mode).ok
    report = step_oracle.replay(trace, mode=mode, fit_plans=True)
    assert report.ok and report.reads_from_recording == 0
    assert [(f["index"], f["product"]) for f in report.fitted] == [(0, PRODUCT)]
    assert report.products["assumed"] == 1 and report.products["products"] == 3
    (tmp_path / "found.json").write_text(report.plan_table)
    again = step_oracle.replay(trace, mode=mode, plans=tmp_path / "found.json")
    assert again.ok and again.fitted == []
    assert not step_oracle.replay(trace, mode=mode).ok, "the plan does not outlive the replay"


def test_a_product_of_no_known_form_is_named_with_the_number_of_plans(tmp_path):
    gen = torch.Generator().manual_seed(1)
    strange = {"splits": 7, "width": 3, "deal": "round_robin"}
    with step_oracle.card("l4", plans=table(tmp_path / "t.json", strange, dtype="float32")):
        a, b = (torch.randn(*s, generator=gen).to("oracle") for s in [(40, 300), (300, 50)])
        with step_oracle.record(tmp_path / "x.trace", keep="all"):
            _ = a @ b
            _ = a @ b
    report = step_oracle.replay(tmp_path / "x.trace", fit_plans=True, plans="pinned")
    assert [d.index for d in report.mismatches] == [0, 1]
    assert "GEMM class or plan: none of" in report.divergence.cause


def test_the_pinned_arm_needs_no_table_and_assumes_nothing(tmp_path):
    gen = torch.Generator().manual_seed(1)
    with step_oracle.card("rtx-a6000", plans="pinned"):
        a, b = (torch.randn(*s, generator=gen).to("oracle").bfloat16() for s in [(2048, 3072), (3072, 768)])
        with step_oracle.record(tmp_path / "x.trace", keep="state"):
            pinned = a[:32] @ b
            _ = pinned @ pinned.t()
    report = step_oracle.replay(tmp_path / "x.trace", plans="pinned")
    assert report.ok and report.products["assumed"] == 0 and report.products["products"] == 2


def test_the_card_of_a_trace_brings_its_shipped_table(tmp_path):
    gen = torch.Generator().manual_seed(1)
    shape = (2048, 768, 3072)  # the RTX A6000 splits it [paper, section 5.24]
    with step_oracle.card("rtx-a6000"):
        a = torch.randn(shape[0], shape[2], generator=gen).to("oracle").bfloat16()
        b = torch.randn(shape[2], shape[1], generator=gen).to("oracle").bfloat16()
        with step_oracle.record(tmp_path / "x.trace", keep="state"):
            _ = a @ b
    step_oracle.set_card("h100-sxm")
    report = step_oracle.replay(tmp_path / "x.trace")
    assert report.ok and report.products == {"products": 1, "assumed": 0, "kinds": []}
    assert not step_oracle.replay(tmp_path / "x.trace", plans="pinned").ok


def test_a_table_of_another_card_is_refused(trace, tmp_path):
    with pytest.raises(ValueError, match="the plan table is of l40, and the replay is for l4; give a table of this"):
        step_oracle.replay(trace, plans=table(tmp_path / "o.json", PLAN, "l40"))


def test_the_command_searches_saves_and_says_what_was_assumed(trace, tmp_path, capsys):
    out = tmp_path / "saved.json"
    assert cli.main(["replay", str(trace), "--fit-plans", "--save-plans", str(out), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert f"plan of {PRODUCT}: splits 3, chunks of 128, reduction in_place (op 0" in text
    assert "1 of 3 matrix products (1 kind) had no plan" in text
    assert cli.main(["replay", str(trace), "--plans", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["products"]["assumed"] == 1 and report["fitted"] == []


LIVE = """
import torch, step_oracle
step_oracle.set_card("l4"{})
x = torch.ones(4, 4, device="oracle")
x @ x
x @ x
"""


def run(script: str, **env: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, **env})  # fmt: skip
    return done.stderr


def test_a_live_run_says_once_at_its_end_what_was_assumed_and_how_to_silence_it():
    said = run(LIVE.format(""))
    assert said.count("\n") == 1
    assert "2 of 2 matrix products (1 kind) had no plan" in said and "STEP_ORACLE_ASSUMED=quiet" in said
    assert run(LIVE.format(""), STEP_ORACLE_ASSUMED="quiet") == ""
    assert run(LIVE.format(', plans="pinned"')) == ""


def test_assumed_counts():
    from step_oracle import device

    step_oracle.set_card("l4")
    device.extension().clear_plan_tally()
    x = torch.ones(3, 5, device="oracle")
    _ = x @ x.t()
    assert plans.assumed() == {"products": 1, "assumed": 1, "kinds": ["mm float32 nt m 3 n 3 k 5"]}
