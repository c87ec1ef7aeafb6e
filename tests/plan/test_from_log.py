"""cuBLASLt's log as plans: lines that people have published, what others measured of the algorithms, and refusals."""

import json
import pathlib
import re

import pytest

import step_oracle
from step_oracle import cli, plan_facts, plan_log
from step_oracle.cards import find_card
from step_oracle.plan_facts import Algorithm, NotKnown

PUBLISHED = json.loads((pathlib.Path(__file__).parents[1] / "data/published/gemm_kernels.json").read_text())
SPELLED = {"bf16": "R_16BF", "fp16": "R_16F", "fp32": "R_32F"}


def line(m, n, k, algo, *, dtype="R_16BF", transa="", transb="", sms=0, extra="", tail="beta=0", head="TST",
         compute="COMPUTE_32F"):  # fmt: skip
    """A line as cuBLASLt writes it; m and n are the library's, column-major."""
    a, b = ((k, m) if transa else (m, k)), ((n, k) if transb else (k, n))
    desc = [f"{x}=0X7F00 {x}desc=[type={dtype} rows={r} cols={c} ld={r}]"
            for x, (r, c) in zip("ABCD", (a, b, (m, n), (m, n)), strict=True)]
    turned = "".join(f" trans{x}=OP_T" for x, t in (("a", transa), ("b", transb)) if t)
    target = f" smCountTarget={sms}" if sms else ""
    return (f"[2026-01-02 03:04:05][cublasLt][8291][Trace][cublasLt{head}Matmul] {' '.join(desc)} "
            f"computeDesc=[computeType={compute} scaleType=R_32F{turned}{target}{extra}] algo=[{algo}] workSpace=0X0 "
            f"workSpaceSizeInBytes=0 {tail} outOfPlace=0 stream=0X0\n")  # fmt: skip


def read(tmp_path, card, *lines):
    path = tmp_path / "lt.log"
    path.write_text("[2026-01-02 03:04:05][cublasLt][8291][Api][cublasLtCreate] handle=0X1\n" + "".join(lines))
    return plan_log.read(path, find_card(card))


def algo_text(algo):
    text = f"algoId={algo.get('algoId', 21)} tile=MATMUL_TILE_{algo.get('tile', '64x64')}"
    for key, name in (("stages", "stages=MATMUL_STAGES_"), ("splitK", "numSplitsK="), ("reduction", "reductionScheme="),
                      ("customOption", "customOption=")):  # fmt: skip
        if key in algo:
            text += f" {name}{algo[key]}"
    return text


def test_published_rows_with_an_algorithm_read_as_they_say():
    rows = [r for r in PUBLISHED if r.get("algo") and r["n"]]
    assert len(rows) >= 10
    for r in rows:
        dtype = next((v for k, v in SPELLED.items() if r["dtype"].startswith(k)), "R_8F_E4M3")
        text = line(r["m"], r["n"], r["k"], algo_text(r["algo"]), dtype=dtype, transa=r["transa"] == "t",
                    transb=r["transb"] == "t", sms=r["algo"].get("smCountTarget", 0))  # fmt: skip
        call = plan_log.parse_line(text, 1)
        assert (call.m, call.n, call.k) == (r["n"], r["m"], r["k"]), "torch's m and n are the library's, exchanged"
        if r["transa"]:
            assert call.layout == r["transb"] + r["transa"]
        assert call.algorithm.tile == r["algo"].get("tile", "64x64")
        assert call.algorithm.splits == r["algo"].get("splitK", 1)
        assert call.algorithm.reduction == r["algo"].get("reduction", "NONE")
        assert call.algorithm.stages == r["algo"].get("stages", "")
        assert call.sms == r["algo"].get("smCountTarget")


def test_published_rows_with_a_plan_get_it():
    """splitK and the sliced kernels of gemm_kernels.json in the vocabulary."""
    def of(text):
        return next(r for r in PUBLISHED if text in json.dumps(r))

    blackwell = of("numSplitsK=5 reductionScheme=INPLACE")  # 170 multiprocessors
    found = plan_facts.plans_of(Algorithm(21, "32x32", "", 5, "INPLACE"), dtype="bfloat16", m=32, n=1024, k=2048,
                                bias=False, compute_capability="12.0", sms=170, threads_per_sm=1536)  # fmt: skip
    assert [f.plan for f in found] == [{"splits": blackwell["algo"]["splitK"], "width": 448, "reduction": "in_place"}]
    hopper = of("64x32")
    found = plan_facts.plans_of(Algorithm(55, "64x32", "8x3", hopper["algo"]["splitK"]), dtype="float32", m=16, n=1000,
                                k=2048, bias=False, compute_capability="9.0", sms=14, threads_per_sm=2048)  # fmt: skip
    assert [f.plan for f in found] == [{"splits": 8, "deal": "round_robin", "width": 8}]
    laptop = of("128x4096x4096")["algo"]
    found = plan_facts.plans_of(Algorithm(21, laptop["tile"], laptop["stages"], laptop["splitK"], laptop["reduction"]),
                                dtype="float16", m=128, n=4096, k=4096, bias=False, compute_capability="8.9", sms=24,
                                threads_per_sm=1536)  # fmt: skip
    assert [f.plan for f in found] == [{"splits": 3, "width": 1408, "reduction": "in_place"}]
    split = [r for r in PUBLISHED if r.get("algo", {}).get("splitK") == 14][0]
    assert split["workspace"] == 14 * split["m"] * 144 * 4, "14 float32 partial sums: COMPUTE_TYPE"


@pytest.mark.parametrize("row", [r for r in PUBLISHED if r.get("kernel")], ids=lambda r: r["kernel"][:40])
def test_kernels_that_a_profiler_names(row):
    name, k = row["kernel"], row["k"]
    if "gemmSN" in name:
        with pytest.raises(NotKnown, match="is not known; fit its plan"):
            plan_facts.of_kernel(name, k, "8.9")
        return
    splits = row["grid"][2] if "splitKreduce" in name and row.get("grid") else 1
    found = [f.plan for f in plan_facts.of_kernel(name, k, "8.9", splits)]
    if "sliced1x4" in name:
        assert all(p["slices"] == 4 for p in found) and len(found) > 1, "which interleave is not published"
    elif "simt" in name or "sgemm" in name:
        assert found[0] == {}
    else:
        tile = int(re.search(r"stages_(\d+)x", name)[1]) if "stages" in name else 32
        assert found == [{"tail": "short_first", "tail_width": tile} if k % tile else {}]


def test_the_a6000_of_the_paper(tmp_path):
    """Section 5.24's thirteen splits from lines of such a log are the shipped table's."""
    log = read(tmp_path, "rtx-a6000",
               line(768, 2048, 3072, "algoId=21 tile=MATMUL_TILE_64x64 stages=MATMUL_STAGES_64x3 numSplitsK=3 "
                                     "reductionScheme=INPLACE", sms=84),
               line(768, 2048, 50304, "algoId=21 tile=MATMUL_TILE_64x64 stages=MATMUL_STAGES_64x3 numSplitsK=8 "
                                      "reductionScheme=INPLACE", sms=84))  # fmt: skip
    assert log.open == log.unknown == []
    ours = {(r["m"], r["n"], r["k"]): r for r in log.rows}
    assert ours[2048, 768, 3072]["plan"] == {"splits": 3, "width": 1024, "reduction": "in_place"}
    assert ours[2048, 768, 50304]["plan"] == {"splits": 8, "width": 6336, "reduction": "in_place"}
    assert all(r["reduced_precision"] for r in log.rows)


def test_the_l40_of_the_paper(tmp_path):
    bias = " epilogue=EPILOGUE_BIAS biasPointer=0x7f"
    log = read(tmp_path, "l40",
               line(768, 2048, 3072, "algoId=30 tile=MATMUL_TILE_64x64", transa=True, sms=142, extra=bias),
               line(768, 2048, 2304, "algoId=30 tile=MATMUL_TILE_128x64", transa=True, extra=bias),
               line(768, 2048, 50304, "algoId=30 tile=MATMUL_TILE_64x64 numSplitsK=5 "
                                      "reductionScheme=INPLACE"))  # fmt: skip
    plans = [r["plan"] for r in log.rows]
    assert plans[0] == {"slices": 4, "slice_width": 16, "combine": "halves", "bias": "slice_zero"}
    assert plans[1] == {"slices": 2, "slice_width": 32, "bias": "slice_zero"}
    assert plans[2]["splits"] == 5 and plans[2]["width"] == 10112
    assert (log.rows[0]["op"], log.rows[0]["layout"], log.rows[0]["epilogue"]) == ("addmm", "nt", "bias")


SM90 = [  # algorithm, (m, n, k), plan: as cublas_match's fixtures have them
    (Algorithm(66, stages="64xAUTO"), (512, 512, 4096), {}),
    (Algorithm(66, stages="64xAUTO", splits=5), (64, 64, 50304), {"splits": 5, "width": 10112}),
    (Algorithm(66, stages="64xAUTO", splits=9), (1, 8, 11528),
     {"splits": 9, "width": 1280, "tail": "dropped", "tail_width": 64}),
    (Algorithm(12), (64, 64, 4096), {"group": 8}),
    (Algorithm(24), (64, 64, 4097), {"group": 8, "tail": "short_first", "tail_width": 32}),
    (Algorithm(24, splits=2), (64, 64, 4096), {"group": 8, "splits": 2, "width": 2048, "reduction": "in_place"}),
    (Algorithm(21, stages="64x5"), (64, 64, 1000), {"tail": "short_first", "tail_width": 64}),
    (Algorithm(23, stages="128x2", splits=3, reduction="COMPUTE_TYPE"), (64, 64, 1001),
     {"splits": 3, "width": 336, "tail": "short_first", "tail_width": 128}),
    (Algorithm(23, stages="32x10", splits=3, reduction="OUTPUT_TYPE"), (64, 64, 960),
     {"splits": 3, "width": 320, "reduction": "output_type"}),
    (Algorithm(16), (8, 4096, 40), {"unit": "chain"}),
    (Algorithm(11, option=0), (8, 4096, 512), {"unit": "chain", "splits": 2, "width": 256}),
    (Algorithm(11, option=1), (8, 4096, 1000), {"unit": "chain", "splits": 4, "width": 250, "block": 128}),
    (Algorithm(13, option=0), (1, 4096, 4096), {"unit": "chain", "block": 512}),
    (Algorithm(13, option=47), (1, 4096, 4096), {"unit": "chain", "slices": 32, "slice_width": 1, "combine": "halves"}),
    (Algorithm(13, option=36), (1, 4096, 1000),
     {"unit": "chain", "slices": 32, "slice_width": 32, "combine": "halves"}),
    (Algorithm(13, option=11), (1, 4096, 4096), {"unit": "chain", "slices": 16, "slice_width": 1, "block": 32}),
    (Algorithm(13, option=5), (1, 4096, 581), {"unit": "chain", "splits": 31, "width": 19, "block": 16}),
    (Algorithm(13, option=10), (1, 8448, 4096), {"unit": "chain", "slices": 32, "slice_width": 4, "combine": "halves"}),
    (Algorithm(14, splits=4), (4096, 1, 4096), {"unit": "chain", "splits": 4, "width": 256, "deal": "round_robin",
                                                "order": "one_block", "slices": 256, "slice_width": 1,
                                                "combine": "pairs"}),
    (Algorithm(14), (1, 4096, 4096), {"unit": "chain", "slices": 128, "slice_width": 1, "combine": "halves"}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "shape", "plan"), SM90, ids=str)
def test_every_order_that_is_published_for_sm_90_is_a_plan(algorithm, shape, plan):
    m, n, k = shape
    found = plan_facts.plans_of(algorithm, dtype="bfloat16", m=m, n=n, k=k, bias=False, compute_capability="9.0",
                                sms=132, threads_per_sm=2048)  # fmt: skip
    assert [f.plan for f in found] == [plan]
    row = {"op": "mm", "dtype": "bfloat16", "layout": "nn", "m": m, "n": n, "k": k, "plan": plan}
    table = {"format": "step-oracle plan table 1", "card": "h100-sxm", "library": "x", "source": "t", "rows": [row]}
    assert json.loads(step_oracle.device.extension().format_plan_table(json.dumps(table)))["rows"][0]["plan"] == plan


@pytest.mark.parametrize("algorithm", [Algorithm(41), Algorithm(56), Algorithm(13, option=99),
                                       Algorithm(11, option=2), Algorithm(21, stages="16x4"),
                                       Algorithm(24, splits=2, reduction="ODD")])  # fmt: skip
def test_what_is_not_published_is_not_known(algorithm):
    with pytest.raises(NotKnown, match=r"is not known; fit (its|the) plan from the bytes"):
        plan_facts.plans_of(algorithm, dtype="bfloat16", m=1, n=4096, k=4096, bias=False, compute_capability="9.0",
                            sms=132, threads_per_sm=2048)  # fmt: skip


def test_a_chunk_whose_rounding_no_log_states_stays_open(tmp_path):
    log = read(tmp_path, "l40", line(768, 2048, 50300, "algoId=20 tile=MATMUL_TILE_64x64 numSplitsK=5 "
                                                      "reductionScheme=COMPUTE_TYPE", dtype="R_32F", head="SSS"),
               line(768, 2048, 3072, "algoId=20 numSplitsK=3 reductionScheme=COMPUTE_TYPE", dtype="R_32F"),
               line(768, 768, 2048, "algoId=1 tile=MATMUL_TILE_64x32", dtype="R_32F", transb=True))  # fmt: skip
    assert [r["plan"] for r in log.rows] == [{"splits": 3, "width": 1024}]
    assert [len(o["plans"]) for o in log.open] == [4, 12]


def test_a_log_of_other_classes_and_batches(tmp_path):
    log = read(tmp_path, "h100-sxm", line(64, 64, 64, "algoId=66", dtype="R_8F_E4M3"),
               line(64, 64, 64, "algoId=0", dtype="R_32F", compute="COMPUTE_32F_FAST_TF32"),
               line(64, 32, 64, "algoId=66", extra="", tail="beta=1").replace(
                   "ld=64]", "ld=64 batchCount=12 stridedBatchOffset=4096]"))  # fmt: skip
    assert [u["reason"].split(" ")[0] for u in log.unknown] == ["products", "COMPUTE_32F_FAST_TF32"]
    assert log.rows[0]["op"] == "baddbmm" and log.rows[0]["batch"] == 12 and log.rows[0]["epilogue"] == "beta"


def test_the_command(tmp_path, capsys):
    path, out = tmp_path / "lt.log", tmp_path / "t.json"
    path.write_text(line(768, 2048, 3072, "algoId=30 tile=MATMUL_TILE_64x64", transa=True) +
                    line(64, 64, 64, "algoId=99"))  # fmt: skip
    assert cli.main(["plan", "from-log", str(path), "--card", "l40", "-o", str(out)]) == 1
    text = capsys.readouterr().out
    assert "2 products of l40; 1 kinds decided, 0 open, 1 unknown" in text
    assert "slices 4 of 16, combined halves" in text
    assert "algorithm 99 of compute capability 8.9 for bfloat16 is not known" in text
    step_oracle.set_card("l40", plans=out)
    assert cli.main(["plan", "show", "--card", "l40", "--plans", str(out)]) == 0
    assert cli.main(["plan", "from-log", str(path), "--card", "l40", "--json"]) == 1


@pytest.mark.parametrize(("text", "card", "says"), [
    ("nothing\n", "l40", "has no line of a matrix product with its algorithm; write it with CUBLASLT_LOG_LEVEL=2"),
    (line(64, 64, 64, "algoId=21", sms=170), "l40",
     "was written for 170 multiprocessors, and l40 has 142: it is the log of another card"),
    (line(64, 64, 64, "algoId=99"), "l40", "no product of"),
    (line(64, 64, 64, "algoId=21").split(" Ddesc")[0] + " algo=[\n", "l40", "it is cut off"),
    (line(64, 64, 640, "algoId=21") + line(64, 64, 640, "algoId=21 numSplitsK=2"), "l40", "two plans"),
    (line(64, 64, 64, "algoId=21"), "a100-pcie",
     "'a100-pcie' may be a100-pcie-40gb or a100-pcie-80gb; give one of them"),
])  # fmt: skip
def test_refusals_are_one_sentence(text, card, says, tmp_path, capsys):
    path = tmp_path / "lt.log"
    path.write_text(text)
    assert cli.main(["plan", "from-log", str(path), "--card", card]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_wrong_table_is_refused(tmp_path, capsys):
    path, other = tmp_path / "lt.log", tmp_path / "o.json"
    path.write_text(line(64, 64, 64, "algoId=21"))
    other.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "x", "source": "t",
                                 "rows": []}))  # fmt: skip
    assert cli.main(["plan", "from-log", str(path), "--card", "l40", "--also", str(other)]) == 2
    assert "the plan table is of l4, and the log of l40" in capsys.readouterr().err
    good = plan_log.read(path, find_card("l40"))
    other.write_text(good.table)
    assert cli.main(["plan", "from-log", str(path), "--card", "l40", "--also", str(other)]) == 2
    assert "repeats mm bfloat16 nn m 64 n 64 k 64" in capsys.readouterr().err


def test_damaged_lines_are_refused_or_read():
    import random

    rng = random.Random(3)
    whole = line(768, 2048, 3072, "algoId=21 tile=MATMUL_TILE_64x64 numSplitsK=3 reductionScheme=INPLACE", sms=84)
    for _ in range(2000):
        text = list(whole)
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = chr(rng.randint(32, 126))
        try:
            plan_log.parse_line("".join(text)[: rng.randint(40, len(text))], 1)
        except ValueError:
            pass
