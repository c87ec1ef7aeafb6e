"""Forged traces: the records of a real one as JSON (by flatc), to be changed and written back with a valid chain."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
from typing import Any

import blake3

SCHEMA = pathlib.Path(__file__).parents[2] / "csrc" / "record" / "trace" / "trace.fbs"
HEADER, FRAME = 32, 72
RECORDS, BLOB = 1, 2
Records = dict[str, list[Any]]


def _unpacked(data: bytes, size: int) -> bytes:
    zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(size)
    args = ctypes.c_size_t(size), data, ctypes.c_size_t(len(data))
    assert zstd.ZSTD_decompress(out, *args) == size
    return out.raw


def _flatc(*words: str, folder: str) -> None:
    flatc = shutil.which("flatc")
    assert flatc, "flatc (Debian: flatbuffers-compiler), which the build needs too, is not there"
    subprocess.run([flatc, "-o", folder, *words], check=True, capture_output=True)


def read(path: str) -> tuple[bytes, Records, list[Any]]:
    """The file's header, all records of all frames together, and its blob frames as (codec, raw, payload)."""
    data = pathlib.Path(path).read_bytes()
    at = HEADER
    records: Records = {}
    blobs: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        buffers = []
        while at < len(data):
            kind, codec = data[at + 4], data[at + 5]
            stored, raw = struct.unpack_from("<QQ", data, at + 16)
            payload = data[at + FRAME : at + FRAME + stored]
            at += FRAME + stored
            if kind == BLOB:
                blobs.append((codec, raw, payload))
                continue
            name = f"{folder}/{len(buffers)}.bin"
            pathlib.Path(name).write_bytes(_unpacked(payload, raw) if codec else payload)
            buffers.append(name)
        _flatc("--json", "--raw-binary", "--strict-json", "--defaults-json", str(SCHEMA), "--", *buffers, folder=folder)
        for name in buffers:
            for key, value in json.loads(pathlib.Path(name).with_suffix(".json").read_text()).items():
                records.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return data[:HEADER], records, blobs


def write(path: str, header: bytes, records: Records, blobs: list[Any]) -> str:
    single = {k: (v[0] if k in ("environment", "end") else v) for k, v in records.items()}
    end = {"end": single.pop("end")}
    end["end"]["ops"], end["end"]["storages"] = len(records.get("ops", [])), len(records.get("storages", []))
    out, chain = header, blake3.blake3(header).digest()
    with tempfile.TemporaryDirectory() as folder:
        for i, part in enumerate((single, end)):
            pathlib.Path(f"{folder}/{i}.json").write_text(json.dumps(part))
        _flatc("--binary", str(SCHEMA), f"{folder}/0.json", f"{folder}/1.json", folder=folder)
        first, last = (pathlib.Path(f"{folder}/{i}.bin").read_bytes() for i in (0, 1))
    frames = [(RECORDS, 0, len(first), first), *((BLOB, *b) for b in blobs), (RECORDS, 0, len(last), last)]
    for number, (kind, codec, raw, payload) in enumerate(frames):
        head = struct.pack("<4sBBHQQQ", b"SOFR", kind, codec, 0, number, len(payload), raw)
        check = blake3.blake3(chain + head).digest()[:8]
        chain = blake3.blake3(chain + head + payload).digest()
        out += head + check + chain + payload
    pathlib.Path(path).write_bytes(out)
    return path
