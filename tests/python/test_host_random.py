"""The host's draws against this process's torch, in a process for each ATEN_CPU_CAPABILITY."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import host_fills
import pytest
import torch

from step_oracle import _host

HERE = pathlib.Path(__file__).parent
X86 = os.uname().machine == "x86_64"
CAPABILITIES = ["default", "avx2", "avx512"] if X86 else ["default"]


def torch_says(mode: str, capability: str, *more: str) -> dict:
    """What torch's own fills give under a capability; None where this CPU has not got it."""
    env = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    ran = subprocess.run([sys.executable, HERE / "host_fills.py", mode, *more], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    if said["capability"].lower() != capability:
        pytest.skip(f"this CPU has no {capability}: torch ran as {said['capability']}")
    return said["result"]


def ours(dispatch: str, isa: str) -> dict:
    before = _host.isas()["active"]
    _host.set_isa(isa)
    try:
        return drawn(_host.HostGenerator(20261130, dispatch))
    finally:
        _host.set_isa(before)


def drawn(generator: object) -> dict:
    out = {}
    for dtype, n, layout, fn, (a, b) in host_fills.cases():
        like = host_fills.laid_out(n, layout, host_fills.DTYPES[dtype])
        dense = torch.empty(n, dtype=like.dtype)
        if fn == "normal":
            generator.normal_(dense, a, b, like.is_contiguous())
        else:
            generator.uniform_(dense, a, b)
        if layout == "turned":  # memory order is 3, n / 6, 2
            dense = dense.view(3, n // 6, 2).permute(2, 0, 1)
        out[f"{dtype} {n} {layout} {fn} {a} {b}"] = host_fills.digest(dense)
    wide = torch.empty(1001, dtype=torch.float64)
    generator.uniform_(wide, -0.3, 0.7)
    out["float64"] = host_fills.digest(wide)
    indices = torch.empty(1237, dtype=torch.int64)
    generator.randperm_(indices)
    out["randperm"] = host_fills.digest(indices)
    for high in (1000, 2**28 - 1, 2**28, 2**40):
        indices = torch.empty(777, dtype=torch.int64)
        generator.random_(indices, 5, high)
        out[f"randint {high}"] = host_fills.digest(indices)
    out["state"] = hashlib.sha256(generator.get_state()).hexdigest()[:16]
    return out


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_fills_are_torchs(capability: str) -> None:
    expected = torch_says("fills", capability)
    assert len(expected) > 700
    dispatch = capability if X86 else "aarch64"
    for isa in _host.isas()["usable"]:
        actual = ours(dispatch, isa)
        differ = [case for case, digest in expected.items() if actual[case] != digest]
        assert not differ, f"{isa}: {len(differ)} of {len(expected)} differ, first {differ[0]}"


def test_another_dispatch_is_noticed() -> None:
    a, b = ours("default", "baseline"), ours("avx2", "baseline")
    assert sum(a[case] != b[case] for case in a) > 100


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_argument_of_the_large_normal_fill(capability: str) -> None:
    """torch still gives the digests that tests/host_random compares the kernels with."""
    text = (HERE.parent / "host_random/host_random_test.cpp").read_text()
    result = torch_says("arguments", capability)
    assert all(digest in text for digest in result.values()), result
