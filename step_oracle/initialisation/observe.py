"""Watches a model being built and writes the term of it."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import term as terms
from .tape import Tape
from .write import write


def host_dispatch() -> str:
    """The term's word for the build of torch's fills that runs in this process."""
    if platform.machine() in ("aarch64", "arm64"):
        return "aarch64"
    capability = torch.backends.cpu.get_cpu_capability().lower()
    if platform.machine() not in ("x86_64", "AMD64") or capability not in terms.DISPATCHES:
        raise NotImplementedError(
            f"the fills of torch on {platform.machine()} with CPU capability {capability} are not known; known: "
            f"{', '.join(terms.DISPATCHES)}. Start the process with ATEN_CPU_CAPABILITY=default"
        )
    return capability


class Observed:
    """What `observe` saw. `term` may be asked for once the block has ended."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.carried: dict[str, str] = {}  # name -> why its bytes are carried

    def term(self, model: torch.nn.Module | dict[str, torch.Tensor], buffers: bool = True) -> dict[str, Any]:
        """The term of the model's parameters and buffers as they are now, which must be as they were when the block
        ended. It was computed and compared byte for byte; what could not be stated is carried (`carried` says why)."""
        if self.tape.open:
            raise RuntimeError("the block that observes has not ended: ask for the term after it")
        named = model if isinstance(model, dict) else dict(_named(model, buffers))
        term, self.carried = write(self.tape, named)
        return term


def _named(model: torch.nn.Module, buffers: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    if buffers:
        yield from model.named_buffers(remove_duplicate=False)


@contextmanager
def observe(seed: int | None = None, device: str = "cpu") -> Iterator[Observed]:
    """Watch a model being built. With a seed, torch.manual_seed(seed) first; without, the generator must have been
    seeded and not been used. device="oracle": the numbers that the virtual card draws; they are watched there."""
    if device not in ("cpu", "oracle"):
        raise NotImplementedError(
            f"initialisation on {device!r} is not watched; build the model on the CPU or on the virtual card"
        )
    if seed is not None:
        torch.manual_seed(seed)
    tape = Tape(device)
    with _Mode(tape), _trunc_normal(tape):
        yield Observed(tape)
    tape.close()


@contextmanager
def _trunc_normal(tape: Tape) -> Iterator[None]:
    """trunc_normal_ redraws until no number is outside: one step of the term instead of five a round."""
    original = torch.nn.init._no_grad_trunc_normal_

    def watched(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        plain = generator is None and std > 0 and tape.knows(tensor) and tensor.is_contiguous()
        if not plain or not terms.share_inside(mean, std, a, b) > terms.TRUNC_NORMAL:
            return original(tensor, mean, std, a, b, generator=generator)
        tape.draw("trunc_normal", tensor, (mean, std, a, b))
        with tape.paused():
            original(tensor, mean, std, a, b)
        tape.drawn()
        return tensor

    torch.nn.init._no_grad_trunc_normal_ = watched
    try:
        yield
    finally:
        torch.nn.init._no_grad_trunc_normal_ = original


_FACTORIES = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
_FULL = {"full": "fill_value", "full_like": "fill_value", "new_full": "fill_value", "fill_": "value"}
_RAND = {"rand": "uniform", "rand_like": "uniform", "randn": "normal", "randn_like": "normal"}
_ARITHMETIC = {"mul": "mul", "mul_": "mul", "add": "add", "add_": "add", "div": "div", "div_": "div", "sub": "sub",
               "sub_": "sub"}  # fmt: skip


class _Mode(TorchDispatchMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.tape.is_paused:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random:
            self.tape.before_random()
        out = func(*args, **kwargs)
        if not self._known(func, name, args, kwargs, out):
            self._unknown(func, args, kwargs, out)
            if random:
                self.tape.unknown_random(str(func))
        elif random:
            self.tape.drawn()
        return out

    def _known(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
        """Puts the op on the tape where the term can say it."""
        tape = self.tape
        if not isinstance(out, torch.Tensor) or not tape.here(out):
            return False
        if name in _EMPTY:
            tape.new(out)
            return True
        if name in _FACTORIES:
            tape.new(out)
            tape.write("fill", out, value=_FACTORIES[name])
            return True
        if name == "zero_":
            return tape.write("fill", out, value=0)
        if name in _FULL:
            value = _argument(func, args, kwargs, _FULL[name])
            if name != "fill_":
                tape.new(out)
            return _is_number(value) and tape.write("fill", out, value=value)
        if name in ("uniform_", "normal_"):
            bounds = ("from", "to") if name == "uniform_" else ("mean", "std")
            low, high = (_argument(func, args, kwargs, key) for key in bounds)
            plain = tape.own_generator(_argument(func, args, kwargs, "generator"))
            return plain and tape.knows(out) and tape.draw(name[:-1], out, (low, high))
        if name in _RAND:
            tape.new(out)
            return tape.own_generator(kwargs.get("generator")) and tape.draw(_RAND[name], out, (0, 1))
        return self._known_step(func, name, args, kwargs, out)

    def _known_step(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
        tape = self.tape
        source = args[0] if args else None
        in_place = out is source
        if name in _ARITHMETIC:
            value = args[1] if len(args) > 1 else kwargs.get("other")
            plain = out.dtype.is_floating_point and kwargs.get("alpha", 1) == 1 and kwargs.get("rounding_mode") is None
            if not plain or not isinstance(value, (int, float)) or not math.isfinite(value):
                return False
            step: dict[str, Any] = {"value": value if _ARITHMETIC[name] != "sub" else -value}
            step_name = _ARITHMETIC[name].replace("sub", "add")
        elif name in ("clamp", "clamp_") and "Tensor" not in func._overloadname:
            step_name, step = "clamp", {"low": _argument(func, args, kwargs, "min"),
                                        "high": _argument(func, args, kwargs, "max")}  # fmt: skip
        elif name == "copy_":
            return tape.copy(out, args[1])
        elif name in ("clone", "_to_copy"):
            tape.new(out)
            return tape.copy(out, source)
        else:
            return bool(func.is_view) or name in ("detach", "alias", "set_", "lift_fresh") and not _fresh(tape, out)
        if not in_place:
            tape.new(out)
            if not isinstance(source, torch.Tensor) or source.dtype != out.dtype or source.shape != out.shape:
                return False
            if not tape.copy(out, source):
                return False
        return tape.write(step_name, out, **step)

    def _unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        reason = f"{func} is not stated"
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                for t in _tensors(value):
                    self.tape.opaque(t, reason)
        for t in _tensors(out):
            if not any(_same_memory(t, given) for given in _tensors(args)):
                self.tape.opaque(t, reason)


def _fresh(tape: Tape, out: torch.Tensor) -> bool:
    return not tape.knows(out)


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The value of an argument; a 0-dimensional tensor of the host as the number it holds."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if position < len(args):
                value = args[position]
            else:
                value = kwargs.get(name, argument.default_value if argument.has_default_value() else None)
            if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
                return None
            return value
    return None
