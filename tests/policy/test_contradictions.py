"""What a card contradicted fails here until the model or the claim changes; a grade "card" needs a card's record."""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from probe import compare  # noqa: E402

EVIDENCE = json.loads((ROOT / "step_oracle/data/evidence.json").read_text())


def unmet(contradictions: list, evidence: list) -> list[str]:
    """Those that neither the model nor the claims have answered: the family still claims that compute capability."""
    found = []
    for c in contradictions:
        claims = [r for r in evidence if r["family"] == c["family"] and c["compute_capability"] in r["cards"]]
        if claims and not compare.is_met(c["claim"]):
            where = f"{c['record']}: {c['section']} {c['unit']}: {c['text']}"
            found.append(f"{where}: change the model (the card's word is in the record), or take "
                         f"{c['compute_capability']} out of {c['family']}'s claims in evidence.json")
    return found


@pytest.mark.policy
def test_no_contradiction_stands() -> None:
    found = unmet(compare.load_contradictions(), EVIDENCE)
    assert not found, "\n".join(found)


@pytest.mark.policy
def test_the_check_can_fail() -> None:
    entry = {"record": "x-2026", "section": "vectors", "unit": "exp_f32.2085", "family": "pointwise", "text": "t",
             "compute_capability": "9.0", "claim": {"vector": "exp_f32.2085", "digests": {"out_out": "00" * 32}}}
    assert len(unmet([entry], EVIDENCE)) == 1
    assert unmet([entry], [r for r in EVIDENCE if r["family"] != "pointwise"]) == [], "the claim was taken back"
    entry["claim"]["digests"] = {"out_out": compare.expected("exp_f32.2085")["out_out"]}
    assert unmet([entry], EVIDENCE) == [], "the vector was replaced by the card's"


@pytest.mark.policy
def test_grade_card_stands_on_a_record_of_a_card() -> None:
    for row in EVIDENCE:
        if row["grade"] != "card":
            continue
        folder = ROOT / row["witness"].rsplit(" ", 1)[-1]
        record = json.loads((folder / "record.json").read_text())
        assert record["dry"] is False and not record["card"].get("virtual") and record["versions"].get("cuda"), row
        assert record["card"]["compute_capability"] in row["cards"] and record["driver"] and record["command"]


@pytest.mark.policy
def test_no_dry_record_is_committed() -> None:
    for path in (ROOT / "tests/data").glob("card/*/record.json"):
        assert json.loads(path.read_text())["dry"] is False, path
