"""The compiled kernels' digests (tests/data/device_digest) against the CPU's, and against this source."""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess

import numpy
import pytest

from step_oracle import _record

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc/record/device_digest"
EXECUTED = json.loads((ROOT / "tests/data/device_digest/executed.json").read_text())


def memory() -> numpy.ndarray:
    out, x = bytearray(1 << 19), 8
    for i in range(len(out)):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out[i] = x >> 56
    return numpy.frombuffer(bytes(out), numpy.uint8)


def logical_bytes(all_bytes: numpy.ndarray, case: dict) -> bytes:
    size = case["itemsize"]
    shape, strides = [*case["sizes"], size], [*(s * size for s in case["strides"]), 1]
    view = numpy.lib.stride_tricks.as_strided(all_bytes[case["first"]:], shape=shape, strides=strides)
    return numpy.ascontiguousarray(view).tobytes()


def test_every_executed_case_is_the_cpus_digest() -> None:
    all_bytes = memory()
    assert len(EXECUTED["cases"]) == len(EXECUTED["digests"]) >= 60
    sizes = {case["sizes"][0] for case in EXECUTED["cases"] if len(case["sizes"]) == 1}
    assert sizes >= {0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 131071, 131072, 131073}
    for case, digest in zip(EXECUTED["cases"], EXECUTED["digests"], strict=True):
        assert _record.blake3(logical_bytes(all_bytes, case)) == digest, case
        assert _record.blake3(logical_bytes(all_bytes, case) + b"\0") != digest


def test_the_executed_kernels_are_this_source() -> None:
    for name, digest in EXECUTED["sources_sha256"].items():
        assert hashlib.sha256((SOURCES / name).read_bytes()).hexdigest() == digest, (
            f"{name} was changed after its kernels were executed: execute them again ({EXECUTED['about'][0]})")


def nvcc() -> str:
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(found).exists():
        pytest.skip("nvcc is not on this machine: the compiled kernels cannot be compared")
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if f"V{EXECUTED['nvcc']}" not in text:
        pytest.skip(f"nvcc here is not {EXECUTED['nvcc']}")
    return found


def test_nvcc_makes_the_executed_code(tmp_path: pathlib.Path) -> None:
    command = EXECUTED["command"].replace("ARCH", "90").replace("digest.cubin", str(tmp_path / "digest.cubin")).split()
    subprocess.run([nvcc(), *command[1:]], cwd=ROOT, check=True)
    found = hashlib.sha256((tmp_path / "digest.cubin").read_bytes()).hexdigest()
    assert found == EXECUTED["architectures"]["90"]["cubin_sha256"]


def test_registers_and_shared_memory_are_as_reported() -> None:
    nvcc()
    log = (ROOT / "build/csrc/record/device_digest/ptxas.log").read_text()
    seen = 0
    for kernel, arch, stack, spilled, registers, rest in re.findall(
            r"entry function 'step_oracle_digest_(\w+)' for 'sm_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill "
            r"stores.*?Used (\d+) registers(.*?)\n", log, re.S):
        shared = re.search(r"(\d+) bytes smem", rest)
        assert EXECUTED["architectures"][arch]["kernels"][kernel] == {
            "registers": int(registers), "shared": int(shared[1]) if shared else 0, "spilled": int(spilled),
            "stack": int(stack)}
        seen += 1
    assert seen == 12, "two kernels, six architectures"
