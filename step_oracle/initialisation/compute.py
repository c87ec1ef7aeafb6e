"""The term's tensors. Draws are the kernels' (host_random, or the virtual card's); the rest is single operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import _host, device
from . import term as terms


def tensors(term: dict[str, Any], blobs: dict[str, bytes] | None = None) -> dict[str, torch.Tensor]:
    """The tensors by name, on the host. Views share memory with what they are views of (tied weights)."""
    terms.check(term)
    return Computation(term, blobs).run()


def run(term: dict[str, Any], blobs: dict[str, bytes] | None = None) -> tuple[dict[str, torch.Tensor], bytes]:
    """The tensors, and the state that the generator was left in: what is drawn next goes on from there."""
    terms.check(term)
    computation = Computation(term, blobs)
    return computation.run(), computation.state()


def memory_order(view: torch.Tensor) -> torch.Tensor:
    """The view with its dimensions in the order in which TensorIterator walks them: largest stride first."""
    stride = view.stride()
    return view.permute(sorted(range(view.dim()), key=lambda d: (-stride[d], d)))


class HostDraws:
    """Draws of torch's CPU generator, by the kernels."""

    def __init__(self, generator: dict[str, Any]) -> None:
        self.dispatch = generator["dispatch"]
        self.seed(generator["seed"])

    def seed(self, seed: int) -> None:
        self.generator = _host.HostGenerator(seed, self.dispatch)

    def draw(self, fn: str, out: torch.Tensor, a: float, b: float) -> None:
        if fn == "uniform":
            self._into(out, lambda dense: self.generator.uniform_(dense, a, b))
        else:
            contiguous = out.is_contiguous()
            self._into(out, lambda dense: self.generator.normal_(dense, a, b, contiguous))

    @staticmethod
    def _into(out: torch.Tensor, fill: Any) -> None:
        if out.is_contiguous():
            fill(out)
            return
        ordered = memory_order(out)
        dense = torch.empty(ordered.shape, dtype=out.dtype)
        fill(dense)
        ordered.copy_(dense)


class CardDraws:
    """Draws of a card's generator, on the virtual card."""

    def __init__(self, generator: dict[str, Any]) -> None:
        device.ensure_loaded(generator["card"])
        if device.get_device_properties("oracle").card != generator["card"]:
            have = device.get_device_properties("oracle").card
            raise terms.refuse(
                "generator", f"it drew on a {generator['card']}, and oracle:0 is a {have}: step_oracle.set_card first"
            )
        self.generator = torch.Generator(device="oracle:0")
        self.generator.manual_seed(generator["seed"])

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def draw(self, fn: str, out: torch.Tensor, a: float, b: float) -> None:
        # The card numbers elements in memory order, so a dense fill and a copy give the same as a strided one.
        ordered = memory_order(out)
        drawn = torch.empty(ordered.shape, dtype=out.dtype, device="oracle:0")
        fill = drawn.uniform_ if fn == "uniform" else drawn.normal_
        fill(a, b, generator=self.generator)
        ordered.copy_(drawn.cpu())


class Computation:
    def __init__(self, term: dict[str, Any], blobs: dict[str, bytes] | None) -> None:
        self.term = term
        self.read = terms.reader(term, blobs)
        self.draws: Any = (HostDraws if term["generator"]["kind"] == "host" else CardDraws)(term["generator"])
        self.memory: dict[str, torch.Tensor] = {}  # one-dimensional, by slot
        last: dict[str, int] = {}
        for index, step in enumerate(term["steps"]):
            for name in (step.get("to"), step.get("from")):
                if name is not None:
                    last[name] = index
        views = {view["of"] for view in term.get("views", {}).values()}
        self.last = {name: index for name, index in last.items() if name.startswith("%") and name not in views}

    def run(self) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for index, step in enumerate(self.term["steps"]):
                try:
                    self.step(step)
                except (RuntimeError, OverflowError) as fault:  # no memory; a number that the type has not
                    line = str(fault).splitlines()[0]
                    raise terms.refuse(f"step {index}", f"torch refuses {step['fn']}: {line}") from None
                for name in {step.get("to"), step.get("from")}:
                    if name is not None and self.last.get(name) == index:
                        self.memory.pop(name, None)  # a temporary that nothing reads any more
        out = {name: self.whole(name) for name in self.term["tensors"] if not name.startswith("%")}
        for name, view in self.term.get("views", {}).items():
            out[name] = self.memory[view["of"]].as_strided(view["shape"], view["stride"], view["offset"])
        return out

    def state(self) -> bytes:
        """The generator's state after `run`: torch.get_rng_state's bytes (16 for a card)."""
        state = self.draws.generator.get_state()
        return bytes(state if isinstance(state, bytes) else state.numpy().tobytes())

    def whole(self, name: str) -> torch.Tensor:
        slot = self.term["tensors"][name]
        if name not in self.memory:
            self.memory[name] = torch.zeros(math.prod(slot["shape"]), dtype=terms.DTYPES[slot["dtype"]])
        memory = self.memory[name]
        return memory.as_strided(slot["shape"], slot["stride"]) if "stride" in slot else memory.view(slot["shape"])

    def part(self, name: str, view: dict[str, Any] | None) -> torch.Tensor:
        whole = self.whole(name)
        if view is None:
            return whole
        return self.memory[name].as_strided(view["shape"], view["stride"], view["offset"])

    def step(self, step: dict[str, Any]) -> None:
        fn = step["fn"]
        if fn == "skip":
            self.draws.generator.skip(step["words"])
        elif fn == "seed":
            self.draws.seed(step["seed"])
        elif fn == "offset":
            self.draws.generator.set_offset(step["offset"])
        elif fn == "state":
            self.draws.generator.set_state(self.read(step["blob"], 5056))
        elif "to" not in step:
            shape = step["shape"]
            away = torch.empty([*shape, 2] if "gaps" in step else shape, dtype=terms.DTYPES[step["dtype"]])
            self.write(step, away[..., 0] if "gaps" in step else away)
        else:
            self.write(step, self.part(step["to"], step.get("view")))

    def write(self, step: dict[str, Any], out: torch.Tensor) -> None:
        fn = step["fn"]
        if fn in ("uniform", "normal"):
            first, second = terms.DRAWS[fn]
            self.draws.draw(fn, out, float(step[first]), float(step[second]))
        elif fn == "trunc_normal":
            self.trunc_normal(out, *(float(step[name]) for name in terms.DRAWS[fn]))
        elif fn == "fill":
            out.fill_(step["value"])
        elif fn == "add":
            out.add_(step["value"])
        elif fn == "mul":
            out.mul_(step["value"])
        elif fn == "div":
            out.div_(step["value"])
        elif fn == "clamp":
            out.clamp_(step["low"], step["high"])
        elif fn == "copy":
            out.copy_(self.part(step["from"], step.get("from_view")))
        else:
            data = self.read(step["blob"], out.numel() * out.element_size())
            raw = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(out.dtype) if data else out.flatten()
            self.memory[step["to"]].copy_(raw)

    def trunc_normal(self, out: torch.Tensor, mean: float, std: float, low: float, high: float) -> None:
        """torch.nn.init.trunc_normal_ where more than 30 % of the normals fall inside [low, high]: draw again, all of
        them, until none is outside."""
        low, high = (out.new_tensor(bound, device="cpu").item() for bound in (low, high))
        self.draws.draw("normal", out, mean, std)
        while True:
            outside = (out < low) | (out > high)
            if not outside.any():
                return
            again = torch.empty_like(out)
            self.draws.draw("normal", again, mean, std)
            out.copy_(torch.where(outside, again, out))
