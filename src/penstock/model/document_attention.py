"""Attention inside documents on CUDA, by FlexAttention: it skips blocks of 128 × 128 tokens in
which nothing is visible.

Shape suffixes: b batch, s sequence, h heads, k kv heads, e head width, n blocks of a sequence.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

BLOCK = 128


def document_block_mask(starts_bs: Tensor, window: int = 0) -> BlockMask:
    """Return the mask by which a token sees the earlier tokens of its own document, or the last
    `window` of them.

    Documents are numbered in their order, so the first and the last token of a block tell which
    documents it holds. torch would build the square of all tokens and scan it.
    """
    document_bs = starts_bs.cumsum(1, dtype=torch.int32)
    sequence = document_bs.shape[1]
    count = -(-sequence // BLOCK)
    first_bn = document_bs[:, ::BLOCK]
    ends_n = torch.arange(1, count + 1, device=starts_bs.device) * BLOCK - 1
    ends_n = ends_n.clamp(max=sequence - 1)
    last_bn = document_bs[:, ends_n]
    earlier_nn = torch.ones(count, count, dtype=torch.bool, device=starts_bs.device).tril(-1)
    touches_bnn = last_bn.unsqueeze(1) >= first_bn.unsqueeze(2)
    # One document from the first key to the last query: all of it is seen, nothing is looked up.
    whole_bnn = earlier_nn & (first_bn.unsqueeze(1) == last_bn.unsqueeze(2))
    if window:
        begins_n = torch.arange(count, device=starts_bs.device) * BLOCK
        touches_bnn = touches_bnn & (begins_n.unsqueeze(1) - ends_n < window)
        whole_bnn = whole_bnn & (ends_n.unsqueeze(1) - begins_n < window)
    part_bnn = touches_bnn & ~earlier_nn.T & ~whole_bnn
    return BlockMask.from_kv_blocks(
        *list_blocks(part_bnn),
        *list_blocks(whole_bnn),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_function(document_bs, window),
        seq_lengths=(sequence, sequence),
    )


def list_blocks(here_bnn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of marked blocks in each row and their columns, in the form that BlockMask
    takes; one entry for all heads.
    """
    columns = here_bnn.int().argsort(dim=-1, descending=True, stable=True)
    return here_bnn.sum(-1, dtype=torch.int32).unsqueeze(1), columns.int().unsqueeze(1)


def _mask_function(
    document_bs: Tensor, window: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    each = len(document_bs) > 1  # else the same for all samples

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = b if each else b * 0
        return (q >= k) & (document_bs[row, q] == document_bs[row, k])

    def sees_near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees(b, h, q, k) & (q - k < window)

    return sees_near if window else sees


def is_supported(q_bhse: Tensor) -> bool:
    """Return whether FlexAttention has a kernel: not for fp64, nor for heads narrower than 16, nor
    for heads of more than 512 bytes (192 channels in fp32), for which an H200 has too little shared
    memory.
    """
    width = q_bhse.shape[-1]
    return q_bhse.dtype != torch.float64 and width >= 16 and width * q_bhse.element_size() <= 512


def dense_mask(mask: BlockMask, q_bhse: Tensor) -> Tensor:
    """Return the same mask as booleans, rows by columns for each sample."""
    rows, columns = mask.seq_lengths
    return create_mask(mask.mask_mod, len(q_bhse), 1, rows, columns, q_bhse.device).squeeze(1)


def flex_attend(
    q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: BlockMask, scale: float | None = None
) -> Tensor:
    """Compute attention under a block mask."""
    run = flex_attention if torch.compiler.is_compiling() else _compiled()
    grouped = q_bhse.shape[1] != k_bkse.shape[1]
    return run(q_bhse, k_bkse, v_bkse, block_mask=mask, scale=scale, enable_gqa=grouped)


def flex_attend_with_sums(
    q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: BlockMask, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention, and the logarithm of each row's sum of exponents, with gradients."""
    run = flex_attention if torch.compiler.is_compiling() else _compiled()
    grouped = q_bhse.shape[1] != k_bkse.shape[1]
    return run(
        q_bhse, k_bkse, v_bkse, block_mask=mask, scale=scale, enable_gqa=grouped, return_lse=True
    )


@cache
def _compiled() -> Callable[..., Any]:
    """Compile FlexAttention: without that it would compute and store all scores."""
    return torch.compile(flex_attention)
