"""Small programs on the fake card of tests/fake_card, recorded; the records as JSON. Runs in a process of its own:

    LD_LIBRARY_PATH=FOLDER python card_steps.py FOLDER WHAT      FOLDER: the fake libraries, see test_record_card.py
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import pathlib
import sys
import types
from typing import Any

FOLDER, WHAT = pathlib.Path(sys.argv[1]), sys.argv[2]


def load_fake_card() -> ctypes.CDLL:
    """Before torch: torch asks once whether there is a CUDA."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None and "torch" not in sys.modules
    for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so"):
        ctypes.CDLL(str(pathlib.Path(spec.origin).parent / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(FOLDER / "libcublasLt.so.13"))
    return ctypes.CDLL(str(FOLDER / "libtorch_cuda.so"))


fake = load_fake_card()

import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None  # the wheel without CUDA refuses otherwise
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda i: types.SimpleNamespace(
    name="Fake H100", multi_processor_count=114, max_threads_per_multi_processor=2048, major=9, minor=0,
    total_memory=80 << 30)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import step_oracle  # noqa: E402
from step_oracle import _record  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(24, 300), torch.nn.Linear(300, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def net(device: str) -> Net:
    torch.manual_seed(3)
    return Net().to(device)


def step(model: Net, x: torch.Tensor) -> list[torch.Tensor]:
    """Overwrites in place, views, transposes, a large tensor, one that dies at once, foreach lists."""
    big = torch.arange(90000, dtype=torch.float32).view(300, 300).to(x.device) + 0
    total = (big.t() * 2).sum() + model(x).sum() * 3
    del big
    big2 = torch.ones(300, 300, device=x.device)
    big2.mul_(3)
    big2[::2].add_(1)
    big2.t().sub_(2)
    total.backward()
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), [p.grad for p in model.parameters()], alpha=-0.125)
    return [big2, total.detach()] + [p.detach() for p in model.parameters()]


def record(device: str, program: Any = step, **options: Any) -> dict[str, Any]:
    model = net(device)
    x = torch.arange(7 * 24, dtype=torch.float32).view(7, 24).to(device) / 100
    rec = step_oracle.record(None, model=model, **options)
    error = ""
    try:
        with rec:
            program(model, x)
    except Exception as e:  # noqa: BLE001
        error = f"{type(e).__name__}: {e}"
    out: dict[str, Any] = {**rec._recording.records(), "summary": rec.summary(), "error": error}
    return out


def uniform(model: Net, x: torch.Tensor) -> None:
    x.uniform_()
    x.uniform_()


def main() -> dict[str, Any]:
    if WHAT == "digests":
        return {"cpu": record("cpu"), "card": record("cuda"), "host": record("cuda", card_digests=False),
                "launched": fake.fake_card_calls(b"cuLaunchKernel")}
    if WHAT == "uniform":
        return {"card": record("cuda", uniform)}
    if WHAT == "facts":
        return _record.card_facts(0)
    if WHAT == "file":
        model = net("cuda")
        with step_oracle.record(FOLDER / "step.trace", model=model):
            step(model, torch.ones(7, 24).to("cuda"))
        trace = step_oracle.load(FOLDER / "step.trace")
        card = dict(trace.environment.cards[0])
        return {"plans": [dict(p) for p in trace.plans], "ops": len(trace.ops), "card": card}
    return {"card": record("cuda")}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # autograd's thread of the fake device may still be letting go of its last task
