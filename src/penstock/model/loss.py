"""Cross-entropy of one chunk of tokens at a time, so that the logits of a batch never exist at
once.

With a vocabulary of 128,256 the logits of 32,768 tokens are 8 GiB in bf16, and 16 GiB more for an
fp32 copy. The forward pass turns the logits of a chunk into their gradient in place, and multiplies
it out to the gradients of the hidden states and of the head. The backward pass only scales those by
the incoming gradient (the loss is a sum; the caller divides it).

Shape suffixes: b batch, s sequence, d hidden, v vocab, n tokens of a chunk or of the batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits of a chunk take 1 GiB in bf16; a larger one is no faster.
CHUNK_ELEMENTS = 2**29
AT_ONCE = 2**19  # logits in full precision, where there is no kernel
# (logits_nv, targets_n, counted_n) -> losses_n; the logits become the gradient of their sum.
LossRule = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def summed_cross_entropy(
    x_bsd: Tensor,
    head_vd: Tensor,
    targets_bs: Tensor,
    counted_bs: Tensor | None = None,
    rule: LossRule | None = None,
    words: int | None = None,
) -> Tensor:
    """Return the loss summed over the targets that count (None: all of them), in fp32 or wider.

    `rule` replaces `to_gradients_` if other ranks hold other columns of the logits, or for a user's
    loss. `words` is then the largest number of columns on any rank: all ranks must cut the same
    chunks.
    """
    wanted = torch.is_grad_enabled() and (x_bsd.requires_grad or head_vd.requires_grad)
    counted_n = None if counted_bs is None else counted_bs.flatten()
    x_nd = x_bsd.flatten(0, -2)
    head_vd, targets_n = head_vd.to(x_bsd.dtype), targets_bs.flatten()
    rows = max(128, CHUNK_ELEMENTS // (words or len(head_vd)) // 128 * 128)
    return _ChunkedCrossEntropy.apply(
        x_nd, head_vd, targets_n, counted_n, wanted, rows, rule or to_gradients_
    )


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Autograd function that computes the gradients in its forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        head_vd: Tensor,
        targets_n: Tensor,
        counted_n: Tensor | None,
        wanted: bool,
        rows: int,
        rule: LossRule,
    ) -> Tensor:
        wide = torch.promote_types(x_nd.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=x_nd.device)
        dx_nd = torch.empty_like(x_nd) if wanted and ctx.needs_input_grad[0] else None
        dhead_vd = None
        for at in range(0, len(x_nd), rows):
            part = slice(at, at + rows)
            logits_nv = x_nd[part] @ head_vd.T
            counted_part = None if counted_n is None else counted_n[part]
            loss += rule(logits_nv, targets_n[part], counted_part).sum()
            if dx_nd is not None:
                torch.mm(logits_nv, head_vd, out=dx_nd[part])
            if wanted and ctx.needs_input_grad[1]:
                # Chunks are summed in fp32: in bf16 each addition would round.
                dhead_vd = matmul_onto(logits_nv.T, x_nd[part], wide, dhead_vd)
            del logits_nv  # before the next chunk's are made
        ctx.save_for_backward(dx_nd, dhead_vd)
        ctx.dtype = x_nd.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx_nd, dhead_vd = (
            None if saved is None else scale_to(saved, dloss, ctx.dtype)
            for saved in ctx.saved_tensors
        )
        return dx_nd, dhead_vd, None, None, None, None, None


def to_gradients_(logits_nv: Tensor, targets_n: Tensor, counted_n: Tensor | None) -> Tensor:
    """Return the loss of each row; `logits_nv` becomes the gradient of their sum, in place."""
    if logits_nv.is_cuda and logits_nv.dtype != torch.float64:
        from penstock.model.kernels import loss as kernel  # needs Triton: only CUDA builds have it

        return kernel.to_gradients_(logits_nv, targets_n, counted_n)
    weight_n = torch.ones_like(targets_n) if counted_n is None else counted_n
    rows = max(1, AT_ONCE // logits_nv.shape[1])
    parts = zip(*(x.split(rows) for x in (logits_nv, targets_n, weight_n)), strict=True)
    return torch.cat([_to_gradients_of_few_rows(*part) for part in parts])


def _to_gradients_of_few_rows(logits_nv: Tensor, targets_n: Tensor, weight_n: Tensor) -> Tensor:
    """Do this for a few rows, whose copy in full precision stays in a CPU's cache."""
    wide_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
    at_n1 = targets_n.unsqueeze(1)
    hit_n1, most_n1 = wide_nv.gather(1, at_n1), wide_nv.amax(1, keepdim=True)
    power_nv = wide_nv.sub_(most_n1).exp_()
    sum_n1 = power_nv.sum(1, keepdim=True)
    gradient_nv = power_nv.mul_(weight_n.unsqueeze(1) / sum_n1)
    gradient_nv.scatter_add_(1, at_n1, -weight_n.unsqueeze(1).to(gradient_nv.dtype))
    if gradient_nv is not logits_nv:
        logits_nv.copy_(gradient_nv)
    return (sum_n1.log() + most_n1 - hit_n1).squeeze(1) * weight_n


def matmul_onto(a: Tensor, b: Tensor, dtype: torch.dtype, onto: Tensor | None) -> Tensor:
    """Return a @ b in a `dtype` that may be wider, added to `onto`."""
    if onto is None:
        return torch.mm(a, b, out_dtype=dtype) if _gives_wide_sums(a, dtype) else (a @ b).to(dtype)
    if a.dtype == dtype:
        return onto.addmm_(a, b)
    if _gives_wide_sums(a, dtype):
        return torch.addmm(onto, a, b, out_dtype=dtype, out=onto)
    return onto.add_(a @ b)


def _gives_wide_sums(a: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a matmul can return its sums before they are rounded: on CUDA only."""
    return a.is_cuda and a.dtype != dtype


def scale_to(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x × factor in `dtype`."""
    if x.is_cuda and factor.dtype != torch.float64:
        from penstock.model.kernels import loss as kernel

        return kernel.scale_to(x, factor, dtype)
    return (x.to(factor.dtype) * factor).to(dtype)
