"""int8: 255 levels between the largest absolute value of a block and its negative."""

import torch
from torch import Tensor

from penstock.train.codecs import scales
from penstock.train.codecs.codec import BLOCK

LEVELS = 127


class Int8:
    """One byte a value and a scale for each block; no value is off by more than half a step."""

    name, block, exact = "int8", BLOCK, False

    def sections(self, count: int) -> tuple[int, ...]:
        return count, count // BLOCK * scales.SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        blocks = values.float().view(-1, BLOCK)
        scale = scales.round_up(blocks.abs().amax(1) / LEVELS)
        codes = (blocks * scales.inverse(scale)[:, None]).round_().clamp_(-LEVELS, LEVELS)
        return torch.cat((codes.to(torch.int8).view(torch.uint8).flatten(), scales.to_bytes(scale)))

    def decode(self, content: Tensor, count: int) -> Tensor:
        codes = content[:count].view(torch.int8).view(-1, BLOCK)
        return (codes * scales.from_bytes(content[count:])[:, None]).flatten()
