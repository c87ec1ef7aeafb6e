"""What a stranger found: input that was damaged, meant nothing, or was taken for something else."""

import json

import pytest
import torch

import step_oracle
from step_oracle import cards, cli, plan_facts, plan_log, plan_table, plans
from step_oracle.cards import find_card

LINE = ("[2026-01-02 03:04:05][cublasLt][8291][Trace][cublasLtTSTMatmul] "
        "Adesc=[type={dtype} rows={rows} cols={k} ld=64] Bdesc=[type={dtype} rows={k} cols=32 ld=2048] "
        "Cdesc=[type={dtype} rows={rows} cols=32 ld=64] Ddesc=[type={dtype} rows={rows} cols=32 ld=64{batch}] "
        "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F] "
        "algo=[algoId={algo} tile=MATMUL_TILE_64x64 stages=MATMUL_STAGES_32x6{splits}] beta=0\n")  # fmt: skip
USUAL = {"dtype": "R_16BF", "rows": 64, "k": 2048, "algo": 21, "splits": "", "batch": ""}


def write_log(tmp_path, **fields):
    path = tmp_path / "lt.log"
    path.write_text(LINE.format(**{**USUAL, **fields}))
    return path


@pytest.mark.parametrize("fields, told", [
    ({"splits": " numSplitsK=0 reductionScheme=REDUCTION_SCHEME_INPLACE"}, "numSplitsK=0 is no whole number from 1"),
    ({"splits": " numSplitsK=-1"}, "numSplitsK=-1 is no whole number from 1"),
    ({"splits": " numSplitsK=x"}, "numSplitsK=x is no whole number"),
    ({"splits": " numSplitsK=" + "9" * 5000}, "is no whole number"),
    ({"splits": " numSplitsK=4096"}, "numSplitsK=4096 is more than k, 2048"),
    ({"splits": " customOption=-3"}, "customOption=-3 is no whole number from 0"),
    ({"rows": -64}, "rows=-64 is no whole number from 1"),
    ({"rows": 0}, "rows=0 is no whole number"),
    ({"k": 0}, "cols=0 is no whole number"),
    ({"batch": " batchCount=0"}, "batchCount=0 is no whole number"),
    ({"algo": "x"}, "algoId=x is no whole number"),
    ({"algo": -21}, "algoId=-21 is no whole number"),
])  # fmt: skip
def test_a_log_line_s_numbers_are_checked(tmp_path, capsys, fields, told):
    path = write_log(tmp_path, **fields)
    assert cli.main(["plan", "from-log", str(path), "--card", "rtx-a6000"]) == 2
    text = capsys.readouterr().err
    assert "line 1 of the log is damaged: " in text and told in text and text.count("\n") == 1


def test_the_line_that_is_damaged_there_is_one_that_reads(tmp_path):
    assert len(plan_log.read(write_log(tmp_path), find_card("rtx-a6000")).rows) == 1
    split = " numSplitsK=2 reductionScheme=REDUCTION_SCHEME_INPLACE"
    (row,) = plan_log.read(write_log(tmp_path, splits=split), find_card("rtx-a6000")).rows
    assert row["plan"] == {"splits": 2, "width": 1024, "reduction": "in_place"}
    absent = " numSplitsK=N/A"
    assert len(plan_log.read(write_log(tmp_path, splits=absent), find_card("rtx-a6000")).rows) == 1


@pytest.mark.parametrize("k, splits, rounding", [(0, 2, 64), (64, 0, 64), (64, -1, 64), (64, 2, 0)])
def test_chunks_of_nothing_are_refused_where_the_division_is(k, splits, rounding):
    with pytest.raises(ValueError, match="has no chunks"):
        plan_facts.chunk(k, splits, rounding)


@pytest.mark.parametrize("splits, k", [(0, 64), (-1, 64), (2, 0)])
def test_an_algorithm_of_no_parts_has_no_plan(splits, k):
    for number in (0, 11, 13, 14, 21, 66):
        with pytest.raises(ValueError, match="give 1 or more"):
            plan_facts.plans_of(plan_facts.Algorithm(number, splits=splits), dtype="bfloat16", m=1, n=8, k=k,
                                bias=False, compute_capability="9.0", sms=132, threads_per_sm=2048)  # fmt: skip


@pytest.mark.parametrize("card", ["t4", "rtx-a6000", "l4", "h100-sxm", "b200"])
def test_algorithm_6_is_unpublished_on_every_card(tmp_path, card):
    with pytest.raises(ValueError, match="algorithm 6 of compute capability .* is not known"):
        plan_log.read(write_log(tmp_path, algo=6, dtype="R_16F"), find_card(card))


def test_bfloat16_of_a_card_without_it_is_one_algorithm_s(tmp_path):
    """A tensor-core algorithm cannot be what such a card took."""
    with pytest.raises(ValueError, match=r"algorithm 21 in 1 parts for bfloat16 on compute capability 7\.5 is not"):
        plan_log.read(write_log(tmp_path), find_card("t4"))
    (row,) = plan_log.read(write_log(tmp_path, algo=16), find_card("t4")).rows
    assert row["plan"] == {} and "magma_sgemmEx_kernel" in row["source"]
    with pytest.raises(ValueError, match="algorithm 16 in 2 parts"):
        splits = " numSplitsK=2 reductionScheme=REDUCTION_SCHEME_INPLACE"
        plan_log.read(write_log(tmp_path, algo=16, splits=splits), find_card("t4"))
    assert plan_log.read(write_log(tmp_path, dtype="R_16F"), find_card("t4")).rows


def record(path, keep="all"):
    """x @ w.t() of bfloat16 made before the recording."""
    gen = torch.Generator().manual_seed(3)
    x, w = (torch.randn(rows, 512, generator=gen).bfloat16() for rows in (32, 64))
    with step_oracle.card("rtx-a6000"):
        x, w = x.to("oracle"), w.to("oracle")
        with step_oracle.record(path, keep=keep):
            x @ w.t()
    return path


@pytest.fixture
def cut(tmp_path):
    whole = record(tmp_path / "whole.trace").read_bytes()
    path = tmp_path / "cut.trace"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    return path


@pytest.mark.parametrize("command", ["lint {}", "plan fit {}", "plan fit {} --op 0", "plan family {}"])
def test_a_trace_that_was_cut_is_refused(cut, capsys, command):
    assert cli.main(command.format(cut).split()) == 2
    out, err = capsys.readouterr()
    assert "is not complete" in err and "is cut inside" in err and err.count("\n") == 1
    assert out == "", "and nothing is said to be found"


@pytest.mark.parametrize("index", [2, 99, -1])
def test_an_op_that_a_trace_does_not_have(tmp_path, capsys, index):
    path = record(tmp_path / "x.trace")
    assert cli.main(["plan", "fit", str(path), "--op", str(index)]) == 2
    assert f"has no op {index}: its 2 ops are numbered from 0" in capsys.readouterr().err


BAD_FILES = {"empty": (b"", "it is empty"), "blank": (b" \n", "it is empty"),
             "binary": (b"\xff\x00\xfe", "is not text"),
             "other": (b"{", "it is not JSON"), "deep": (b"[" * 200000, "it is not JSON")}  # fmt: skip


@pytest.mark.parametrize("kind", [*BAD_FILES, "missing", "folder"])
def test_a_file_that_is_no_plan_table_is_refused_by_every_reader(tmp_path, capsys, kind):
    path, trace = tmp_path / "t.json", record(tmp_path / "x.trace")
    if kind in BAD_FILES:
        path.write_bytes(BAD_FILES[kind][0])
    elif kind == "folder":
        path.mkdir()
    told = BAD_FILES[kind][1] if kind in BAD_FILES else "cannot be read"
    for command in (f"replay {trace} --plans {path}", f"lint {trace} --plans {path}",
                    f"plan show --card rtx-a6000 --plans {path}",
                    f"plan from-log {write_log(tmp_path)} --card rtx-a6000 --also {path}"):  # fmt: skip
        assert cli.main(command.split()) == 2, command
        err = capsys.readouterr().err
        assert told in err and str(path) in err and err.count("\n") == 1, command
    for call in (lambda: step_oracle.replay(trace, plans=path), lambda: step_oracle.set_card("rtx-a6000", plans=path)):
        with pytest.raises((ValueError, OSError), match=told) as refused:
            call()
        assert not isinstance(refused.value, UnicodeDecodeError)


ROW = {"op": "mm", "dtype": "bfloat16", "layout": "nn", "m": 8, "n": 8, "k": 64,
       "plan": {"splits": 2, "width": 32}}  # fmt: skip


def table(card, *rows):
    return json.dumps({"format": "step-oracle plan table 1", "card": card, "library": "x", "source": "s",
                       "rows": rows})  # fmt: skip


@pytest.mark.parametrize("card, fields, told", [
    ("rtx-a6000", {"plan": {"tail": "dropped", "tail_width": 100}}, "drops all of k = 64"),
    ("rtx-a6000", {"dtype": "float32", "reduced_precision": True}, "a switch of bfloat16 and float16"),
    ("rtx-a6000", {"dtype": "float32", "plan": {"splits": 2, "width": 32, "reduction": "output_type"}}, "output_type"),
    ("rtx-a6000", {"dtype": "float32", "plan": {"group": 4}}, "is a tensor core's"),
    ("rtx-a6000", {"dtype": "float32", "plan": {"unit": "chain"}}, "for 16-bit factors"),
    ("rtx-a6000", {"epilogue": "bias"}, "mm adds nothing"),
    ("rtx-a6000", {"plan": {"bias": "first"}}, "its epilogue is none"),
    ("rtx-a6000", {"batch": 3}, "mm is a single product"),
    ("rtx-a6000", {"plan": {"width": 32}}, "'width' and without 'splits'"),
    ("rtx-a6000", {"plan": {"reduction": "in_place"}}, "'reduction' and without 'splits'"),
    ("rtx-a6000", {"plan": {"deal": "balanced"}}, "'deal' and without 'splits'"),
    ("rtx-a6000", {"plan": {"splits": 1, "order": "descending"}}, "'order' and without 'splits'"),
    ("rtx-a6000", {"plan": {"combine": "adjacent"}}, "'combine' and without 'slices'"),
    ("rtx-a6000", {"plan": {"tail_width": 32}}, "'tail_width' and without 'tail'"),
    ("rtx-a6000", {"plan": {"group": 16}}, "takes 8 products of bfloat16 at once"),
    ("rtx-a6000", {"dtype": "tf32", "plan": {"group": 8}}, "takes 4 products of tf32 at once"),
    ("t4", {"plan": {"group": 8}}, "is a tensor core's, and bfloat16 is not computed on one"),
    ("t4", {"plan": {"unit": "chain"}}, "the unit chain, which bfloat16 has on compute capability 7.5 anyway"),
    ("t4", {"dtype": "tf32"}, "7.5 do not have"),
])  # fmt: skip
def test_a_table_that_means_nothing_is_refused(tmp_path, card, fields, told):
    path = tmp_path / "t.json"
    path.write_text(table(card, {**ROW, **fields}))
    with step_oracle.card(card), pytest.raises(ValueError, match="row 1 ") as refused:
        step_oracle.set_card(card, plans=path)
    assert told in str(refused.value)


def test_a_field_given_twice_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(table("rtx-a6000", ROW).replace('"m": 8', '"m": 8, "m": 9'))
    with pytest.raises(ValueError, match="the field 'm' twice"):
        step_oracle.plans.show("rtx-a6000", path)


@pytest.mark.parametrize("card, fields", [
    ("rtx-a6000", {}),
    ("rtx-a6000", {"plan": {"tail": "dropped", "tail_width": 48}}),
    ("rtx-a6000", {"plan": {"group": 8}}),
    ("h100-sxm", {"plan": {"group": 16}}),
    ("h100-sxm", {"dtype": "tf32", "plan": {"group": 8}}),
    ("rtx-a6000", {"op": "addmm", "epilogue": "bias", "reduced_precision": False}),
    ("t4", {"dtype": "float16"}),
    ("t4", {"plan": {"splits": 2, "width": 32, "reduction": "in_place"}}),
])  # fmt: skip
def test_a_table_that_means_something_is_read(tmp_path, card, fields):
    path = tmp_path / "t.json"
    path.write_text(table(card, {**ROW, **fields}))
    assert step_oracle.plans.show(card, path)["rows"]


def test_the_groups_that_a_table_may_have_are_those_that_a_product_takes(tmp_path):
    """The largest that is let through computes; the class's terms are not stated twice without being compared."""
    path = tmp_path / "t.json"
    for card, group in (("t4", 8), ("rtx-a6000", 8), ("l4", 8), ("h100-sxm", 16), ("b200", 16)):
        path.write_text(table(card, {**ROW, "dtype": "float16", "plan": {"group": group}}))
        with step_oracle.card(card, plans=path):
            a, b = torch.ones(8, 64).half().to("oracle"), torch.ones(64, 8).half().to("oracle")
            assert (a @ b).cpu().eq(64).all()
        assert plan_table.terms_of("float16", find_card(card).compute_capability) == group


def test_the_tables_that_come_along_mean_something():
    paths = sorted(cards.PLAN_FOLDER.glob("*.json"))
    assert paths
    for path in paths:
        plan_table.read(path)


def test_factors_that_were_only_turned_are_found_in_a_trace_of_the_state(tmp_path):
    """x @ w.t(): the trace keeps w, and the product reads its transpose."""
    found = [plans.fit_op(step_oracle.load(record(tmp_path / f"{keep}.trace", keep)), 1) for keep in ("all", "state")]
    assert [f["compared"] for f in found] == ["bytes", "digest"]
    assert found[0]["plans"] == found[1]["plans"] and {} in found[0]["plans"]


def train(path):
    """All of it inside: factors drawn on the host, cast, moved; a backward whose factors are computed."""
    torch.manual_seed(1)
    with step_oracle.card("rtx-a6000"), step_oracle.record(path, keep="state"):
        w = torch.randn(64, 256).bfloat16().to("oracle").requires_grad_()
        x = torch.randn(32, 256).bfloat16().to("oracle")
        y = torch.nn.functional.linear(x, w, torch.randn(64).bfloat16().to("oracle"))
        (y.float() ** 2).mean().backward()
    return path


def test_factors_that_were_computed_are_told_from_those_that_were_moved(tmp_path, capsys):
    path = train(tmp_path / "x.trace")
    forward, backward = plans.fit_trace(step_oracle.load(path))["ops"]
    assert forward["op"] == "aten.addmm" and forward["compared"] == "digest" and {} in forward["plans"]
    assert "record with keep='all'" in backward["error"] and "replay --fit-plans" in backward["error"]
    saved = tmp_path / "t.json"
    assert cli.main(["replay", str(path), "--fit-plans", "--save-plans", str(saved)]) == 0
    assert "no plan was fitted (every product has the recorded bytes)" in capsys.readouterr().err
    assert not saved.exists()
    assert cli.main(["replay", str(path), "--save-plans", str(saved)]) == 2
    assert "give both" in capsys.readouterr().err


def test_plan_show_says_the_switch_and_tf32(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(table("rtx-a6000", {**ROW, "reduced_precision": True}, {**ROW, "m": 16, "reduced_precision": False},
                          {**ROW, "dtype": "float32"}))  # fmt: skip
    shown = plans.show("rtx-a6000", path)
    assert sorted(r["product"] for r in shown["rows"]) == [
        "mm bfloat16 nn m 16 n 8 k 64 reduced_precision false", "mm bfloat16 nn m 8 n 8 k 64 reduced_precision true",
        "mm float32 nn m 8 n 8 k 64"]  # fmt: skip
    for card, terms in (("rtx-a6000", 4), ("h100-sxm", 8)):
        assert f"single pass, {terms} products at once" in [
            r["plan"] for r in plans.show(card)["defaults"] if r["product"] == "other tf32"]  # fmt: skip
    assert not [r for r in plans.show("t4")["defaults"] if "tf32" in r["product"]]
    assert [r["plan"] for r in plans.show("t4")["defaults"] if r["product"] == "other bfloat16"] == [
        "single pass, an fma each, on the CUDA cores"]  # fmt: skip
