"""Prints what torch's own CPU fills give in this process, one JSON object: run with ATEN_CPU_CAPABILITY set.

    host_fills.py fills        digests of fills after fills of one generator, by case
    host_fills.py arguments    digests over all 2^24 arguments of the large normal fill
"""

import hashlib
import json
import sys

import numpy as np
import torch

SIZES = [
    *range(4), *range(7, 10), *range(14, 18), *range(31, 34), 47, 48, *range(63, 66), *range(255, 258), 607, 608,
    *range(623, 626), 1000, 1023, *range(4095, 4098), 10007,
]  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ARGUMENTS = {"normal": [(0.0, 0.02), (0.25, 1.75)], "uniform": [(-0.036, 0.036), (0.1, 0.9)]}


def digest(t: torch.Tensor) -> str:
    raw = t.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()[:16]


def laid_out(n: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of n elements: contiguous, with gaps, or (n = 6 k) turned."""
    if layout == "gaps":
        return torch.zeros(n, 2, dtype=dtype)[:, 0]
    if layout == "turned":
        return torch.zeros(3, n // 6, 2, dtype=dtype).permute(2, 0, 1)
    return torch.zeros(n, dtype=dtype)


def cases() -> list[tuple[str, int, str, str, tuple[float, float]]]:
    """(dtype, n, layout, fn, arguments), drawn one after the other from one generator."""
    out = []
    for name in DTYPES:
        for n in SIZES:
            for layout in ["dense", "gaps"] + (["turned"] if n % 6 == 0 and n else []):
                for fn, arguments in ARGUMENTS.items():
                    out += [(name, n, layout, fn, pair) for pair in arguments]
    return out


def fills(seed: int) -> dict[str, str]:
    torch.manual_seed(seed)
    out = {}
    for dtype, n, layout, fn, (a, b) in cases():
        t = laid_out(n, layout, DTYPES[dtype])
        t.normal_(a, b) if fn == "normal" else t.uniform_(a, b)
        out[f"{dtype} {n} {layout} {fn} {a} {b}"] = digest(t)
    wide = torch.empty(1001, dtype=torch.float64).uniform_(-0.3, 0.7)
    out["float64"] = digest(wide)
    out["randperm"] = digest(torch.randperm(1237))
    for high in (1000, 2**28 - 1, 2**28, 2**40):
        out[f"randint {high}"] = digest(torch.randint(5, high, (777,)))
    out["state"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
    return out


def untempered(y: np.ndarray) -> np.ndarray:
    """The state words whose tempered words are y."""
    y = y ^ (y >> 18)
    y = y ^ ((y << 15) & np.uint32(0xEFC60000))
    x = y
    for _ in range(5):
        x = y ^ ((x << 7) & np.uint32(0x9D2C5680))
    z = x
    for _ in range(3):
        z = x ^ (z >> 11)
    return z


def normals_of(words: np.ndarray) -> np.ndarray:
    """normal_(0, 1) of given words: put into the generator's state, 608 of its 624 at a time."""
    words = untempered(words.astype(np.uint32))
    state = np.frombuffer(torch.manual_seed(0).get_state().numpy().tobytes(), dtype=np.uint64).copy()
    out = np.empty(len(words), dtype=np.float32)
    for at in range(0, len(words), 608):
        part = words[at : at + 608]
        state[1] = (len(part) + 1) | (1 << 32)  # left, seeded
        state[2] = 624 - len(part)
        state[3 + 624 - len(part) : 3 + 624] = part
        torch.default_generator.set_state(torch.from_numpy(state.view(np.uint8).copy()))
        out[at : at + len(part)] = torch.empty(len(part)).normal_(0, 1).numpy()
    return out


def arguments(step: int = 1) -> dict[str, str]:
    """All u1 with u2 = 0 (the radius); all u2 with u1 = 1/2 (the sine and the cosine)."""
    k = np.arange(0, 1 << 24, step, dtype=np.uint32).reshape(-1, 8)
    radius = normals_of(np.concatenate([k, np.zeros_like(k)], axis=1).ravel()).reshape(-1, 16)
    angle = normals_of(np.concatenate([np.full_like(k, 1 << 23), k], axis=1).ravel()).reshape(-1, 16)
    return {
        "radius": hashlib.sha256(radius[:, :8].tobytes()).hexdigest(),
        "cosine": hashlib.sha256(angle[:, :8].tobytes()).hexdigest(),
        "sine": hashlib.sha256(angle[:, 8:].tobytes()).hexdigest(),
    }


if __name__ == "__main__":
    result = fills(20261130) if sys.argv[1] == "fills" else arguments(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), "result": result}))
