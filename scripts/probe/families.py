"""Vectors of sums, softmaxes, losses, indexing, generators and optimizers."""

from __future__ import annotations

import torch

from .case import Arrays, Case, NoCall, T, calls

aten = torch.ops.aten

# --- reductions -----------------------------------------------------------------------------------------------------

ORDERS = {"norm2": 2, "norm3": 3, "norm_half": 0.5}


@calls("reduce", "sum", "mean", *ORDERS)
def reduction(c: Case) -> Arrays:
    x, dims = c["x"].view(c.sizes), {"row": [1], "col": [0], "all": [0, 1]}[c.mode]
    if c.base in ORDERS:
        return {"y": torch.linalg.vector_norm(x, ORDERS[c.base], dim=dims, dtype=c.result)}
    return {"y": getattr(torch, c.base)(x, dim=dims, dtype=c.result)}


@calls("reduce", "cumsum", "cumprod")
def scan(c: Case) -> Arrays:
    return {"y": getattr(torch, c.base)(c["x"].view(c.sizes), 1 if c.mode == "inner" else 0)}


@calls("softmax", "softmax", "softmax_block", "log_softmax", "log_softmax_block")
def softmax(c: Case) -> Arrays:
    f = torch.log_softmax if c.base.startswith("log_") else torch.softmax
    return {"y": f(c["x"].view(c.sizes), 1, dtype=c.result)}


@calls("softmax", "softmax_bwd", "softmax_block_bwd", "log_softmax_bwd", "log_softmax_block_bwd")
def softmax_backward(c: Case) -> Arrays:
    if not c.base.startswith("log_"):
        raise NoCall("the kernel is given gradient times output, and the op multiplies itself")
    if c.result == torch.bfloat16:
        raise NoCall("torch's op has mixed types for float16 only")
    f, grad = aten._log_softmax_backward_data, c["grad"]
    return {"dx": f(grad.view(c.sizes), c["output"].view(c.sizes), 1, c.result or grad.dtype)}


# --- losses ---------------------------------------------------------------------------------------------------------


@calls("loss", "nll_loss", "nll2d")
def nll(c: Case) -> Arrays:
    n, classes, *places = c.sizes
    f = aten.nll_loss2d_forward if places else aten.nll_loss_forward
    x, target = c["x"].view(n, classes, *places, *[1][: len(places)]), c["target"].to(torch.int64)
    loss, weight = f(x, target.view(n, *x.shape[2:]), c.get("weight"), 1, -100)
    return {"loss": loss.view(1), "total_weight": weight.view(1)}


@calls("loss", "nll_loss_bwd")
def nll_backward(c: Case) -> Arrays:
    grad = c["grad_output"].view(())
    x = torch.zeros(c.sizes[:2], dtype=grad.dtype, device=grad.device)
    target, total = c["target"].to(torch.int64), c["total_weight"].view(())
    return {"grad_input": aten.nll_loss_backward(grad, x, target, None, 1, -100, total)}


@calls("loss", "nll2d_bwd")
def nll2d_backward(c: Case) -> Arrays:
    n, classes, places = c.sizes
    grad = c["grad"].view(())
    x = torch.zeros(n, classes, places, 1, dtype=grad.dtype, device=grad.device)
    given = (grad, x, c["target"].view(n, places, 1), c["weight"], 1, -100, c["total_weight"].view(()))
    return {"grad_x": aten.nll_loss2d_backward(*given)}


# --- indexing -------------------------------------------------------------------------------------------------------


@calls("indexing", "embedding_bwd_feature", "embedding_bwd_sorted")
def embedding_backward(c: Case) -> Arrays:
    rows, width, vocab = c.sizes[:3]
    padding = 3 if "feature" in c.base else -1
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms("sorted" in c.base)  # sorted indices, and no atomic sums
    try:
        grad = c["grad"].view(rows, width)
        return {"grad_weight": aten.embedding_dense_backward(grad, c["indices"], vocab, padding, False)}
    finally:
        torch.use_deterministic_algorithms(before)


@calls("indexing", "index_put_accumulate")
def index_put(c: Case) -> Arrays:
    rows, width, out = c.sizes[:3]
    dest, values = c["dest"].view(out, width), c["grad"].view(rows, width)
    return {"dest_out": dest.index_put_((c["indices"],), values, accumulate=True)}


# --- generators -----------------------------------------------------------------------------------------------------


@calls("random", "uniform", "bernoulli", "dropout_scalar", "dropout_vec4", "dropout_vec8")
def drawn(c: Case) -> Arrays:
    if "@" in c.shape or c.base.startswith("dropout"):
        raise NoCall("it stands for a card with few processors")
    state = torch.tensor([c.notes["philox_seed"], c.notes["philox_offset"]], dtype=torch.int64).view(torch.uint8)
    getattr(torch, c.device.type).set_rng_state(state)
    out = torch.empty(int(c.shape), dtype=c.types[0], device=c.device)
    if c.base == "uniform":
        return {"out": out.uniform_(c.notes["low"], c.notes["high"])}
    return {"out": out.bernoulli_(c.notes["p"])}


# --- optimizers -----------------------------------------------------------------------------------------------------


def grad_scale(c: Case) -> T | None:
    scale = c.get("grad_scale")
    return None if scale is None else scale.view(())


def updated(c: Case, letters: str) -> Arrays:
    return {f"{letter}{i}_out": t for letter in letters for i, t in enumerate(c.listed(letter))}


@calls("optimizer", "fused_adam", "fused_adamw")
def fused_adam(c: Case) -> Arrays:
    lr, beta1, beta2, decay, eps = c.notes["hyper"]
    f = torch._fused_adamw_ if c.base == "fused_adamw" else torch._fused_adam_
    f(
        *(c.listed(letter) for letter in "pgmv"),
        [],
        [s.view(()) for s in c.listed("step")],
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=decay,
        eps=eps,
        amsgrad=False,
        maximize="max" in c.mode,
        grad_scale=grad_scale(c),
        found_inf=None,
    )
    return updated(c, "pgmv")


@calls("optimizer", "fused_sgd", "fused_sgd_momentum")
def fused_sgd(c: Case) -> Arrays:
    buffers = c.listed("b")
    torch._fused_sgd_(
        c.listed("p"),
        c.listed("g"),
        buffers,
        weight_decay=0.01,
        momentum=0.9 if buffers else 0.0,
        lr=0.1,
        dampening=0.0 if c.mode == "nesterov" else 0.2,
        nesterov=c.mode == "nesterov",
        maximize=False,
        is_first_step=c.mode == "first",
    )
    return updated(c, "pgb")


@calls("optimizer", "fused_adagrad")
def fused_adagrad(c: Case) -> Arrays:
    torch._fused_adagrad_(
        *(c.listed(letter) for letter in "pgs"),
        [s.view(()) for s in c.listed("step")],
        lr=0.01,
        lr_decay=0.0 if c.mode == "plain" else 0.001,
        weight_decay=0.1 if c.mode == "decay" else 0.0,
        eps=1e-10,
        maximize=c.mode == "max",
        grad_scale=grad_scale(c),
        found_inf=None,
    )
    return updated(c, "pgs")
