"""What the device "oracle" dispatches equals what CUDA dispatches: operators, and types, sizes, strides of results."""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import step_oracle

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

CONFIGURATIONS = [
    *(f"{optimizer}/float32/math" for optimizer in ("foreach", "fused", "for-loop", "default")),
    *(f"{optimizer}/float32/math/{shape}" for shape in ("tied", "ragged", "gqa")
      for optimizer in ("foreach", "fused", "for-loop")),
    "default/bfloat16/math",
    "foreach/bfloat16/flash",
    "fused/bfloat16/flash/gqa",
    "default/bfloat16-scaler/flash/ragged",
    "fused/bfloat16-scaler/math",
    "default/bfloat16-scaler/math",
    "for-loop/bfloat16-scaler/math",
    "fused/float32/efficient",
    *(f"default/float32/efficient/{shape}" for shape in ("tied", "ragged")),
]
Phases = dict[str, list[str]]
Listed = Callable[[str], tuple[Phases, Phases]]
PHASES = 9  # init, and forward, backward, clip, optimizer of two steps


def steps(device: str, folder: pathlib.Path) -> dict[str, Phases | str]:
    out = folder / f"{device}.json"
    subprocess.run(
        [sys.executable, str(HERE / "dispatch_steps.py"), device, str(out), *CONFIGURATIONS],
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Listed:
    if not (ROOT / "tests/fake_cuda/fake_cuda.so").exists():
        pytest.fail("tests/fake_cuda/fake_cuda.so is not built. Run: scripts/build --tests")
    folder = tmp_path_factory.mktemp("dispatch")
    cuda, oracle = steps("cuda", folder), steps("oracle", folder)

    def of(configuration: str) -> tuple[Phases, Phases]:
        reference, ours = cuda[configuration], oracle[configuration]
        assert isinstance(reference, dict), reference
        assert isinstance(ours, dict), ours  # a refusal
        return reference, ours

    return of


def comparable(phase: str, names: list[str]) -> list[str]:
    """Without what only fake tensors or torch's profiler add, and without what fake tensors cannot do: GradScaler reads
    found_inf on the host before an optimizer's step (dispatch_steps.py lets fake tensors pass)."""
    dropped = r"prim\.device|profiler\."
    if phase == "init":
        dropped += r"|aten\.detach\."
    if phase.startswith("optimizer"):
        dropped += r"|aten\._local_scalar_dense\."
    return [name for name in names if not re.match(dropped, name)]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_gpt_step_dispatches_what_cuda_dispatches(configuration: str, listed: Listed) -> None:
    cuda, oracle = listed(configuration)
    assert list(cuda) == list(oracle) and len(cuda) == PHASES
    assert sum(len(names) for names in oracle.values()) > 500
    for phase in cuda:
        wanted, got = comparable(phase, cuda[phase]), comparable(phase, oracle[phase])
        difference = list(difflib.unified_diff(wanted, got, "cuda", "oracle", lineterm="", n=2))
        assert wanted and not difference, f"{configuration}, {phase}:\n" + "\n".join(difference[:40])


# --- the dispatcher's tables ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded() -> None:
    step_oracle.set_card("h100-sxm")


def has_kernel(operator: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator, key))


def test_the_list_of_cuda_native_composites_is_this_torchs() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/list_cuda_native"), "--check"], check=False)
    assert done.returncode == 0, "Run scripts/list_cuda_native, and register what is new"


def test_no_operator_decomposes_where_cuda_has_a_kernel(loaded: None) -> None:
    text = (ROOT / "csrc/oracle/ops/cuda_native.inc").read_text()
    names = re.findall(r'SO_CUDA_NATIVE\("([^"]+)"\)', text)
    missing = [name for name in names if not has_kernel(f"aten::{name}", "PrivateUse1")]
    assert len(names) == 162 and not missing


def test_autocast_covers_what_cudas_covers(loaded: None) -> None:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    cuda = {name for name in names if has_kernel(name, "AutocastCUDA")}
    ours = {name for name in names if has_kernel(name, "AutocastPrivateUse1")}
    assert len(cuda) > 100 and cuda == ours


def test_autograd_of_the_device_is_torchs(loaded: None) -> None:
    """But for the composites that treat CUDA apart."""
    names = [n for n in torch._C._dispatch_get_all_op_names() if re.match(r"aten::(?!_test_)", n)]
    differing = {n for n in names if has_kernel(n, "AutogradCUDA") != has_kernel(n, "AutogradPrivateUse1")}
    assert differing <= {
        "aten::_batch_norm_impl_index",
        "aten::_has_compatible_shallow_copy_type",
        "aten::log_softmax.int",
        "aten::scaled_dot_product_attention",
        "aten::softmax.int",
    }


def test_every_row_of_the_op_tables_is_registered(loaded: None) -> None:
    listed = [name for name, _ in step_oracle.device.extension().ops()]
    rows = [
        name
        for table in sorted((ROOT / "csrc/oracle/ops").glob("*.inc"))
        for name in re.findall(r'^SO_OP\("([^"]+)"', table.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(listed) == sorted(rows), "csrc/oracle/ops.inc lists other tables than csrc/oracle/ops has"
    assert len(rows) == len(set(rows)) and len(rows) > 20
    assert not [name for name in rows if not has_kernel(f"aten::{name}", "PrivateUse1")]
