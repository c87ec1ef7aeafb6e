"""The operators that a GPT step dispatches, phase by phase, as JSON. Runs in a process of its own:

    python dispatch_steps.py DEVICE OUT.json CONFIG...      DEVICE cuda (fake tensors, no CUDA needed) or oracle

A configuration is "optimizer/precision/attention", such as "fused/float32/math" or "default/bfloat16-scaler/math",
and may end in "/SHAPE", a GPT of gpt.py, in place of the one here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

ATTENTION = {"math": 0, "flash": 1, "efficient": 2}
FAKE_CUDA = pathlib.Path(__file__).resolve().parent.parent / "fake_cuda/fake_cuda.so"
VOCABULARY, WIDTH, HEADS, TOKENS, LAYERS, DROPOUT = 64, 32, 4, 16, 2, 0.1


def load_fake_cuda() -> ctypes.CDLL:
    """Before torch: torch asks once whether there is a CUDA."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None and "torch" not in sys.modules
    for name in ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so"):
        ctypes.CDLL(str(pathlib.Path(spec.origin).parent / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(FAKE_CUDA))
    library.fake_cuda_choose_attention.argtypes = [ctypes.c_int64]
    return library


fake_cuda = load_fake_cuda() if sys.argv[1:2] == ["cuda"] else None

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpt  # noqa: E402


def shape_of(value: Any) -> str:
    """Type, sizes and strides of the tensors in a result."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}".removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(shape_of(v) for v in value) + ")"
    return type(value).__name__ if value is not None else ""


class Listing(TorchDispatchMode):
    """Appends the name of every operator that reaches it, with what its result looks like."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        index = len(self.names)
        self.names.append(str(func))
        result = func(*args, **(kwargs or {}))
        self.names[index] += " " + shape_of(result)
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        heads = [
            part.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        ]
        y = F.scaled_dot_product_attention(*heads, dropout_p=DROPOUT, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """GPT-2 in small: learned positions, pre-norm blocks, the output tied to the token embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight
        self.apply(self.initialise)

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-1)


OPTIMIZERS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for-loop": {"foreach": False},
}


def two_steps(
    device: str, optimizer: str, precision: str, shape: str = "", phases: dict[str, list[str]] | None = None
) -> dict[str, list[str]]:
    """``phases``: filled as the steps go, so that it holds what was dispatched before a refusal."""
    phases = {} if phases is None else phases

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        phases[name] = []
        with Listing(phases[name]):
            yield

    torch.manual_seed(0)
    with phase("init"), torch.device(device):
        model = gpt.GPT(gpt.SHAPES[shape]) if shape else Gpt()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, **OPTIMIZERS[optimizer])  # type: ignore[arg-type]
    vocabulary, tokens = (gpt.SHAPES[shape].vocab, gpt.SHAPES[shape].tokens) if shape else (VOCABULARY, TOKENS)
    x, y = (torch.randint(0, vocabulary, (2, tokens)).to(device) for _ in range(2))
    dtype, _, scaled = precision.partition("-")
    scaler = torch.amp.GradScaler(device, enabled=bool(scaled))
    cast = torch.autocast(device, dtype=getattr(torch, dtype), enabled=dtype != "float32")
    for step in range(2):
        with phase(f"forward {step}"), cast:
            loss = model(x, y)
        with phase(f"backward {step}"):
            scaler.scale(loss).backward()
        with phase(f"clip {step}"):
            if scaled:
                scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with phase(f"optimizer {step}"):
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
    return phases


def let_fake_tensors_pass_for_cuda() -> None:
    """Python-side tests of torch that look at a tensor's exact type or at CUDA's presence."""
    from importlib import import_module

    from torch._subclasses.fake_tensor import FakeTensor

    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        import_module(name)._foreach_supported_types.append(FakeTensor)
    for name in ("torch.cuda.amp.common", "torch.amp.grad_scaler", "torch.amp.autocast_mode"):
        module: Any = import_module(name)
        if hasattr(module, "amp_definitely_not_available"):
            module.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True  # type: ignore[assignment]
    # found_inf of a fake tensor has no value: every step counts as finite.
    torch.amp.GradScaler._maybe_opt_step = (  # type: ignore[method-assign]
        lambda self, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)
    )


def main() -> None:
    device, target, *configurations = sys.argv[1:]
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    if device == "cuda":
        let_fake_tensors_pass_for_cuda()
        from torch._subclasses.fake_tensor import FakeTensorMode

        tensors: Any = FakeTensorMode
    else:
        import step_oracle

        step_oracle.set_card("h100-sxm")
        tensors = contextlib.nullcontext
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for configuration in configurations:
        optimizer, precision, attention, *shape = configuration.split("/")
        if fake_cuda is not None:
            fake_cuda.fake_cuda_choose_attention(ATTENTION[attention])
        chosen = sdpa_kernel(SDPBackend(ATTENTION[attention])) if device != "cuda" else contextlib.nullcontext()
        try:
            with tensors(), chosen:
                results[configuration] = two_steps(device, optimizer, precision, *shape)
        except NotImplementedError as error:
            results[configuration] = str(error)
    pathlib.Path(target).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
