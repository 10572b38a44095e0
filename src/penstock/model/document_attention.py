"""Attention inside documents on CUDA, by FlexAttention: blocks of 128 × 128 tokens that hold
nothing to see are skipped.

Shape suffixes: b batch, s sequence, h heads, k kv heads, e head width, n blocks of a sequence.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

BLOCK = 128


def document_block_mask(starts_bs: Tensor) -> BlockMask:
    """A token sees those of its own document that are not later.

    Documents are numbered in their order, so that the first and the last token of a block say which
    of them it holds: the square of tokens that torch would make and scan is not needed.
    """
    document_bs = starts_bs.cumsum(1, dtype=torch.int32)
    sequence = document_bs.shape[1]
    count = -(-sequence // BLOCK)
    first_bn = document_bs[:, ::BLOCK]
    ends_n = torch.arange(1, count + 1, device=starts_bs.device) * BLOCK - 1
    last_bn = document_bs[:, ends_n.clamp(max=sequence - 1)]
    earlier_nn = torch.ones(count, count, dtype=torch.bool, device=starts_bs.device).tril(-1)
    touches_bnn = last_bn.unsqueeze(1) >= first_bn.unsqueeze(2)
    # One document from the first key to the last query: all of it is seen, nothing is looked up.
    whole_bnn = earlier_nn & (first_bn.unsqueeze(1) == last_bn.unsqueeze(2))
    part_bnn = touches_bnn & ~earlier_nn.T & ~whole_bnn
    return BlockMask.from_kv_blocks(
        *list_blocks(part_bnn),
        *list_blocks(whole_bnn),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_function(document_bs),
        seq_lengths=(sequence, sequence),
    )


def list_blocks(here_bnn: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row there are, and their columns first in a list; for all heads."""
    columns = here_bnn.int().argsort(dim=-1, descending=True, stable=True)
    return here_bnn.sum(-1, dtype=torch.int32).unsqueeze(1), columns.int().unsqueeze(1)


def _mask_function(document_bs: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document_bs[b, q] == document_bs[b, k])

    return sees


def is_supported(q_bhse: Tensor) -> bool:
    """Its kernels have no fp64, and want heads of 16 and more."""
    return q_bhse.dtype != torch.float64 and q_bhse.shape[-1] >= 16


def dense_mask(mask: BlockMask, q_bhse: Tensor) -> Tensor:
    """The same as booleans of rows and columns for each sample."""
    rows, columns = mask.seq_lengths
    return create_mask(mask.mask_mod, len(q_bhse), 1, rows, columns, q_bhse.device).squeeze(1)


def flex_attend(q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: BlockMask) -> Tensor:
    run = flex_attention if torch.compiler.is_compiling() else _compiled()
    grouped = q_bhse.shape[1] != k_bkse.shape[1]
    return run(q_bhse, k_bkse, v_bkse, block_mask=mask, enable_gqa=grouped)


@cache
def _compiled() -> Callable[..., Tensor]:
    """Uncompiled, it would make all scores."""
    return torch.compile(flex_attention)
