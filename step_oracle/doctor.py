"""What this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import torch

TORCH = "2.13.0"


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``mend`` is empty where nothing is wrong."""

    name: str
    value: str
    mend: str = ""


def _torch() -> Finding:
    have = torch.__version__
    if have.split("+")[0] == TORCH:
        return Finding("torch", f"{have} (commit {str(torch.version.git_version)[:12]})")
    mend = f"pip install torch=={TORCH}, then build again"
    return Finding("torch", f"{have}, and step-oracle is built for {TORCH}", mend)


def _card() -> Finding:
    if not torch.cuda.is_available():
        return Finding("card", "none: recording works on CPU and on device 'oracle'")
    p = torch.cuda.get_device_properties(0)
    return Finding("card", f"{p.name}, {p.multi_processor_count} SMs, compute capability {p.major}.{p.minor}")


def _nvcc() -> Finding:
    path = shutil.which("nvcc") or next((p for p in ("/usr/local/cuda/bin/nvcc",) if os.path.exists(p)), None)
    if path is None:
        return Finding("nvcc", "none: nothing here needs it")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    release = next((line.split("release ")[1].split(",")[0] for line in text.splitlines() if "release " in line), "?")
    return Finding("nvcc", release)


def _module(name: str) -> tuple[Any, Finding]:
    try:
        module = __import__(f"step_oracle.{name}", fromlist=[name])
    except ImportError as error:
        return None, Finding(name, f"does not load: {str(error).splitlines()[0]}", "scripts/build, or pip install .")
    return module, Finding(name, "loads")


def _digest_speed(record: Any) -> Finding:
    data = bytes(1 << 24)
    record.blake3(data)
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        record.blake3(data)
        best = max(best, len(data) / (time.perf_counter() - begin))
    return Finding("digests", f"{best / 1e9:.1f} GB/s of BLAKE3, one thread")


def examine(load_card: bool = True) -> list[Finding]:
    """All findings. ``load_card=False`` leaves the virtual card unloaded (it cannot be unloaded again)."""
    out = [
        Finding("machine", f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"),
        Finding("python", platform.python_version()),
        _torch(),
        _card(),
        _nvcc(),
    ]
    record, finding = _module("_record")
    out.append(finding)
    if record is not None:
        out.append(_digest_speed(record))
    if load_card and not torch.cuda.is_available():
        oracle, finding = _module("_oracle")
        out.append(finding)
        if oracle is not None and hasattr(oracle, "isas"):
            isas = oracle.isas()
            out.append(Finding("instruction sets", f"{', '.join(isas['usable'])} (in use: {isas['active']})"))
            out.append(Finding("threads", str(isas["threads"])))
    return out
