"""Reads what card_probe wrote, believing nothing: sizes and digests first, one run in all files, bounded unpacking."""

from __future__ import annotations

import io
import lzma
import pathlib
import tarfile
from typing import Any

from . import schema
from .source import is_stray, source_key
from .store import FORMAT, MOST_BYTES, MOST_FILES, sha256

MOST_UNPACKED = 512 << 20
MOST_MANIFEST = 1 << 20


class OutputError(Exception):
    """The output cannot be taken in; one sentence."""


class Output:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise OutputError(f"{folder} is not a folder: give the one that card_probe --out wrote")
        path = folder / "manifest.json"
        if not path.exists():
            raise OutputError(
                f"{folder} has no manifest.json: card_probe writes it last, so its run did not end; run the "
                f"same command again"
            )
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_MANIFEST:
            raise OutputError(f"{path} is not a file of at most {MOST_MANIFEST >> 20} MB: card_probe did not write it")
        try:
            self.manifest: dict[str, Any] = schema.load(path.read_bytes())
            self._check_manifest()
        except ValueError as e:
            raise OutputError(f"{path} is damaged ({e})") from None
        self._check_source()
        self._check_files()
        self.sections = {
            name: self._section(name)
            for name in self.manifest["sections"]
            if f"{name}.json.xz" in self.manifest["files"]
        }
        if not self.sections:
            raise OutputError(f"{folder} holds no section: nothing was measured")

    def _check_manifest(self) -> None:
        m = self.manifest
        if isinstance(m, dict) and m.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}, which is what this reads")
        schema.MANIFEST(m, "the manifest")
        if m["run"]["card"] != m["card"] or m["run"]["dry"] is not m["dry"]:
            raise ValueError("the run and the manifest name different cards")
        for name in m["files"]:
            if name.endswith(".json.xz") and name.removesuffix(".json.xz") not in m["sections"]:
                raise ValueError(f"it lists {name}, and no such section")
        if not self.dry:
            for key in ("sms", "threads_per_sm", "memory"):
                if key not in m["card"]:
                    raise ValueError(f"the card has no {key}")

    def _check_source(self) -> None:
        theirs, own = self.manifest["run"]["source"], source_key()
        if theirs != own:
            commit = self.manifest["commit"]
            raise OutputError(
                f"{self.folder} was measured by another probe than this tree's (source {theirs}, here {own}): "
                + (f"import it in a clone at commit {commit}" if commit else "import it in the tree that measured it")
            )

    def _check_files(self) -> None:
        files = self.manifest["files"]
        if len(files) + 1 > MOST_FILES:
            raise OutputError(f"{self.folder}: {len(files)} files, and {MOST_FILES - 1} are the most")
        for name, row in files.items():
            path = self.folder / name
            if not path.is_file() or path.is_symlink():
                raise OutputError(f"{path}, which the manifest lists, is not there")
            size = path.stat().st_size
            if size > MOST_BYTES or size != row.get("bytes"):
                raise OutputError(
                    f"{path} has {size} bytes, and the manifest says {row.get('bytes')}: it was cut off or "
                    f"changed; copy it again"
                )
            if sha256(path) != row.get("sha256"):
                raise OutputError(f"{path} is not what card_probe wrote (its SHA-256 differs): copy it again")
        known = {*files, "manifest.json"}
        other = sorted(p.name for p in self.folder.iterdir() if p.name not in known and not is_stray(p.name))
        if other:
            raise OutputError(f"{self.folder} also holds {other[0]}, which the manifest does not list: remove it")

    def _section(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json.xz"
        try:
            with lzma.open(path) as f:
                text = f.read(MOST_UNPACKED + 1)
            if len(text) > MOST_UNPACKED:
                raise OutputError(f"{path} unpacks to more than {MOST_UNPACKED >> 20} MB")
            data = schema.load(text)
            if isinstance(data, dict) and data.get("section") != name:
                raise ValueError("another section's content")
            schema.section(name)(data, name)
        except (lzma.LZMAError, EOFError, ValueError) as e:
            raise OutputError(f"{path} is damaged ({e})") from None
        run, units = data["run"], data["units"]
        if run != self.manifest["run"]:
            key = next((k for k in run if run[k] != self.manifest["run"].get(k)), "run")
            raise OutputError(
                f"{path} is of another run than the manifest (its {key} is {run.get(key)!r}): two runs were mixed"
            )
        return dict(units)

    @property
    def dry(self) -> bool:
        """Whatever the flag says: a virtual card, and a torch without CUDA, prove nothing of a card."""
        m = self.manifest
        return bool(
            m["dry"] or m["card"].get("virtual") or not m["versions"].get("cuda") or "+cpu" in m["run"]["torch"]
        )

    def traces(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in self.manifest["files"]:
            if not name.endswith(".tar"):
                continue
            try:
                with tarfile.open(fileobj=io.BytesIO((self.folder / name).read_bytes()), mode="r:") as tar:
                    for member in tar:
                        plain = member.isreg() and not member.issparse() and 0 <= member.size <= MOST_BYTES
                        file = tar.extractfile(member) if plain and "/" not in member.name else None
                        if file is None:
                            raise OutputError(f"{self.folder / name} holds {member.name!a:.80}, which is no trace")
                        found[member.name] = file.read()
            except (tarfile.TarError, ValueError, EOFError) as e:
                raise OutputError(f"{self.folder / name} is damaged ({e})") from None
        return found
