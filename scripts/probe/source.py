"""What the measurements depend on: the recorder, the probe, the vectors; not what only the import reads."""

from __future__ import annotations

import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
_IMPORT = ("compare.py", "output.py", "schema.py")


def is_stray(name: str) -> bool:
    """What a desktop leaves in every folder it looks at."""
    return name == ".DS_Store" or name.startswith("._")


def source_key() -> str:
    digest = hashlib.sha256()
    for folder in (
        "csrc/record",
        "scripts/probe",
        "tests/data/witness",
        "tests/data/compiled",
        "tests/compiled",
        "tests/data/attention",
    ):
        for path in sorted((ROOT / folder).rglob("*")):
            stray = "__pycache__" in path.parts or is_stray(path.name)
            if path.is_file() and not stray and not (folder == "scripts/probe" and path.name in _IMPORT):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
