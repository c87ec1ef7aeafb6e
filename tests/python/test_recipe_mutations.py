"""Runs tests/recipe_mutations/suite.py: no change to a recipe verifies wrongly, none ends in a stack trace."""

import pathlib
import subprocess
import sys

SUITE = pathlib.Path(__file__).parents[1] / "recipe_mutations" / "suite.py"


def test_every_change_is_refused_caught_or_changes_no_byte() -> None:
    out = subprocess.run([sys.executable, str(SUITE), "--per-program", "25"], capture_output=True, text=True)
    print(out.stdout[-6000:])
    assert out.returncode == 0, out.stdout[-3000:] + out.stderr[-3000:]
    assert ": 0 faults" in out.stdout.splitlines()[-1]
    assert int(out.stdout.splitlines()[-1].split()[0]) > 700
