"""Cross-entropy of each token of a batch, whose sums are minus the log-probabilities of sequences.

`model/loss.py` gives one sum, whose gradient it computes in the forward pass. Here every token gets
a gradient of its own later, so the logits of a chunk are computed again in the backward pass: one
more product with the head, and still never all logits at once.

Shape suffixes: b batch, s sequence, d hidden, v vocab, n tokens of a chunk or of the batch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.model.loss import CHUNK_ELEMENTS, matmul_onto, to_gradients_


def token_cross_entropy(
    x_bsd: Tensor, head_vd: Tensor, targets_bs: Tensor, counted_bs: Tensor | None = None
) -> Tensor:
    """Return the loss of each target, 0 where it does not count, in fp32 or wider."""
    counted_n = (torch.ones_like(targets_bs) if counted_bs is None else counted_bs).flatten()
    rows = max(128, CHUNK_ELEMENTS // len(head_vd) // 128 * 128)
    losses_n = _ChunkedTokenLosses.apply(
        x_bsd.flatten(0, -2), head_vd.to(x_bsd.dtype), targets_bs.flatten(), counted_n, rows
    )
    return losses_n.view(targets_bs.shape)


class _ChunkedTokenLosses(torch.autograd.Function):
    """Autograd function that computes the logits of a chunk in both passes."""

    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, head_vd: Tensor, targets_n: Tensor, counted_n: Tensor, rows: int
    ) -> Tensor:
        ctx.save_for_backward(x_nd, head_vd, targets_n, counted_n)
        ctx.rows = rows
        wide = torch.promote_types(x_nd.dtype, torch.float32)
        losses_n = torch.empty(len(x_nd), dtype=wide, device=x_nd.device)
        for at in range(0, len(x_nd), rows):
            part = slice(at, at + rows)
            logits_nv = x_nd[part] @ head_vd.T
            losses_n[part] = to_gradients_(logits_nv, targets_n[part], counted_n[part])
            del logits_nv  # before the next chunk's are made
        return losses_n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses_n: Tensor) -> tuple[Tensor | None, ...]:
        x_nd, head_vd, targets_n, counted_n = ctx.saved_tensors
        wide = torch.promote_types(x_nd.dtype, torch.float32)
        dx_nd = torch.empty_like(x_nd) if ctx.needs_input_grad[0] else None
        dhead_vd = None
        for at in range(0, len(x_nd), ctx.rows):
            part = slice(at, at + ctx.rows)
            logits_nv = x_nd[part] @ head_vd.T
            to_gradients_(logits_nv, targets_n[part], counted_n[part])
            logits_nv *= dlosses_n[part].unsqueeze(1).to(logits_nv.dtype)
            if dx_nd is not None:
                torch.mm(logits_nv, head_vd, out=dx_nd[part])
            if ctx.needs_input_grad[1]:
                dhead_vd = matmul_onto(logits_nv.T, x_nd[part], wide, dhead_vd)
            del logits_nv
        return dx_nd, None if dhead_vd is None else dhead_vd.to(head_vd.dtype), None, None, None
