"""Maps, reductions, norms and so on are vendor code on 8.0 and 9.0, or docs/limits.md says why not."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = {"arith", "pointwise", "reduce", "softmax", "norm", "loss", "indexing", "random", "optimizer"}
STRONG = {"card", "vendor code"}
SECTION = "## Below vendor code on 8.0 and 9.0"


def reasons(text: str) -> dict[str, str]:
    """The rows `| `name` | reason |` of the section."""
    assert text.count(SECTION) == 1, f"docs/limits.md has one section '{SECTION}'"
    section = text.split(SECTION)[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", section, re.M))


def unnamed(rows: list[dict[str, object]], known: dict[str, str]) -> list[str]:
    wrong = []
    for row in rows:
        weak = row["grade"] not in STRONG and {"8.0", "9.0"} & set(row["cards"])  # type: ignore[call-overload]
        if row["family"] in FAMILIES and weak and row.get("limit") not in known:
            wrong.append(f"{row['family']}, {row['what']} ({row['dtype']}): {row['grade']}, limit {row.get('limit')}")
    return wrong


@pytest.mark.policy
def test_weaker_grades_have_their_reason() -> None:
    rows = json.loads((ROOT / "step_oracle/data/evidence.json").read_text())
    assert FAMILIES <= {row["family"] for row in rows}
    known = reasons((ROOT / "docs/limits.md").read_text())
    assert not unnamed(rows, known)
    used = {row["limit"] for row in rows if "limit" in row}
    assert used == set(known), f"docs/limits.md and evidence.json differ in {sorted(used ^ set(known))}"


@pytest.mark.policy
def test_the_rule_refuses() -> None:
    row = {"family": "norm", "what": "w", "dtype": "float32", "cards": ["7.5", "9.0"], "grade": "source"}
    assert unnamed([row], {}) and unnamed([row | {"limit": "another"}], {"one": "because"})
    assert not unnamed([row | {"limit": "one"}], {"one": "because"})
    assert not unnamed([row | {"cards": ["7.5", "8.9"]}, row | {"grade": "vendor code"}], {})
