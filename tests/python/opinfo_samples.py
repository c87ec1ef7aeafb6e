"""torch's own OpInfo samples through a device. Runs in a process of its own:

    python opinfo_samples.py DEVICE OUT.json [NAME...]      DEVICE cuda (fake tensors, no CUDA needed) or oracle

For each operator of OPERATORS and each dtype: what every sample, and its backward pass, dispatches; on oracle also what
was refused and how far results are from float64's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from typing import Any

# isort: off
from dispatch_steps import Listing, let_fake_tensors_pass_for_cuda  # loads the fake CUDA before torch
import torch
# isort: on

torch.backends.cudnn.enabled = False  # the virtual card has PyTorch's own kernels of batch norm
OPERATORS = """
nn.functional.relu nn.functional.gelu nn.functional.silu sigmoid tanh nn.functional.softplus nn.functional.leaky_relu
nn.functional.elu nn.functional.celu nn.functional.selu nn.functional.mish nn.functional.hardswish
nn.functional.hardsigmoid nn.functional.hardtanh nn.functional.relu6 nn.functional.logsigmoid nn.functional.glu
nn.functional.softsign nn.functional.tanhshrink nn.functional.threshold nn.functional.prelu
pow clamp clamp_min clamp_max where lerp addcmul addcdiv masked_fill tril triu abs neg minimum maximum fmin fmax round
floor ceil trunc frac sign sgn add sub mul div true_divide rsub remainder fmod floor_divide reciprocal square exp exp2
expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2 hypot
erf erfc eq ne lt le gt ge logical_and logical_or logical_not logical_xor
bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite copysign signbit nan_to_num xlogy positive deg2rad
sum mean prod amax amin aminmax min max argmax argmin var std var_mean std_mean norm linalg.vector_norm logsumexp any
all cumsum cumprod sort argsort msort topk count_nonzero nansum nanmean
nn.functional.layer_norm native_layer_norm nn.functional.rms_norm nn.functional.group_norm nn.functional.batch_norm
native_batch_norm nn.functional.instance_norm nn.functional.normalize
nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d
nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.upsample_nearest
softmax log_softmax nn.functional.softmin nn.functional.nll_loss nn.functional.cross_entropy nn.functional.mse_loss
nn.functional.l1_loss nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.binary_cross_entropy
nn.functional.binary_cross_entropy_with_logits nn.functional.kl_div nn.functional.cosine_similarity
nn.functional.embedding index_select gather scatter scatter_add index_add index_put index_fill index_copy masked_select
masked_scatter take take_along_dim cat stack hstack vstack split split_with_sizes chunk tensor_split roll flip repeat
repeat_interleave tile expand permute transpose reshape view narrow unbind unfold nn.functional.unfold nn.functional.pad
nn.functional.one_hot diag diagonal diag_embed select squeeze unsqueeze flatten movedim meshgrid __getitem__ clone
contiguous zeros_like ones_like full_like empty_like new_zeros arange linspace eye outer searchsorted bucketize
nn.functional.dropout bernoulli uniform normal randn randint multinomial randn_like rand_like randint_like exponential
nn.functional.linear mm bmm addmm baddbmm matmul einsum addmv mv dot addbmm
""".split()
RANDOM = set("""nn.functional.dropout bernoulli uniform normal randn randint multinomial randn_like rand_like
randint_like exponential empty_like""".split())
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SAMPLES = 12  # of an operator and a dtype, evenly over what OpInfo has


def moved(value: Any, device: str, dtype: torch.dtype | None = None, grad: bool = False) -> Any:
    """A sample's arguments on another device, floating tensors in another type."""
    if isinstance(value, torch.Tensor):
        to = value.detach().to(device)
        if dtype is not None and to.is_floating_point():
            to = to.to(dtype)
        return to.requires_grad_(grad and value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device, dtype, grad) for v in value)
    if isinstance(value, dict):
        return {k: moved(v, device, dtype, grad) for k, v in value.items()}
    if isinstance(value, torch.device):
        return torch.device(device)
    return dtype if dtype is not None and value in DTYPES else value


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_of(v)]
    return []


def run(op: Any, sample: Any, device: str, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Results, then the gradients of the inputs, those of the results being a ramp."""
    args = moved([sample.input, list(sample.args), sample.kwargs], device, dtype, grad=True)
    results = tensors_of(op(args[0], *args[1], **args[2]))
    roots = [r for r in results if r.requires_grad and r.is_floating_point()]
    leaves = [t for t in tensors_of(args) if t.requires_grad]
    if roots and leaves:
        ramps = [torch.linspace(0.5, 1.5, r.numel()).to(r.dtype).reshape(r.shape).to(device) for r in roots]
        results += [g for g in torch.autograd.grad(roots, leaves, ramps, allow_unused=True) if g is not None]
    return [r.detach() for r in results]


def excess(op: Any, sample: Any, got: list[torch.Tensor], dtype: torch.dtype) -> float:
    """The worst distance from float64's result, in units of what the same type's CPU kernel errs by and of the type's
    rounding of the largest magnitude."""
    exact, host = run(op, sample, "cpu", torch.float64), run(op, sample, "cpu")
    worst = 0.0
    for ours, right, near in zip(got, exact, host, strict=True):
        ours, near = ours.cpu().double().flatten(), near.double().flatten()
        right = right.double().flatten()
        if right.numel() == 0:
            continue
        finite = right.isfinite() & near.isfinite()
        if not torch.equal(ours[~finite].nan_to_num(7.0), near[~finite].nan_to_num(7.0)):
            return float("inf")
        if not finite.any():
            continue
        unit = (near - right)[finite].abs().max() + torch.finfo(dtype).eps * right[finite].abs().max()
        distance = (ours - right)[finite].abs().max()
        if not distance <= 8 * unit:  # a NaN is not
            return float("inf")
        worst = max(worst, float(distance / unit) if float(unit) else 0.0)
    return worst


def rows(device: str, names: list[str]) -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    if device == "cuda":
        let_fake_tensors_pass_for_cuda()
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode: Any = FakeTensorMode
    else:
        import step_oracle

        step_oracle.set_card("h100-sxm")
        mode = contextlib.nullcontext
    out: dict[str, Any] = {}
    for op in op_db:
        if op.name not in names:
            continue
        label = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cuda") or dtype not in op.dtypes:
                continue
            torch.manual_seed(0)
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd))
            step = max(1, len(samples) // SAMPLES)
            for index, sample in enumerate(samples[::step]):
                row: dict[str, Any] = {"dispatched": []}
                out[f"{label}/{str(dtype)[6:]}/{index}"] = row
                try:
                    with mode(allow_non_fake_inputs=True) if device == "cuda" else mode():
                        with Listing(row["dispatched"]):
                            got = run(op, sample, device)
                except Exception as error:  # the test decides which are refusals
                    row["error"] = [type(error).__name__, str(error)[:300]]
                    continue
                if device != "cuda" and op.name not in RANDOM:
                    try:
                        row["excess"] = excess(op, sample, got, dtype)
                    except Exception as error:
                        row["unchecked"] = f"{type(error).__name__}: {error}"[:200]
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    device, target, *names = sys.argv[1:]
    with open(target, "w") as file:
        json.dump(rows(device, names or OPERATORS), file)


if __name__ == "__main__":
    main()
