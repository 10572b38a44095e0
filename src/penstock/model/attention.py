"""What a token may see, and attention over it. A layout that cuts sequences replaces both parts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.catalog.shapes import ModelShape
from penstock.model.rotary import places, rotation

Mask = Tensor | None  # None: every earlier token


def look(
    sequence: int, starts_bs: Tensor | None, shape: ModelShape, device: torch.device
) -> tuple[Tensor, Mask]:
    """The turn of each token's queries and keys, and what the token may see."""
    if starts_bs is None:
        return rotation(torch.arange(sequence, device=device), shape), None
    return rotation(places(starts_bs), shape), same_document(starts_bs)


def same_document(starts_bs: Tensor) -> Tensor:
    """Whether the token of a row may see that of a column: not a later one, not another document's.

    A square of booleans for each sample: what a kernel that knows documents would not need.
    """
    document_bs = starts_bs.cumsum(1)
    same_bss = document_bs.unsqueeze(2) == document_bs.unsqueeze(1)
    return same_bss.tril()


def attend(q_bshe: Tensor, k_bske: Tensor, v_bske: Tensor, mask: Mask) -> Tensor:
    """Causal attention with grouped keys and values, [b, s, h, e]."""
    out_bhse = F.scaled_dot_product_attention(
        q_bshe.transpose(1, 2),
        k_bske.transpose(1, 2),
        v_bske.transpose(1, 2),
        attn_mask=None if mask is None else mask.unsqueeze(1),
        is_causal=mask is None,
        enable_gqa=q_bshe.shape[2] != k_bske.shape[2],
    )
    return out_bhse.transpose(1, 2)
