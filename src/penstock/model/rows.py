"""Moving rows to another order and back, deterministically.

torch's own backward of an index adds with atomics or sorts, since an index may repeat. Here the
inverse order is known: the backward pass is a gather by it, which is faster and always gives the
same bits.

Shape suffixes: t tokens, k copies of a token, n = t × k rows in a new order, d width.
"""

from typing import Any

import torch
from torch import Tensor


def inverse_order(order_n: Tensor) -> Tensor:
    """Return where each row went: `x[order][inverse_order(order)]` is x."""
    at_n = torch.arange(len(order_n), device=order_n.device)
    return torch.empty_like(order_n).scatter_(0, order_n, at_n)


class ReorderRows(torch.autograd.Function):
    """Rows in a new order, x[order]; `back` is the inverse of `order`."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, order_n: Tensor, back_n: Tensor) -> Tensor:
        ctx.save_for_backward(back_n)
        return x_nd[order_n]

    @staticmethod
    def backward(ctx: Any, grad_nd: Tensor) -> tuple[Tensor, None, None]:
        (back_n,) = ctx.saved_tensors
        return grad_nd[back_n], None, None


class RepeatRows(torch.autograd.Function):
    """Each row k times, in a new order; its gradient is the sum over its k copies."""

    @staticmethod
    def forward(ctx: Any, x_td: Tensor, k: int, order_n: Tensor, back_n: Tensor) -> Tensor:
        ctx.save_for_backward(back_n)
        ctx.k = k
        return x_td[order_n // k]

    @staticmethod
    def backward(ctx: Any, grad_nd: Tensor) -> tuple[Tensor, None, None, None]:
        (back_n,) = ctx.saved_tensors
        return grad_nd[back_n].unflatten(0, (-1, ctx.k)).sum(1), None, None, None
