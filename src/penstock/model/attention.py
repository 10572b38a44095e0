"""What a token may see, and attention over it. A layout that cuts sequences replaces both parts."""

from typing import TYPE_CHECKING, TypeAlias, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from penstock.catalog.shapes import ModelShape
from penstock.model.rotary import places, rotation

if TYPE_CHECKING:  # slow to import, and a CPU has no use for it
    from torch.nn.attention.flex_attention import BlockMask

Mask: TypeAlias = Union[Tensor, "BlockMask", None]  # None: every earlier token

# On an H200 cuDNN does 437 TFLOP/s forward and 382 backward where Flash does 285 and 241 (32 heads
# of 64, 8 of keys). torch takes the first of these that can do what is asked.
FASTEST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def look(
    sequence: int, starts_bs: Tensor | None, shape: ModelShape, device: torch.device
) -> tuple[Tensor, Mask]:
    """The turn of each token's queries and keys, and what the token may see."""
    if starts_bs is None:
        return rotation(torch.arange(sequence, device=device), shape), None
    turn = rotation(places(starts_bs), shape)
    if not starts_bs.is_cuda:
        return turn, same_document(starts_bs)
    from penstock.model.documents import blocks

    return turn, blocks(starts_bs)


def same_document(starts_bs: Tensor) -> Tensor:
    """Whether the token of a row may see that of a column: not a later one, not another document's.

    A square of booleans for each sample; `documents.blocks` says the same in less.
    """
    document_bs = starts_bs.cumsum(1)
    same_bss = document_bs.unsqueeze(2) == document_bs.unsqueeze(1)
    return same_bss.tril()


def attend(q_bshe: Tensor, k_bske: Tensor, v_bske: Tensor, mask: Mask) -> Tensor:
    """Causal attention with grouped keys and values, [b, s, h, e]."""
    q_bhse, k_bkse, v_bkse = (x.transpose(1, 2) for x in (q_bshe, k_bske, v_bske))
    if mask is not None and not isinstance(mask, Tensor):
        from penstock.model import documents

        if documents.can(q_bhse):
            return documents.attend(q_bhse, k_bkse, v_bkse, mask).transpose(1, 2)
        mask = documents.square(mask, q_bhse)
    if not q_bhse.is_cuda:
        return _scaled(q_bhse, k_bkse, v_bkse, mask).transpose(1, 2)
    with sdpa_kernel(FASTEST, set_priority=True):
        return _scaled(q_bhse, k_bkse, v_bkse, mask).transpose(1, 2)


def _scaled(q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(
        q_bhse,
        k_bkse,
        v_bkse,
        attn_mask=None if mask is None else mask.unsqueeze(1),
        is_causal=mask is None,
        enable_gqa=q_bhse.shape[1] != k_bkse.shape[1],
    )
