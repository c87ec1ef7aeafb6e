"""The probe's folder: finished units as they come (so that a stopped run goes on), then packed files and a manifest."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import pathlib
import tarfile
import time
from typing import Any

from .source import is_stray

FORMAT = "step-oracle card probe 1"
MOST_BYTES = 16 << 20  # of a file
MOST_FILES = 8


class ProbeError(Exception):
    """One sentence for the user; exit 2."""


def sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(f)


def _sha256(f: Any) -> str:
    digest = hashlib.sha256()
    while block := f.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def write_whole(path: pathlib.Path, data: bytes) -> None:
    """All of it under its name, or nothing: a full disk leaves no half file behind."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def work_folder(folder: pathlib.Path) -> pathlib.Path:
    """Beside the results, which are all that has to be copied."""
    return folder.with_name(folder.name + ".work")


class Store:
    """``run``: what makes two runs one: card, driver, torch, sources, dry or not. Another run's folder is refused."""

    def __init__(self, folder: pathlib.Path, run: dict[str, Any]) -> None:
        self.folder, self.run = folder, run
        self.work = work_folder(folder)
        if folder.exists() and not folder.is_dir():
            raise ProbeError(f"{folder} is a file: give a folder for the results")
        state = self.work / "run.json"
        if folder.exists() and any(not is_stray(p.name) for p in folder.iterdir()) and not state.exists():
            raise ProbeError(f"{folder} holds other things: give a new folder, or one that card_probe made")
        self.work.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        if state.exists():
            try:
                before = json.loads(state.read_text())
            except ValueError:
                raise ProbeError(f"{state} cannot be read: delete {self.work} and {folder}, and begin again") from None
            for key in run:
                if before.get(key) != run[key]:
                    raise ProbeError(
                        f"{folder} holds a run with another {key} ({before.get(key)!r}, now {run[key]!r}): "
                        f"give another folder"
                    )
        else:
            write_whole(state, json.dumps(run, indent=1).encode())
        for stale in self.work.glob("*.part"):
            stale.unlink()

    # --- units ----------------------------------------------------------------------------------------------------

    def done(self, section: str) -> dict[str, Any]:
        """Units of the section that earlier runs finished; a last line that a stop cut off is dropped."""
        path = self.work / f"{section}.jsonl"
        found: dict[str, Any] = {}
        if not path.exists():
            return found
        good = 0
        with open(path, "rb") as f:
            for line in f:
                try:
                    check, text = line.rstrip(b"\n").split(b" ", 1)
                    if not line.endswith(b"\n") or hashlib.sha256(text).hexdigest()[:16].encode() != check:
                        break
                    row = json.loads(text)
                except ValueError:
                    break
                found[row["unit"]] = row["result"]
                good += len(line)
        if good < path.stat().st_size:
            os.truncate(path, good)
        return found

    def add(self, section: str, unit: str, result: Any) -> None:
        text = json.dumps({"unit": unit, "result": result}, separators=(",", ":")).encode()
        line = hashlib.sha256(text).hexdigest()[:16].encode() + b" " + text + b"\n"
        path = self.work / f"{section}.jsonl"
        size = path.stat().st_size if path.exists() else 0
        try:
            with open(path, "ab") as f:
                f.write(line)
        except OSError:
            if path.exists():
                os.truncate(path, size)
            raise

    # --- packing --------------------------------------------------------------------------------------------------

    def pack(self, sections: dict[str, dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
        """Packs what is there; returns the manifest."""
        files: dict[str, Any] = {}
        left_out: list[str] = []
        for old in self.folder.glob("*"):
            if old.is_file() and (old.name.endswith((".json.xz", ".tar", ".part")) or old.name == "manifest.json"):
                old.unlink()
        for name in sections:
            units = self.done(name)
            data = lzma.compress(json.dumps({"section": name, "run": self.run, "units": units}).encode(), preset=6)
            if len(data) > MOST_BYTES:
                left_out.append(f"{name}: {len(data)} bytes packed, {MOST_BYTES} are the most")
                continue
            write_whole(self.folder / f"{name}.json.xz", data)
        self._pack_traces(MOST_FILES - 1 - len(sections), left_out)
        for path in sorted(self.folder.glob("*")):
            if path.is_file() and not is_stray(path.name):
                files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = {
            "format": FORMAT,
            "run": self.run,
            **facts,
            "sections": sections,
            "left_out": left_out,
            "files": files,
            "written": int(time.time()),
        }
        write_whole(self.folder / "manifest.json", json.dumps(manifest, indent=1).encode() + b"\n")
        return manifest

    def _pack_traces(self, most: int, left_out: list[str]) -> None:
        """Traces into tar files of at most 16 MB; those with the least bytes first, so that most of them fit."""
        traces = sorted(self.work.glob("*.trace"), key=lambda p: (p.stat().st_size, p.name))
        number, size, tar = 0, 0, None
        for trace in traces:
            need = trace.stat().st_size + 2048
            if need + 10240 > MOST_BYTES or (number == most and size + need + 10240 > MOST_BYTES):
                left_out.append(f"{trace.name}: {trace.stat().st_size} bytes")
                continue
            if tar is None or size + need + 10240 > MOST_BYTES:
                if tar is not None:
                    tar.close()
                number, size = number + 1, 0
                tar = tarfile.open(self.folder / f"traces-{number}.tar", "w")  # noqa: SIM115
            tar.add(trace, arcname=trace.name)
            size += need
        if tar is not None:
            tar.close()
