"""The generated pages are what their sources say, and every grade names a test that exists."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.policy
def test_generated_pages_are_fresh() -> None:
    out = subprocess.run([sys.executable, ROOT / "scripts/make_docs", "--check"], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout


@pytest.mark.policy
def test_every_grade_has_its_witness() -> None:
    rows = json.loads((ROOT / "step_oracle/data/evidence.json").read_text())
    assert rows
    for row in rows:
        folder = ROOT / "tests" / row["test"]
        assert any(folder.glob("*test*")), f"{row['family']} ({row['what']}): tests/{row['test']} holds no test"
        if row["grade"] in ("source", "fit"):
            assert row["family"] in (ROOT / "docs/limits.md").read_text(), f"{row['family']} is not in docs/limits.md"


@pytest.mark.policy
def test_links_of_the_docs() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
