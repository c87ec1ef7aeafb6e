"""Matrix products that cards printed, recomputed with the card's class. Sources: tests/data/published/gemm.json,
bf16_on_turing.json."""

import collections
import json
from pathlib import Path

import pytest
import torch

import step_oracle
from step_oracle import plan_facts, units

ORACLE = "oracle"
ROWS = {row["id"]: row for row in json.loads((Path(__file__).parents[1] / "data/published/gemm.json").read_text())}


def corners(printed: dict, product: torch.Tensor) -> tuple[list[str], list[str]]:
    """What was printed, and what torch prints of `product` at these places with four decimals."""
    return printed["values"], [f"{product[i, j].item():.4f}" for i, j in printed["positions"]]


def halves(name: str, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    with step_oracle.card(name):
        torch.manual_seed(0)
        a, b = (torch.randn((512, 512), device=ORACLE, dtype=torch.float16).cpu() for _ in range(2))
    return a, b.T if transposed else b


def on_card(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows 0-2 and 509-511 of the product (the others are left zero): what was printed."""
    rows = [0, 1, 2, 509, 510, 511]
    out = torch.zeros(512, 512, dtype=a.dtype)
    with step_oracle.card(name):
        out[rows] = torch.matmul(a[rows].to(ORACLE), b.to(ORACLE)).cpu()
    return out


def test_float16_product_of_an_a100():
    row = ROWS["a-fp16-matmul-512-a100"]
    expected, actual = corners(row["printed"][0], on_card("a100-sxm-40gb", *halves("a100-sxm-40gb", False)))
    assert sum(e != a for e, a in zip(expected, actual, strict=True)) == 0


def test_float8_values_multiplied_as_float16_on_an_h100():
    row = ROWS["a-e5m2-as-fp16-matmul-512-114sm"]
    a, b = (x.to(torch.float8_e5m2).to(torch.float16) for x in halves("h100-pcie", True))
    expected, actual = corners(row["printed"][0], on_card("h100-pcie", a, b))
    assert sum(e != a for e, a in zip(expected, actual, strict=True)) == 0


def test_float8_product_of_an_h100s_tensor_cores():
    """The second list: the short accumulator of wgmma with e5m2 factors, which the float16 product does not show."""
    row = ROWS["a-e5m2-as-fp16-matmul-512-114sm"]
    places = [0, 1, 2, 509, 510, 511]
    a, b = (x.to(torch.float8_e5m2) for x in halves("h100-pcie", True))
    small = units.product("nv-hopper-wgmma-e5m2", a.half()[places], b.half()[:, places]).half()
    out = torch.zeros(512, 512, dtype=torch.float16)
    out[torch.tensor(places)[:, None], torch.tensor(places)] = small
    expected, actual = corners(row["printed"][1], out)
    assert sum(e != a for e, a in zip(expected, actual, strict=True)) == 0
    assert expected != row["printed"][0]["values"]


@pytest.mark.parametrize("name", ["a100-pcie-40gb", "l4", "h100-pcie"])
def test_tf32_rounds_its_factors_to_nearest(name):
    row = ROWS["a-tf32-mm-3x3-literals"]
    a = torch.tensor([[8.3899e-01, 5.4414e-01, 3.3142e05], [-5.4414e-01, 8.3899e-01, 4.6909e06], [0, 0, 1]])
    b = torch.tensor([[8.3899e-01, -5.4414e-01, 2.2745e06], [5.4414e-01, 8.3899e-01, -4.1160e06], [0, 0, 1]])
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with step_oracle.card(name):
            product = (a.to(ORACLE) @ b.to(ORACLE)).cpu()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert [f"{x:.4e}" for x in product.flatten().tolist()] == row["printed"][0]["values"]
    cut = units.product("nv-ampere-tf32", a, b)
    assert f"{cut[0, 2].item():.4e}" != row["printed"][0]["values"][2], "cut factors give another result"


TURING = json.loads((Path(__file__).parents[1] / "data/published/bf16_on_turing.json").read_text())


def profiled_step(width: int, tokens: int) -> None:
    """What the profiled program multiplies, in small: a one-hot product, 15 linear layers, q k^T and its product with
    v, and back."""
    layers = [torch.nn.Linear(width, width, bias=False).to("oracle") for _ in range(15)]
    with torch.autocast("oracle", dtype=torch.bfloat16):
        x = torch.nn.functional.one_hot(torch.zeros(2, tokens, dtype=torch.long), 32).float().to("oracle")
        x = (x @ torch.randn(32, width).to("oracle")).bfloat16()
        for first, second in zip(layers[:12:2], layers[1:12:2], strict=True):
            x = second(torch.nn.functional.gelu(first(x)))
        q, k, v = (layer(x) for layer in layers[12:])
        scores = torch.matmul(q, k.transpose(-2, -1)) / width**0.5
        loss = torch.matmul(torch.softmax(scores, dim=-1), v).mean()
    loss.backward()


def test_a_bfloat16_product_on_turing_is_one_launch_of_one_float32_kernel(tmp_path):
    """A T4's profile has as many launches of that kernel as calls of mm and bmm, and the calls' time is theirs; the
    same program here makes these calls. That kernel is the class's one pass."""
    steps = TURING["steps"]
    calls, kernels = steps["calls"], steps["kernels"]
    assert sum(k["launches"] for k in kernels) == sum(c["calls"] for c in calls.values())
    assert abs(sum(k["seconds"] for k in kernels) - sum(c["seconds"] for c in calls.values())) < 1e-3
    with step_oracle.card("t4"), step_oracle.record(tmp_path / "x.trace", keep="digests"):
        profiled_step(16, 8)
    ops = collections.Counter(op.op.split(".")[1] for op in step_oracle.load(tmp_path / "x.trace").ops)
    assert {f"aten::{name}": 98 * ops[name] for name in ("mm", "bmm")} == {n: c["calls"] for n, c in calls.items()}
    assert ops["addmm"] == ops["baddbmm"] == 0
    for name in [k["name"] for k in kernels] + [n["name"] for n in TURING["names"]]:
        (known,) = plan_facts.of_kernel(name, 768, "7.5")
        assert known.plan == {}
        with pytest.raises(plan_facts.NotKnown):
            plan_facts.of_kernel(name.replace("__nv_bfloat16", "__half"), 768, "7.5")
