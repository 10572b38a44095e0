"""Moving rows to where they are needed and back, the same way in every run.

torch's own backward of an index adds with atomics or sorts, since an index may repeat. Here the way
back is known: it is a gather by the inverse order, which is faster and has one result only.

Shape suffixes: t tokens, k visits of a token, n = t × k rows in a new order, d width.
"""

from typing import Any

import torch
from torch import Tensor


def inverse_order(order_n: Tensor) -> Tensor:
    """Where each row went: `x[order][inverse(order)]` is x."""
    at_n = torch.arange(len(order_n), device=order_n.device)
    return torch.empty_like(order_n).scatter_(0, order_n, at_n)


class ReorderRows(torch.autograd.Function):
    """x[order]; `back` is the inverse of `order`."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, order_n: Tensor, back_n: Tensor) -> Tensor:
        ctx.save_for_backward(back_n)
        return x_nd[order_n]

    @staticmethod
    def backward(ctx: Any, grad_nd: Tensor) -> tuple[Tensor, None, None]:
        (back_n,) = ctx.saved_tensors
        return grad_nd[back_n], None, None


class RepeatRows(torch.autograd.Function):
    """Each row k times, then reordered; its gradient is the sum of those of its k copies."""

    @staticmethod
    def forward(ctx: Any, x_td: Tensor, k: int, order_n: Tensor, back_n: Tensor) -> Tensor:
        ctx.save_for_backward(back_n)
        ctx.k = k
        return x_td[order_n // k]

    @staticmethod
    def backward(ctx: Any, grad_nd: Tensor) -> tuple[Tensor, None, None, None]:
        (back_n,) = ctx.saved_tensors
        return grad_nd[back_n].unflatten(0, (-1, ctx.k)).sum(1), None, None, None
