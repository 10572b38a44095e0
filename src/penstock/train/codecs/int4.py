"""int4: 15 levels between the largest absolute value of a block and its negative.

The sixteenth code is not used: with a level at zero, values that are much smaller than the largest
of their block are left out rather than sent as noise.
"""

import torch
from torch import Tensor

from penstock.train.codecs import scales
from penstock.train.codecs.codec import BLOCK

LEVELS = 7


class Int4:
    """Half a byte a value and a scale for each block; no value is off by more than half a step."""

    name, block, exact = "int4", BLOCK, False

    def sections(self, count: int) -> tuple[int, ...]:
        return count // 2, count // BLOCK * scales.SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        blocks = values.float().view(-1, BLOCK)
        scale = scales.round_up(blocks.abs().amax(1) / LEVELS)
        codes = (blocks * scales.inverse(scale)[:, None]).round_().clamp_(-LEVELS, LEVELS)
        low, high = (codes + LEVELS).to(torch.uint8).view(-1, 2).unbind(1)
        return torch.cat((low | (high << 4), scales.to_bytes(scale)))

    def decode(self, content: Tensor, count: int) -> Tensor:
        packed, scale = content[: count // 2], scales.from_bytes(content[count // 2 :])
        codes = torch.stack((packed & 15, packed >> 4), 1).float() - LEVELS
        return (codes.view(-1, BLOCK) * scale[:, None]).flatten()
