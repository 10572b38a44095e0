"""What the tokens of a rank may see of all ranks' keys, for FlexAttention on CUDA.

As `model/documents.py`, where queries and keys stand in another order than that of the sequence:
then the earliest and the latest place of each block of 128 say what it can see.

Shape suffixes as in `train/parallel/context.py`; q blocks of queries, n blocks of keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from penstock.model.documents import BLOCK, listed


def blocks(at_o: Tensor, at_k: Tensor, document_bs: Tensor | None) -> BlockMask:
    """`at_…` are places in the sequence; a token sees its own document's that are not later."""
    if document_bs is None:
        document_bs = torch.zeros(1, len(at_k), dtype=torch.int32, device=at_k.device)
    of_bo, of_bk = document_bs[:, at_o], document_bs[:, at_k]
    first_q, last_q = _ends(at_o.unsqueeze(0))
    first_n, last_n = _ends(at_k.unsqueeze(0))
    oldest_bq, newest_bq = _ends(of_bo)
    oldest_bn, newest_bn = _ends(of_bk)
    touches = (first_n.unsqueeze(1) <= last_q.unsqueeze(2)) & (
        newest_bn.unsqueeze(1) >= oldest_bq.unsqueeze(2)
    )
    whole = (last_n.unsqueeze(1) <= first_q.unsqueeze(2)) & (
        oldest_bn.unsqueeze(1) == newest_bq.unsqueeze(2)
    )
    return BlockMask.from_kv_blocks(
        *listed(touches & ~whole),
        *listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=_sees(at_o, at_k, of_bo, of_bk),
        seq_lengths=(len(at_o), len(at_k)),
    )


def _ends(x_bs: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of each block; the last one may be short."""
    left = -x_bs.shape[1] % BLOCK
    filled_bs = torch.cat((x_bs, x_bs[:, -1:].expand(-1, left)), 1)
    return filled_bs.unflatten(1, (-1, BLOCK)).aminmax(dim=2)


def _sees(
    at_o: Tensor, at_k: Tensor, of_bo: Tensor, of_bk: Tensor
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    each = len(of_bo) > 1  # else the same for all samples

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = b if each else b * 0
        return (at_o[q] >= at_k[k]) & (of_bo[row, q] == of_bk[row, k])

    return sees
