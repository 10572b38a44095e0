"""Scales of blocks: 16 bits each, rounded so that no value lies beyond the largest code."""

import torch
from torch import Tensor

SCALE_BYTES = 2
LEAST = 2.0**-126  # the smallest number that is not denormal


def round_up(scales: Tensor) -> Tensor:
    """Round positive fp32 scales to bf16, never down; 0, NaN and infinity stay what they are.

    A scale without an inverse becomes 0: a block of such small values is left out.
    """
    scales = torch.where(scales < LEAST, 0.0, scales)
    narrow = scales.bfloat16()
    bits = narrow.view(torch.int16)
    # Positive bf16 numbers are ordered as their bits are: one more is the next number. It must not
    # become infinite, so the largest stays.
    short = (narrow.float() < scales) & (bits < 0x7F7F)
    return torch.where(short, bits + 1, bits).view(torch.bfloat16)


def to_bytes(scales: Tensor) -> Tensor:
    """Return bf16 scales as bytes."""
    return scales.contiguous().view(torch.uint8)


def from_bytes(content: Tensor) -> Tensor:
    """Return the scales in fp32."""
    # A copy: the bytes need not lie at an even address.
    return content.clone().view(torch.bfloat16).float()


def inverse(scales: Tensor) -> Tensor:
    """Return 1 / scale in fp32; 0 for a block of zeros."""
    wide = scales.float()
    return torch.where(wide > 0, 1 / wide, torch.zeros_like(wide))
