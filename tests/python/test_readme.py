"""The README's example prints what the README says."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_runs_as_printed(tmp_path: pathlib.Path) -> None:
    match = re.search(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", README.read_text(), re.S)
    assert match
    code, printed = match.groups()
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout == printed
