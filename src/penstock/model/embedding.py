"""The gradient of an embedding table in one pass: each row is the sum over the tokens of its word.

torch's own sorts the words too, and then takes two passes and fills the table with zeros before.
Sums are in fp32 and in the order of the tokens, so the same batch gives the same bits.

Shape suffixes: n tokens of the batch, v words, d hidden.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.model.kernels import embedding as kernel


def embed_on_gpu(table_vd: Tensor, tokens_bs: Tensor) -> Tensor:
    """Look up the rows of the tokens."""
    return _Embedding.apply(table_vd, tokens_bs)


class _Embedding(torch.autograd.Function):
    """Autograd function of the rows of a table."""

    @staticmethod
    def forward(ctx: Any, table_vd: Tensor, tokens_bs: Tensor) -> Tensor:
        ctx.save_for_backward(tokens_bs)
        ctx.words = len(table_vd)
        return F.embedding(tokens_bs, table_vd)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_bsd: Tensor) -> tuple[Tensor, None]:
        (tokens_bs,) = ctx.saved_tensors
        return kernel.table_gradient(dx_bsd, tokens_bs, ctx.words), None
