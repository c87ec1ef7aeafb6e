"""Reads what card_probe wrote, believing nothing: sizes and digests first, one run in all files, bounded unpacking."""

from __future__ import annotations

import io
import json
import lzma
import pathlib
import tarfile
from typing import Any

from .store import FORMAT, MOST_BYTES, MOST_FILES, sha256

MOST_UNPACKED = 512 << 20


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
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_bytes())
            self._check_manifest()
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise OutputError(f"{path} is damaged ({type(e).__name__}: {e})") from None
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
        if m["format"] != FORMAT:
            raise ValueError(f"format {m['format']!r}, and {FORMAT!r} is what this reads")
        for key in ("run", "card", "versions", "command", "sections", "files", "written", "commit", "dry"):
            m[key]
        for key in ("card", "driver", "torch", "source", "dry"):
            m["run"][key]
        if m["run"]["card"] != m["card"] or m["run"]["dry"] is not m["dry"]:
            raise ValueError("the run and the manifest name different cards")
        str(m["card"]["name"]), str(m["card"]["compute_capability"]), m["sections"].items(), m["files"].items()

    def _check_files(self) -> None:
        files = self.manifest["files"]
        if len(files) + 1 > MOST_FILES:
            raise OutputError(f"{self.folder}: {len(files)} files, and {MOST_FILES - 1} are the most")
        for name, row in files.items():
            path = self.folder / name
            if "/" in name or name.startswith(".") or not path.is_file() or path.is_symlink():
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
        other = sorted(p.name for p in self.folder.iterdir() if p.name not in known)
        if other:
            raise OutputError(f"{self.folder} also holds {other[0]}, which the manifest does not list: remove it")

    def _section(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json.xz"
        try:
            with lzma.open(path) as f:
                text = f.read(MOST_UNPACKED + 1)
            if len(text) > MOST_UNPACKED:
                raise OutputError(f"{path} unpacks to more than {MOST_UNPACKED >> 20} MB")
            data = json.loads(text)
            run, units = data["run"], data["units"]
            if data["section"] != name or not isinstance(units, dict):
                raise ValueError("another section's content")
        except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as e:
            raise OutputError(f"{path} is damaged ({type(e).__name__}: {e})") from None
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
                with tarfile.open(fileobj=io.BytesIO((self.folder / name).read_bytes())) as tar:
                    for member in tar:
                        file = tar.extractfile(member) if member.isfile() and "/" not in member.name else None
                        if file is None:
                            raise OutputError(f"{self.folder / name} holds {member.name}, which is no trace")
                        found[member.name] = file.read()
            except tarfile.TarError as e:
                raise OutputError(f"{self.folder / name} is damaged ({e})") from None
        return found
