"""What a digest sees, and that it is the one everybody can get."""

import pytest
import torch
from recording import digest, find, recorded

import step_oracle


def first_input(t: torch.Tensor) -> dict:
    return recorded(lambda: t * 1)["ops"][0]["tensors"][0]


X = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
SWAPPED = X.clone()
SWAPPED[0, 0], SWAPPED[0, 1] = X[0, 1], X[0, 0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(X, -X, id="sign"),
        pytest.param(X, X.flip(0).contiguous(), id="rows permuted"),
        pytest.param(X, X.t().contiguous(), id="transposed"),
        pytest.param(X, SWAPPED, id="two swapped"),
        pytest.param(torch.tensor([1.0, 1, 5, 7]), torch.tensor([9.0, 9, 5, 7]), id="pair cancels in an XOR"),
        pytest.param(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 2.0]), id="equal sums"),
        pytest.param(torch.zeros(8), -torch.zeros(8), id="minus zero"),
        pytest.param(torch.tensor([True, False]), torch.tensor([False, True]), id="mask"),
        pytest.param(torch.tensor([1 + 2j]), torch.tensor([2 + 1j]), id="complex parts"),
        pytest.param(torch.tensor([1e9, 1e-8]), torch.tensor([1e9, 2e-8]), id="small beside large"),
        pytest.param(torch.arange(16.0), torch.arange(16.0).double(), id="f64"),
        pytest.param(torch.arange(16.0), torch.arange(16.0).bfloat16(), id="bf16"),
    ],
)
def test_sees(a: torch.Tensor, b: torch.Tensor) -> None:
    assert first_input(a)["before"] != first_input(b)["before"]


def test_dtype_and_shape_stand_beside_it() -> None:
    zero_f, zero_i = first_input(torch.zeros(4)), first_input(torch.zeros(4, dtype=torch.int32))
    assert zero_f["before"] == zero_i["before"]
    assert zero_f["dtype"] != zero_i["dtype"]
    assert first_input(X.view(16, 64))["sizes"] == [16, 64]


@pytest.mark.parametrize(
    "t",
    [
        X, X.t(), X[3:7, 5:9], X[:, 1], X[::2, ::3], X.expand(3, 32, 32), X.view(4, 8, 4, 8).permute(2, 0, 3, 1),
        X[0, 0], torch.empty(0, 4), torch.arange(5, dtype=torch.int64),
        torch.randn(300, 700), torch.randn(300, 700).t(),
        torch.randn(4, 64, 6, 64).transpose(1, 2), X.half(), X.bfloat16().t(), (X > 0).t(),
        torch.randn(9, 7).to(torch.complex64).t(), torch.randn(3, 5, 7, 11).to(memory_format=torch.channels_last),
    ],
    ids=str,
)  # fmt: skip
def test_is_blake3_of_the_logical_bytes(t: torch.Tensor) -> None:
    seen = first_input(t)
    assert seen["before"] == digest(t)
    assert seen["sizes"] == list(t.shape)
    assert seen["strides"] == list(t.stride())


def test_large_view_hashed_by_a_worker() -> None:
    t = torch.randn(1024, 1500)
    records = recorded(lambda: (t * 1, t.t() * 1, t.add_(1), t * 1))
    assert find(records, "aten.mul.Tensor", 2)["tensors"][0]["before"] == digest(t)
    assert find(records, "aten.add_.Tensor")["tensors"][0]["after"] == digest(t)
    first = find(records, "aten.mul.Tensor", 0)["tensors"][0]["before"]
    assert first == find(records, "aten.add_.Tensor")["tensors"][0]["before"] != digest(t)


def test_a_version_of_a_view_is_digested_once() -> None:
    t = torch.randn(1000)
    records = recorded(lambda: [t.neg() for _ in range(10)])
    assert records["summary"]["digests"] == 1 + 10  # the input, and each result


def test_in_place_input_before_and_after() -> None:
    x = torch.full((4,), 2.0)
    records = recorded(lambda: x.mul_(3.0))
    (op,) = records["ops"]
    assert op["tensors"][0]["before"] == digest(torch.full((4,), 2.0))
    assert op["tensors"][0]["after"] == digest(torch.full((4,), 6.0))
    assert op["tensors"][0]["mutated"]
    assert not any(t["created"] for t in op["tensors"])


def test_out_argument_before_and_after() -> None:
    out = torch.zeros(2)
    records = recorded(lambda: torch.add(torch.ones(2), 1, out=out))
    target = find(records, "aten.add.out")["tensors"][-1]
    assert (target["before"], target["after"]) == (digest(torch.zeros(2)), digest(torch.full((2,), 2.0)))


def test_pending_digests_survive_freed_memory() -> None:
    """Temporaries go before a worker has hashed them; their memory is used again at once."""

    def block() -> list[float]:
        return [float((torch.full((1 << 18,), float(i)) + 1)[0]) for i in range(40)]

    records = recorded(block)
    adds = [op for op in records["ops"] if op["name"] == "aten.add.Tensor"]
    for i, op in enumerate(adds):
        assert op["tensors"][0]["before"] == digest(torch.full((1 << 18,), float(i)))
        assert op["tensors"][-1]["after"] == digest(torch.full((1 << 18,), float(i + 1)))


def test_storage_resized_away_under_a_pending_digest() -> None:
    t = torch.randn(1 << 20)
    want = digest(t.clone())  # numpy's view of a storage would pin its size

    def block() -> None:
        t * 1
        t.untyped_storage().resize_(0)

    records = recorded(block)
    assert records["ops"][0]["tensors"][0]["before"] == want


def test_keep_all_keeps_results(tmp_path) -> None:
    t = torch.randn(100, 100)
    with step_oracle.record(tmp_path / "t", keep="all"):
        y = t.t() @ t
    trace = step_oracle.load(tmp_path / "t")
    mm = next(op for op in trace.ops if op.op == "aten.mm")
    assert trace._trace.blob(mm.tensors[-1].after) == y.numpy().tobytes()
    assert trace._trace.has_blob(digest(t))
