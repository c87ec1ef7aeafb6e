"""torch's own OpInfo samples on the device "oracle": each runs or is refused by name, dispatches what CUDA dispatches,
and is no farther from float64's result than the operator's own rounding (a net beside the bytes, not in their place).
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
Rows = dict[str, dict[str, Any]]

# What fake tensors do otherwise than tensors on a card.
FAKE_DIFFERS = {
    "nn.functional.silu": "fake tensors decompose its backward; CUDA has a kernel (csrc/oracle/ops/cuda_native.inc)",
    "nn.functional.rms_norm": "fake tensors decompose it; CUDA has a kernel (csrc/oracle/ops/cuda_native.inc)",
    "nn.functional.pad.circular": "backward of writes to views: fake tensors replay the views, cards take as_strided",
    "nn.functional.mish": "fake tensors decompose its backward; CUDA has a kernel (csrc/oracle/ops/cuda_native.inc)",
}
# How a refusal names what is refused.
NAMED = r"'\w[\w:.]+'| of float64 |float64|cumsum|cumprod|multinomial"
# Operators of the sweep that the virtual card refuses (some samples or all); docs/limits.md says why. Fewer is fine.
REFUSED = set((HERE / "opinfo_refused.txt").read_text().split())


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    pytest.importorskip("expecttest", reason="torch.testing's OpInfo samples need it: pip install expecttest")
    if not (ROOT / "tests/fake_cuda/fake_cuda.so").exists():
        pytest.fail("tests/fake_cuda/fake_cuda.so is not built. Run: scripts/build --tests")
    folder = tmp_path_factory.mktemp("opinfo")
    results = []
    for device in ("cuda", "oracle"):
        out = folder / f"{device}.json"
        command = [sys.executable, str(HERE / "opinfo_samples.py"), device, str(out)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}  # samples come from sets
        subprocess.run(command, check=True, timeout=1500, env=environment)
        results.append(json.loads(out.read_text()))
    cuda, oracle = results
    assert list(cuda) == list(oracle)
    return cuda, oracle


def operator(key: str) -> str:
    return key.split("/")[0]


def test_every_sample_runs_or_is_refused_by_name(swept: tuple[Rows, Rows]) -> None:
    cuda, oracle = swept
    ran, refused, wrong = 0, collections.Counter[str](), []
    for key, row in oracle.items():
        if "error" not in row:
            ran += 1
            continue
        kind, message = row["error"]
        if kind == "NotImplementedError" and re.search(NAMED, message):
            refused[operator(key)] += 1
        elif "error" not in cuda[key] or cuda[key]["error"][0] != kind:  # an error of torch's own comes on both
            wrong.append(f"{key}: {kind}: {message}")
    print(f"OpInfo: {len(oracle)} samples, {ran} ran, {sum(refused.values())} refused in {len(refused)} operators")
    assert not wrong, "\n".join(wrong[:20])
    assert set(refused) <= REFUSED, f"refused, though not listed: {sorted(set(refused) - REFUSED)}"
    assert ran > 2000


def test_no_sample_is_off_by_more_than_rounding(swept: tuple[Rows, Rows]) -> None:
    rows = {key: row for key, row in swept[1].items() if "error" not in row}
    assert sum("excess" in row for row in rows.values()) > 2000
    assert not [f"{key}: {row['unchecked']}" for key, row in rows.items() if "unchecked" in row]
    # Rounding to 16 bits makes equal elements; which of them comes first is the kernel's affair.
    sorts = {key for key in rows if operator(key) in {"sort", "argsort", "msort", "topk"} and "float16" in key}
    assert not {key: row["excess"] for key, row in rows.items() if not row.get("excess", 0) <= 8 and key not in sorts}


def comparable(listed: list[str]) -> list[str]:
    """Without what only fake tensors add; strides only where a step along the dimension can be taken."""

    def geometry(match: re.Match[str]) -> str:
        sizes, strides = (part.split(", ") if part else [] for part in match.groups())
        steps = ["-" if size in ("0", "1") or "0" in sizes else s for size, s in zip(sizes, strides, strict=True)]
        return f"[{', '.join(sizes)}][{', '.join(steps)}]"

    dropped = r"prim\.|profiler\.|aten\.(detach|_local_scalar_dense|alias|_to_copy|linspace|view)\."
    kept = [name for name in listed if not re.match(dropped, name)]
    return [re.sub(r"\[([\d, ]*)\]\[([\d, ]*)\]", geometry, name) for name in kept]


def test_samples_dispatch_what_cuda_dispatches(swept: tuple[Rows, Rows]) -> None:
    cuda, oracle = swept
    compared, different = 0, []
    for key, row in oracle.items():
        if "error" in row or "error" in cuda[key] or operator(key) in FAKE_DIFFERS:
            continue
        compared += 1
        wanted, got = comparable(cuda[key]["dispatched"]), comparable(row["dispatched"])
        if wanted != got:
            first = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), "the end")
            different.append(f"{key}, at {first}:\n  cuda   {wanted[:12]}\n  oracle {got[:12]}")
    print(f"OpInfo: the dispatch of {compared} samples compared")
    assert compared > 2000 and not different, "\n".join(different[:10])
