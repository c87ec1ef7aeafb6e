"""Speed and memory of FlashAttention-2 against torch's CPU attention, both in this process:

    python tests/bench/attention_flash.py [--card a100-sxm-80gb] [--keys 1024 2048 4096] [--layer]

Forward and backward of bfloat16 on the virtual card against float32 of torch's own fused CPU kernel; batch 4, 12 heads,
width 64, causal, unless told otherwise. Memory: the peak above what the operands hold.
"""

import argparse
import resource
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import step_oracle
from step_oracle import _oracle


def best(run: Callable[[], object], times: int) -> float:
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def peak() -> int:
    """Of this process, in bytes. It only grows: shapes go from small to large."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(out, (q, k, v), g)

    return run


def operands(shape: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for _ in range(4)]


def measure(batch: int, heads: int, keys: int, width: int, times: int) -> str:
    tensors = operands((batch, heads, keys, width))
    host = [t.requires_grad_() for t in tensors[:3]] + tensors[3:]
    card = [t.detach().bfloat16().to("oracle").requires_grad_(i < 3) for i, t in enumerate(tensors)]
    before = peak()
    ours = best(attend(*card), times)
    grown = peak() - before
    theirs = best(attend(*host), times)
    return (f"{batch} x {heads} heads x {keys} keys x {width}: oracle bfloat16 {ours:.3f} s, "
            f"torch float32 {theirs:.3f} s, ratio {ours / theirs:.2f}; "
            f"memory above the operands {grown / 2**20:.0f} MiB")  # fmt: skip


class Layer(nn.Module):
    """A block of the 124 M GPT."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, 2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in parts)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def layer(batch: int, tokens: int, times: int) -> str:
    def run(device: str, cast: bool) -> Callable[[], object]:
        model = Layer().to(device)
        x = torch.randn(batch, tokens, 768).to(device)

        def step() -> object:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=cast):
                out = model(x)
            return out.float().sum().backward()

        return step

    ours, theirs = best(run("oracle", True), times), best(run("cpu", False), times)
    return (f"a layer of the 124 M GPT, {batch} x {tokens} tokens: oracle bfloat16 (autocast) {ours:.3f} s, "
            f"torch float32 {theirs:.3f} s, ratio {ours / theirs:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="a100-sxm-80gb")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--keys", type=int, nargs="+", default=[1024])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--layer", action="store_true", help="a layer of the 124 M GPT instead")
    args = parser.parse_args()
    step_oracle.set_card(args.card)
    torch.use_deterministic_algorithms(True)  # the default algorithm is a race beyond two key tiles
    torch.set_num_threads(args.threads)
    _oracle.set_num_threads(args.threads)
    if args.layer:
        print(layer(args.batch, args.keys[0], args.times))
        return
    for keys in sorted(args.keys):
        print(measure(args.batch, args.heads, keys, args.width, args.times), flush=True)


if __name__ == "__main__":
    main()
