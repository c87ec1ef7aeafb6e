"""Terms and samplers: what the host computes for a step, against torch and this host."""

import math
import pathlib

import pytest
import torch

import step_oracle
from step_oracle.recipe import sampler, terms
from step_oracle.recipe.canonical import Block, Malformed, dump, parse


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> sampler.Corpus:
    step_oracle.set_card("h100-sxm")
    path = tmp_path_factory.mktemp("corpus") / "c"
    path.write_bytes(bytes(i * 7 % 251 for i in range(5000)))
    return sampler.Corpus(path)


@pytest.mark.parametrize("bound", [5, 4000, (1 << 28) - 1, 1 << 28, (1 << 31) + 11, (1 << 40) + 3])
@pytest.mark.parametrize("seed", [0, 7, (1 << 32) + 7, (1 << 63) - 1])
def test_offsets_are_those_of_torch(bound: int, seed: int) -> None:
    offsets = step_oracle.device.extension().Offsets(seed)
    generator = torch.Generator().manual_seed(seed)
    with_torch = sampler.TorchOffsets(seed)
    with_torch.skip(717 * (2 if bound >= 1 << 28 else 1))
    again = step_oracle.device.extension().Offsets(seed)
    again.skip(717 * (2 if bound >= 1 << 28 else 1))
    assert again.next(9, bound) == with_torch.next(9, bound)
    for count in (1, 16, 700):
        assert offsets.next(count, bound) == torch.randint(bound, (count,), generator=generator).tolist()


def test_batches_are_cut_as_a_script_cuts_them(corpus: sampler.Corpus) -> None:
    block = sampler.describe(kind="randint offsets 1", batch=3, context=8, seed=5, bound=5000 - 8, micro=2)
    generator = torch.Generator().manual_seed(5)
    text = corpus.bytes.long()
    walked = sampler.Sampler(block, corpus)
    for step in range(4):
        batch = walked.next()
        assert sampler.Sampler(block, corpus, step).next().keys() == batch.keys()
        for i in range(2):
            starts = torch.randint(5000 - 8, (3,), generator=generator)
            rows = torch.stack([text[s : s + 9] for s in starts])
            assert torch.equal(batch[f"x.{i}"], rows[:, :-1]) and torch.equal(batch[f"y.{i}"], rows[:, 1:])
            assert torch.equal(sampler.Sampler(block, corpus, step).next()[f"x.{i}"], batch[f"x.{i}"])


def test_contiguous_batches_wrap_around(corpus: sampler.Corpus) -> None:
    block = sampler.describe(kind="contiguous 1", batch=3, context=500, start=100)
    walked = sampler.Sampler(block, corpus)
    firsts = [walked.next()["x.0"][0, 0].item() for _ in range(5)]
    assert firsts == [corpus.bytes[i].item() for i in (100, 1600, 3100, 0, 1500)]
    assert sampler.Sampler(block, corpus, 4).next()["x.0"][0, 0].item() == firsts[4]


def test_a_uint16_corpus(tmp_path: pathlib.Path) -> None:
    step_oracle.set_card("h100-sxm")
    (tmp_path / "c").write_bytes(torch.arange(300, dtype=torch.int64).to(torch.uint16).numpy().tobytes())
    corpus = sampler.Corpus(tmp_path / "c")
    block = sampler.describe(kind="contiguous 1", batch=1, context=299, tokens="uint16")
    assert sampler.Sampler(block, corpus).next()["y.0"].tolist() == [list(range(1, 300))]
    with pytest.raises(Malformed, match="too few"):
        sampler.Sampler(sampler.describe(kind="contiguous 1", batch=1, context=300, tokens="uint16"), corpus)
    with pytest.raises(Malformed, match="sampler.bound is 2, and a corpus of 300 tokens"):
        sampler.Sampler(
            sampler.describe(kind="randint offsets 1", batch=1, context=299, bound=2, seed=1, tokens="uint16"), corpus
        )


def test_powers_are_rounded_correctly() -> None:
    from fractions import Fraction

    for base in (0.9, 0.95, 0.999):
        for t in (1, 2, 3, 100, 482, 1000):
            value = terms.power(base, float(t))
            exact = Fraction(base) ** t
            assert abs(Fraction(value) - exact) <= min(abs(Fraction(math.nextafter(value, d)) - exact) for d in (0, 1))
    assert terms.cosine(0.0) == 1.0
    assert all(abs(terms.cosine(x) - math.cos(x)) <= math.ulp(1.0) for x in (0.1, 1.0, math.pi / 2, 3.0, math.pi))


def test_exceptions_are_this_hosts_libm() -> None:
    host = terms.HostFunctions()
    for t in range(1, 600):
        assert host.power(0.95, float(t)) == 0.95 ** float(t)
    told = terms.Functions([(*k, v) for k, v in host.exceptions.items()])
    assert all(told.power(0.95, float(t)) == 0.95 ** float(t) for t in range(1, 600))
    assert not told.unused()
    assert terms.Functions([("power", "0" * 16, "0" * 16, "0" * 16)]).unused()


def test_terms_are_what_torch_computes() -> None:
    group = Block(
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "schedule": {"kind": "constant", "lr": 6e-4}}
    )
    for t in (1, 2, 3, 7, 100):
        v = terms.candidates([group], t - 1, terms.HostFunctions())
        correction1, correction2 = 1 - 0.9 ** float(t), 1 - 0.999 ** float(t)
        assert v["step_size_negative@0"] == (6e-4 / correction1) * -1
        assert v["correction2_root@0"] == correction2**0.5
        assert v["decay@0"] == 1 - 6e-4 * 0.1
        assert (v["beta1_rest@0"], v["beta2_rest@0"]) == (1 - 0.9, 1 - 0.999)


@pytest.mark.parametrize("key", ["lr@1", "lr", "lr@00", "lr@-1", "nonsense@0", "_literal@0", "momentum@0"])
def test_a_term_that_the_recipe_does_not_give_is_refused(key: str) -> None:
    group = Block({"schedule": {"kind": "constant", "lr": 6e-4}})
    with pytest.raises(Malformed, match="term"):
        terms.evaluate([key], [group], 0, terms.Functions())


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '{"a":NaN}',
        '{"a":1e999}',
        '{"a":-Infinity}',
        '{"a": 1}',
        '{"b":1,"a":1}',
        '{"a":1.50}',
        '{"a":1}x',
        '{"a":"\u00e9"}',
        '{"a":123456789012345678901234567890}',
        '{"a":01}',
        "[" * 100_000,
        "",
        "{",
        '{"a":1}\n\n',
        '{"a":"\\u0041"}',
    ],
)
def test_only_canonical_json_is_read(text: str) -> None:
    with pytest.raises(Malformed):
        parse(text.encode())
    assert parse(dump({"a": [1, 1.5, None, True, "x", -0.0]})) == {"a": [1, 1.5, None, True, "x", -0.0]}
