"""The block mask of context parallel attention, for FlexAttention on CUDA.

`model/document_attention.py` makes the same mask for whole sequences. Here queries and keys are in
the order of the ranks, not of the sequence, so the smallest and the largest position in each block
of 128 tokens decide what the block can see.

Shape suffixes as in `train/parallel/context.py`; q blocks of queries, n blocks of keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from penstock.model.document_attention import BLOCK, list_blocks


def context_block_mask(
    at_o: Tensor, at_k: Tensor, document_bs: Tensor | None, window: int = 0
) -> BlockMask:
    """Return the mask by which a token sees earlier tokens of its own document, or the last
    `window` of them; `at_…` are positions in the sequence.
    """
    if document_bs is None:
        document_bs = torch.zeros(1, len(at_k), dtype=torch.int32, device=at_k.device)
    of_bo, of_bk = document_bs[:, at_o], document_bs[:, at_k]
    first_q, last_q = _block_ranges(at_o.unsqueeze(0))
    first_n, last_n = _block_ranges(at_k.unsqueeze(0))
    oldest_bq, newest_bq = _block_ranges(of_bo)
    oldest_bn, newest_bn = _block_ranges(of_bk)
    touches = (first_n.unsqueeze(1) <= last_q.unsqueeze(2)) & (
        newest_bn.unsqueeze(1) >= oldest_bq.unsqueeze(2)
    )
    whole = (last_n.unsqueeze(1) <= first_q.unsqueeze(2)) & (
        oldest_bn.unsqueeze(1) == newest_bq.unsqueeze(2)
    )
    if window:
        touches = touches & (first_q.unsqueeze(2) - last_n.unsqueeze(1) < window)
        whole = whole & (last_q.unsqueeze(2) - first_n.unsqueeze(1) < window)
    return BlockMask.from_kv_blocks(
        *list_blocks(touches & ~whole),
        *list_blocks(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_function(at_o, at_k, of_bo, of_bk, window),
        seq_lengths=(len(at_o), len(at_k)),
    )


def _block_ranges(x_bs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each block; the last block may be short."""
    left = -x_bs.shape[1] % BLOCK
    filled_bs = torch.cat((x_bs, x_bs[:, -1:].expand(-1, left)), 1)
    return filled_bs.unflatten(1, (-1, BLOCK)).aminmax(dim=2)


def _mask_function(
    at_o: Tensor, at_k: Tensor, of_bo: Tensor, of_bk: Tensor, window: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    each = len(of_bo) > 1  # else the same for all samples

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = b if each else b * 0
        return (at_o[q] >= at_k[k]) & (of_bo[row, q] == of_bk[row, k])

    def sees_near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees(b, h, q, k) & (at_o[q] - at_k[k] < window)

    return sees_near if window else sees
