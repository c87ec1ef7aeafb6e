"""A bf16-autocast GPT step on an Ampere and a Hopper card: each replays, they differ, and diff says where and why."""

import pathlib
import sys

import torch

import step_oracle

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
import gpt  # noqa: E402

SHAPE = gpt.Shape(vocab=61, width=128, heads=2, layers=1, tokens=64, batch=2)


def record(card: str, path: pathlib.Path) -> None:
    torch.manual_seed(4)
    with step_oracle.card(card), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model = gpt.GPT(SHAPE).to("oracle")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        gen = torch.Generator().manual_seed(5)
        x, y = (torch.randint(0, SHAPE.vocab, (SHAPE.batch, SHAPE.tokens), generator=gen).to("oracle") for _ in "xy")
        with step_oracle.record(path, model=model, optimizer=optimizer, keep="state"):
            with torch.autocast("oracle", torch.bfloat16):
                loss = model(x, y)
            loss.backward()
            optimizer.step()


def test_the_step_of_an_ampere_and_of_a_hopper_card(tmp_path):
    for card in ("a100-pcie-40gb", "h100-pcie"):
        record(card, tmp_path / f"{card}.trace")
    for card in ("a100-pcie-40gb", "h100-pcie"):
        report = step_oracle.replay(tmp_path / f"{card}.trace", mode="end-to-end")
        assert report.ok and report.reads_from_recording == 0, report.divergence
        assert report.products["products"] > 12
    crossed = step_oracle.replay(tmp_path / "a100-pcie-40gb.trace", card="h100-pcie")
    assert not crossed.ok and crossed.divergence.cause.startswith("GEMM class or plan")
    found = step_oracle.diff(tmp_path / "a100-pcie-40gb.trace", tmp_path / "h100-pcie.trace")
    assert not found.equal
    assert found.first.op in ("aten.mm", "aten.addmm", "aten.bmm")
    assert found.first.cause.startswith("adder class: compute_capability 8.0 against 9.0")
    assert crossed.divergence.index == found.first.index, "op by op, the other card's adder parts at the same product"
    assert len(found.root) >= 1 and found.knock_on > 0
    assert found.start.equal == found.start.compared > 0
