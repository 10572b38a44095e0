"""Cross-entropy of a chunk of tokens at a time: all logits of a batch never exist at once.

At 128,256 words the logits of 32,768 tokens are 8 GiB in bf16, and 16 more for an fp32 copy. The
gradient of a chunk's logits follows from them at once, so it is made in the forward pass, in their
place, and multiplied out to the gradients of the hidden states and of the head. The backward pass
only scales those by the gradient that arrives (the loss is a sum; the caller divides it).

Shape suffixes: b batch, s sequence, d hidden, v vocab, n tokens of a chunk or of the batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits of a chunk take 1 GiB in bf16; larger matmuls are no faster.
CHUNK_ELEMENTS = 2**29
# (logits_nv, targets_n, counted_n) -> losses_n; the logits become the gradient of their sum.
Rule = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def summed_cross_entropy(
    x_bsd: Tensor,
    head_vd: Tensor,
    targets_bs: Tensor,
    counted_bs: Tensor | None = None,
    rule: Rule | None = None,
) -> Tensor:
    """The sum over the targets that count (None: all of them), in fp32 or wider.

    `rule` stands for `to_gradients_` where other ranks have logits of the same tokens.
    """
    wanted = torch.is_grad_enabled() and (x_bsd.requires_grad or head_vd.requires_grad)
    counted_n = None if counted_bs is None else counted_bs.flatten()
    x_nd = x_bsd.flatten(0, -2)
    head_vd, targets_n = head_vd.to(x_bsd.dtype), targets_bs.flatten()
    return _Summed.apply(x_nd, head_vd, targets_n, counted_n, wanted, rule or to_gradients_)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        head_vd: Tensor,
        targets_n: Tensor,
        counted_n: Tensor | None,
        wanted: bool,
        rule: Rule,
    ) -> Tensor:
        wide = torch.promote_types(x_nd.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=x_nd.device)
        dx_nd = torch.empty_like(x_nd) if wanted and ctx.needs_input_grad[0] else None
        # Summed over chunks in fp32: in bf16 each addition would round.
        dhead_vd = (
            torch.zeros_like(head_vd, dtype=wide) if wanted and ctx.needs_input_grad[1] else None
        )
        rows = max(128, CHUNK_ELEMENTS // len(head_vd) // 128 * 128)
        for at in range(0, len(x_nd), rows):
            part = slice(at, at + rows)
            logits_nv = x_nd[part] @ head_vd.T
            counted = None if counted_n is None else counted_n[part]
            losses_n = rule(logits_nv, targets_n[part], counted)
            loss += losses_n.sum()
            if dx_nd is not None:
                torch.mm(logits_nv, head_vd, out=dx_nd[part])
            if dhead_vd is not None:
                add_product_(dhead_vd, logits_nv.T, x_nd[part])
            del logits_nv  # before the next chunk's are made
        ctx.save_for_backward(dx_nd, dhead_vd)
        ctx.dtype = head_vd.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx_nd, dhead_vd = ctx.saved_tensors
        return scaled(dx_nd, dloss, ctx.dtype), scaled(dhead_vd, dloss, ctx.dtype), None, None, None


def scaled(x: Tensor | None, factor: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The product in `dtype`, in one pass."""
    return None if x is None else torch.mul(x, factor, out=torch.empty_like(x, dtype=dtype))


def to_gradients_(logits_nv: Tensor, targets_n: Tensor, counted_n: Tensor | None) -> Tensor:
    """The loss of each row; `logits_nv` becomes the gradient of their sum, in place."""
    if logits_nv.is_cuda and logits_nv.dtype != torch.float64:
        from penstock.model import loss_kernel  # needs Triton, which only CUDA builds have

        return loss_kernel.to_gradients_(logits_nv, targets_n, counted_n)
    wide_nv = logits_nv.to(torch.promote_types(logits_nv.dtype, torch.float32))
    log_sum_n = wide_nv.logsumexp(1)
    at_n1 = targets_n.unsqueeze(1)
    losses_n = log_sum_n - wide_nv.gather(1, at_n1).squeeze(1)
    gradient_nv = wide_nv.sub_(log_sum_n.unsqueeze(1)).exp_()
    gradient_nv.scatter_add_(1, at_n1, torch.full_like(at_n1, -1, dtype=wide_nv.dtype))
    if counted_n is not None:
        losses_n = losses_n * counted_n
        gradient_nv *= counted_n.unsqueeze(1)
    if gradient_nv is not logits_nv:
        logits_nv.copy_(gradient_nv)
    return losses_n


def add_product_(sum_vd: Tensor, a_vn: Tensor, b_nd: Tensor) -> None:
    """sum += a @ b, where the sum may be wider than the factors."""
    if sum_vd.dtype == a_vn.dtype:
        sum_vd.addmm_(a_vn, b_nd)
    elif sum_vd.is_cuda:
        torch.addmm(sum_vd, a_vn, b_nd, out_dtype=sum_vd.dtype, out=sum_vd)
    else:
        sum_vd += a_vn @ b_nd
