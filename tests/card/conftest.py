import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).resolve().parents[2] / "scripts")]
import outputs  # noqa: E402


@pytest.fixture(scope="session")
def dry(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The whole flow on the virtual card."""
    if not (outputs.ROOT / "build/tests/arith/exhaustive").exists():
        pytest.fail("build/tests/arith/exhaustive is not built. Run: scripts/build --tests")
    folder = tmp_path_factory.mktemp("probe") / "out"
    done = outputs.probe("--dry", "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
