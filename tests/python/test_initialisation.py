"""Models watched while they are built; the term's tensors are the model's, byte for byte."""

import copy
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

from step_oracle import _host, device, initialisation
from step_oracle.initialisation import TermError, check, observe, run, tensors


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.fc = nn.Linear(width, 4 * width)
        self.mlp_c_proj = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))


class Gpt(nn.Module):
    """nanoGPT's way: torch's defaults, then normal_ over them, then the residual projections again; tied weights."""

    def __init__(self, vocabulary: int = 65, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(16, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self.start)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class HuggingFaceLike(nn.Module):
    """Through .data, with a padding row, scaled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(33, 24, padding_idx=5)
        self.c_attn = nn.Parameter(torch.empty(24, 72))
        self.bias = nn.Parameter(torch.zeros(72))
        self.ln = nn.LayerNorm(24)
        self.wte.weight.data.normal_(mean=0.0, std=0.02)
        self.wte.weight.data[5].zero_()
        self.c_attn.data.normal_(mean=0.0, std=0.02)
        self.ln.weight.data.fill_(1.0)
        self.c_attn.data.mul_(1 / math.sqrt(2 * 12))


class Defaults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(17, 9)
        self.small = nn.Linear(2, 3)
        self.embedding = nn.Embedding(11, 7, padding_idx=3)
        self.attention = nn.MultiheadAttention(12, 3)
        self.conv = nn.Conv2d(3, 5, 3)
        self.lstm = nn.LSTM(5, 6)
        self.norm = nn.BatchNorm1d(4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.half = nn.Linear(31, 9, dtype=torch.bfloat16)
        self.empty = nn.Parameter(torch.empty(0, 4))
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.copies = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # deep copies
        self.cast = nn.Linear(33, 5).to(torch.bfloat16)


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        init = nn.init
        fills = {
            "xavier_uniform": init.xavier_uniform_, "xavier_normal": init.xavier_normal_,
            "kaiming_uniform": init.kaiming_uniform_, "kaiming_normal": init.kaiming_normal_,
            "trunc": lambda t: init.trunc_normal_(t, std=0.02), "trunc_cut": lambda t: init.trunc_normal_(t, a=-1, b=1),
            "constant": lambda t: init.constant_(t, 0.3), "uniform": lambda t: init.uniform_(t, -0.1, 0.3),
        }  # fmt: skip
        for shape in ((3, 5), (4, 4), (17, 3), (40, 9)):
            for name, fill in fills.items():
                parameter = nn.Parameter(torch.empty(shape))
                fill(parameter)
                self.register_parameter(f"{name}_{shape[0]}", parameter)
        self.turned = nn.Parameter(torch.empty(8, 20).t())
        init.normal_(self.turned, std=0.1)
        self.slices = nn.Parameter(torch.empty(30, 12))
        for third in self.slices.data.chunk(3):
            init.xavier_uniform_(third)
        self.columns = nn.Parameter(torch.zeros(30, 12))
        init.uniform_(self.columns.data[:, 3:7])
        init.normal_(self.columns.data[:, 8:11])
        self.scaled = nn.Parameter(torch.randn(3, 50) * 0.3)
        self.shifted = nn.Parameter(2 * torch.rand(7, 9) - 1)
        self.clamped = nn.Parameter(torch.randn(100).clamp(-0.5, 0.5))


STATED = [Gpt, HuggingFaceLike, Defaults, Functions]


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def assert_same(model: nn.Module, term: dict) -> None:
    computed = tensors(json.loads(json.dumps(term)))
    named = everything(model)
    assert set(computed) == set(named)
    for name, t in named.items():
        assert initialisation.write._same_bytes(computed[name], t.detach().cpu()), name


@pytest.mark.parametrize("model", STATED)
def test_models(model: type[nn.Module]) -> None:
    with observe(seed=1337) as seen:
        built = model()
    after = torch.get_rng_state().numpy().tobytes()
    term = seen.term(built)
    assert_same(built, term)
    assert run(term)[1] == after, "what is drawn next goes on from the same state"
    assert all("mask" in name or "num_batches" in name for name in seen.carried), seen.carried
    with observe(seed=1338) as other:
        again = model()
    assert other.term(again)["steps"] == term["steps"], "the seed is not in the steps"
    assert any(not torch.equal(a, b) for a, b in zip(built.parameters(), again.parameters(), strict=True))


def test_hugging_faces_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    with observe(seed=42) as seen:
        built = transformers.GPT2LMHeadModel(config)
    assert_same(built, seen.term(built))
    assert not seen.carried


def test_overwritten_defaults_become_words() -> None:
    with observe(seed=1) as seen:
        built = Gpt()
    term = seen.term(built)
    assert 2 <= sum(step["fn"] == "skip" for step in term["steps"]) <= 8
    assert not any(step["fn"] == "uniform" for step in term["steps"])
    assert term["views"]["lm_head.weight"]["of"] == "wte.weight"
    assert len(json.dumps(term)) < 8000


WATCH = """
import json, sys
sys.path[:0] = {path!r}
import test_initialisation as t
built = []
with t.observe(seed=5) as seen:
    built.append(getattr(t, {model!r})())
import torch
named = {{n: list(p.detach().flatten().view(torch.uint8).numpy().tobytes()) for n, p in t.everything(built[0]).items()
         if p.is_contiguous()}}
print(json.dumps([seen.term(built[0]), named]))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the dispatches of x86-64")
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_a_host_of_another_dispatch(capability: str) -> None:
    """Drawn in a process with that capability, computed in this one, under every instruction set."""
    here = pathlib.Path(__file__).parent
    program = WATCH.format(path=[str(here), str(here.parents[1])], model="Gpt")
    env = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    term, named = json.loads(said.stdout)
    if term["generator"]["dispatch"] != capability:
        pytest.skip(f"this CPU has no {capability}")
    before = _host.isas()["active"]
    for isa in _host.isas()["usable"]:
        _host.set_isa(isa)
        computed = tensors(term)
        for name, values in named.items():
            raw = computed[name].flatten().view(torch.uint8).numpy().tobytes()
            assert raw == bytes(values), f"{name} under {isa}"
    _host.set_isa(before)
    term["generator"]["dispatch"] = "avx2" if capability == "default" else "default"
    other = tensors(term)["wpe.weight"].flatten().view(torch.uint8).numpy().tobytes()
    assert other != bytes(named["wpe.weight"])


def test_what_is_not_stated_is_carried_with_its_reason() -> None:
    with observe(seed=3) as seen:
        m = nn.Module()
        m.q = nn.Parameter(nn.init.orthogonal_(torch.empty(6, 6)))
        m.after = nn.Parameter(torch.randn(20))
        m.cut = nn.Parameter(nn.init.trunc_normal_(torch.empty(50), a=2.0, b=3.0))
        m.order = nn.Parameter(torch.randperm(9).float())
        m.wide = nn.Parameter(torch.randn(20, dtype=torch.float64))
        m.given = nn.Parameter(torch.tensor([1.0, 2.0]))
        m.own = nn.Parameter(torch.empty(20).normal_(generator=torch.Generator().manual_seed(1)))
        m.last = nn.Parameter(torch.randn(20))
    term = seen.term(m)
    assert_same(m, term)
    assert set(seen.carried) == {"q", "cut", "order", "wide", "given", "own"}
    assert "randperm" in seen.carried["order"]
    assert all(step["reason"] for step in term["steps"] if step["fn"] == "carried")


def test_seeding_in_the_middle() -> None:
    with observe(seed=3) as seen:
        m = nn.Module()
        m.a = nn.Parameter(torch.randn(20))
        torch.manual_seed(4)
        m.b = nn.Parameter(torch.randn(20))
        torch.set_rng_state(torch.get_rng_state())
        state = torch.get_rng_state()
        torch.manual_seed(9)
        torch.rand(5)
        torch.set_rng_state(state)
        m.c = nn.Parameter(torch.randn(20))
    term = seen.term(m)
    assert_same(m, term)
    assert [s["seed"] for s in term["steps"] if s["fn"] == "seed"] == [4, 9] and not seen.carried


def test_memory_that_nothing_wrote_is_carried() -> None:
    with observe(seed=3) as seen:
        m = nn.Module()
        m.a = nn.Parameter(torch.empty(1000))
        m.a.data.set_(torch.arange(1000.0).clone())
        m.b = nn.Parameter(torch.empty(64))
    with torch.no_grad():
        m.b.view(torch.int32).fill_(77)  # what happened to lie there
    term = seen.term(m)
    assert_same(m, term)
    assert set(seen.carried) == {"a", "b"}


def test_a_change_after_the_block_is_carried_not_stated() -> None:
    with observe(seed=3) as seen:
        m = nn.Linear(4, 4)
    with torch.no_grad():
        m.weight.add_(1)
    term = seen.term(m)
    assert_same(m, term)
    assert set(seen.carried) == {"weight"}


def test_a_used_generator_is_refused() -> None:
    torch.manual_seed(1)
    torch.rand(3)
    with pytest.raises(ValueError, match="used since it was seeded"), observe():
        pass


def test_on_the_card() -> None:
    device.ensure_loaded("h100-pcie")
    with observe(seed=11, device="oracle") as seen, torch.device("oracle"):
        m = nn.Sequential(nn.Linear(20, 30), nn.Embedding(40, 8), nn.LayerNorm(8))
        nn.init.normal_(m[0].weight, std=0.02)
        nn.init.trunc_normal_(m[1].weight, std=0.02)
    term = seen.term(m)
    assert not seen.carried and term["generator"]["kind"] == "card"
    assert_same(m, term)


def small_term() -> dict:
    with observe(seed=2) as seen:
        built = nn.Sequential(nn.Linear(3, 5), nn.Embedding(4, 4, padding_idx=1))
        built.register_buffer("t", torch.tril(torch.ones(3, 3)))
    return seen.term(built)


EDITS = [
    lambda t: t.update(version=2),
    lambda t: t.update(extra=1),
    lambda t: t.pop("steps"),
    lambda t: t["generator"].update(seed=-1),
    lambda t: t["generator"].update(seed=True),
    lambda t: t["generator"].update(dispatch="sse9"),
    lambda t: t["generator"].update(kind="cloud"),
    lambda t: t["steps"][0].update(low=float("nan")),
    lambda t: t["steps"][0].update(low=1e400),
    lambda t: t["steps"][0].update(low=5.0),
    lambda t: t["steps"][0].update(fn="orthogonal"),
    lambda t: t["steps"][0].update(to="nothing"),
    lambda t: t["steps"][0].update(other=1),
    lambda t: t["tensors"].update(unused={"shape": [3], "dtype": "float32"}),
    lambda t: t["tensors"]["0.weight"].update(shape=[1 << 30, 1 << 30]),
    lambda t: t["tensors"]["0.weight"].update(shape=[-1]),
    lambda t: t["tensors"]["0.weight"].update(dtype="int64"),
    lambda t: t["tensors"]["0.weight"].update(stride=[9, 9]),
    lambda t: t["blobs"].update({"0" * 64: "AA=="}),
    lambda t: t["blobs"].update({next(iter(t["blobs"])): "AA=="}),
    lambda t: t["blobs"].update({next(iter(t["blobs"])): "!"}),
    lambda t: t["steps"].append({"fn": "skip", "words": -1}),
    lambda t: t["steps"].append({"fn": "skip", "words": 2**47}),
    lambda t: t["steps"].append({"fn": "trunc_normal", "to": "0.weight", "mean": 9, "std": 1, "low": -1, "high": 1}),
    lambda t: t["steps"].append({"fn": "trunc_normal", "to": "0.weight", "mean": 0, "std": 0, "low": -1, "high": 1}),
    lambda t: t["steps"].append({"fn": "fill", "to": "t16", "value": 1e30}),
    lambda t: t["tensors"]["0.weight"].update(shape=[1 << 36]),
    lambda t: t["steps"].append({"fn": "offset", "offset": 4}),
    lambda t: t["steps"].append([]),
    lambda t: t.update(views={"v": {"of": "0.weight", "offset": 14, "shape": [2], "stride": [1]}}),
]


@pytest.mark.parametrize("edit", range(len(EDITS)))
def test_a_wrong_term_is_refused(edit: int) -> None:
    term = small_term()
    term["tensors"]["t16"] = {"shape": [3], "dtype": "float16"}
    term["steps"].append({"fn": "fill", "to": "t16", "value": 1})
    check(term)
    changed = copy.deepcopy(term)
    EDITS[edit](changed)
    with pytest.raises(TermError):
        tensors(changed)


def test_every_number_of_a_term_shows_in_the_bytes() -> None:
    term = small_term()


    def raw(t: torch.Tensor) -> torch.Tensor:
        return t.flatten().contiguous().view(torch.uint8).clone()

    whole = {name: raw(t) for name, t in tensors(term).items()}
    for index, step in enumerate(term["steps"]):
        for key, value in step.items():
            if type(value) not in (int, float):
                continue
            changed = copy.deepcopy(term)
            changed["steps"][index][key] = math.nextafter(value, math.inf) * 1.0001 + 1e-3
            other = tensors(changed)
            assert any(not torch.equal(whole[name], raw(t)) for name, t in other.items()), key
