"""Plan tables behind the virtual card: a row changes the bytes of its shape, and of no other."""

import json
import pathlib

import pytest
import torch

import step_oracle

ROWS = [
    {"op": "mm", "dtype": "float32", "layout": "nn", "m": 8, "n": 16, "k": 200, "plan": {"splits": 2, "width": 104}},
    {"op": "addmm", "dtype": "float32", "layout": "nt", "epilogue": "bias", "m": 8, "n": 16, "k": 200,
     "plan": {"splits": 2, "width": 104, "bias": "first"}},
    {"op": "mm", "dtype": "bfloat16", "layout": "nn", "reduced_precision": True, "m": 8, "n": 16, "k": 200,
     "plan": {"splits": 2, "width": 104, "reduction": "in_place"}},
]  # fmt: skip


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"format": "step-oracle plan table 1", "card": "l4", "library": "any", "source": "test",
                                "rows": ROWS}))  # fmt: skip
    return path


@pytest.fixture
def factors() -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(1)
    return torch.randn(8, 200, generator=gen), torch.randn(200, 16, generator=gen)


def one_pass(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with step_oracle.card("l4"):
        return (a.contiguous().to("oracle") @ b.contiguous().to("oracle")).cpu()


def test_a_split_product_is_the_sum_of_its_parts(table, factors):
    a, b = factors
    parts = one_pass(a[:, :104], b[:104]), one_pass(a[:, 104:], b[104:])
    with step_oracle.card("l4", plans=table):
        split = (a.to("oracle") @ b.to("oracle")).cpu()
        other_shape = (a[:7].contiguous().to("oracle") @ b.to("oracle")).cpu()
        bias = torch.arange(16.0)
        biased = torch.nn.functional.linear(a.to("oracle"), b.t().contiguous().to("oracle"), bias.to("oracle")).cpu()
    assert torch.equal(split, parts[0] + parts[1])
    assert torch.equal(biased, (bias + parts[0]) + parts[1])
    assert not torch.equal(split, one_pass(a, b))
    assert torch.equal(other_shape, one_pass(a[:7], b)), "a shape without a row is a single pass"


def test_bfloat16_parts_are_added_in_bfloat16_only_while_torch_allows_it(table, factors):
    a, b = (x.bfloat16() for x in factors)
    in_place = one_pass(a[:, :104], b[:104])
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    try:
        with step_oracle.card("l4", plans=table):
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
            split = (a.to("oracle") @ b.to("oracle")).cpu()
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            exact = (a.to("oracle") @ b.to("oracle")).cpu()
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before
    assert torch.equal(exact, one_pass(a, b))
    assert not torch.equal(split, exact)
    assert (split.float() - in_place.float()).abs().max() > 0


def test_the_table_leaves_with_its_card(table, factors):
    a, b = factors
    with step_oracle.card("l4", plans=table):
        pass
    assert torch.equal(one_pass(a, b), one_pass(a, b))


def test_refusals(table, tmp_path):
    with pytest.raises(ValueError, match="a plan table of l4, not of l40"):
        step_oracle.set_card("l40", plans=table)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="no field 'format'"):
        step_oracle.set_card("l4", plans=tmp_path / "bad.json")
    with pytest.raises(FileNotFoundError):
        step_oracle.set_card("l4", plans=tmp_path / "missing.json")


@pytest.mark.parametrize("name", ["rtx-a6000", "l40", "h100-pcie"])
def test_cards_with_a_shipped_table_take_it(name):
    with step_oracle.card(name) as card:
        assert card.name == name


def test_a_table_does_not_outlive_its_card(table, factors):
    a, b = factors
    with step_oracle.card("l4", plans=table):
        step_oracle.device.extension().set_card(0, "l40s")  # as a replay for another card does
        other = (a.to("oracle") @ b.to("oracle")).cpu()
    assert torch.equal(other, one_pass(a, b))
