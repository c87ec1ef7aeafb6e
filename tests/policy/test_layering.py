"""Who may include whom (docs/architecture.md): never upward, never from one kernel family to another."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
BASE_PARTS = ("core", "arith", "card")  # what every kernel family may use

# layer -> layers of this repository it may include (besides itself)
ALLOWED = {
    "kernels": set(),
    "record/trace": {"kernels/core"},
    "record/capture": {"record/trace", "record/device_digest", "kernels/core"},
    "record/device_digest": {"record/trace", "kernels/core"},
    "oracle/plan": {"kernels"},
    "oracle/device": {"kernels"},
    "oracle/aten": {"kernels", "oracle/device", "oracle/plan", "oracle/ops"},
    "oracle/ops": set(),
    "oracle/program": {"kernels", "record/trace", "oracle/device", "oracle/plan", "oracle/aten", "oracle/ops"},
    "oracle/walk": {"kernels", "record/trace", "oracle/device", "oracle/aten", "oracle/program"},
    "oracle/collective": {"kernels", "oracle/device", "oracle/plan"},
    "oracle/bind": {"kernels", "record/trace", "oracle/device", "oracle/plan", "oracle/aten", "oracle/program",
                    "oracle/walk", "oracle/collective", "oracle/ops"},
}
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|pybind11|Python\.h)")
TORCH_FREE = {"kernels", "record/trace", "record/device_digest", "oracle/plan"}


def layer_of(path: str) -> str:
    parts = path.removeprefix("csrc/").split("/")
    return "kernels" if parts[0] == "kernels" else "/".join(parts[:2]).removesuffix(".inc")


def sources() -> list[pathlib.Path]:
    return sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh", ".inc"})


def violations(path: str, text: str) -> list[str]:
    found = []
    layer = layer_of(path)
    allowed = ALLOWED.get(layer)
    if allowed is None:
        return [f"{path}: the layer {layer} is not in the list of this test"]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        where = f"{path}:{number}: includes {target}"
        if layer in TORCH_FREE and TORCH.match(target):
            found.append(f"{where}: {layer} knows nothing of torch")
        if not target.startswith("csrc/"):
            continue
        other = layer_of(target)
        sub = "/".join(target.removeprefix("csrc/").split("/")[:2])
        if other == layer == "kernels":
            family, own = target.split("/")[2], path.split("/")[2]
            if own in BASE_PARTS and family not in BASE_PARTS:
                found.append(f"{where}: {own} is below the families")
            elif family not in BASE_PARTS and family != own:
                found.append(f"{where}: a family does not include another")
        elif other != layer and other not in allowed and sub not in allowed:
            found.append(f"{where}: {layer} may not include {other}")
    return found


@pytest.mark.policy
def test_every_include_goes_down() -> None:
    files = sources()
    assert len(files) > 20
    found = [v for p in files for v in violations(str(p.relative_to(ROOT)), p.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.policy
@pytest.mark.parametrize(("path", "line"), [
    ("csrc/kernels/gemm/gemm.cpp", '#include "csrc/kernels/reduce/reduce.h"'),
    ("csrc/kernels/core/bits.h", '#include "csrc/kernels/gemm/gemm.h"'),
    ("csrc/kernels/norm/norm.cpp", "#include <ATen/core/Tensor.h>"),
    ("csrc/record/trace/reader.cpp", '#include "csrc/record/capture/interposer.h"'),
    ("csrc/oracle/aten/gemm.cpp", '#include "csrc/record/trace/digest.h"'),
    ("csrc/oracle/device/guard.cpp", '#include "csrc/oracle/aten/adapter.h"'),
])
def test_the_check_can_fail(path: str, line: str) -> None:
    assert violations(path, line)
