"""int2: a sign and one bit of size for each value: -3, -1, 1 or 3 times the scale of its block.

The scale is not the largest value: of 128 normal values three levels in four would go to the rarest
of them. Values are first sorted by a scale that suits normal ones (half of their root mean square),
and then the scale is what fits the codes best (least squares). So the error is smaller than the
values whatever they are: |x - sq|² = |x|² - (x·q)² / |q|², and x·q > 0.
"""

import torch
from torch import Tensor

from penstock.train.codecs import scales
from penstock.train.codecs.codec import BLOCK

# Share of the root mean square, for normal values: the step of the best quantizer with four even
# levels is 0.9957 σ (Max, 1960), and a code is half a step.
HALF_STEP = 0.49785


def quantize(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes from 0 to 3 for rows of fp32 values, and the scale of each row in bf16."""
    spread = blocks.square().mean(1, keepdim=True).sqrt() * HALF_STEP
    large = blocks.abs() > 2 * spread
    size = torch.where(large, 3.0, 1.0)
    fit = (blocks.abs() * size).sum(1) / size.square().sum(1)
    codes = torch.where(blocks < 0, 1 - large.to(torch.uint8), 2 + large.to(torch.uint8))
    return codes, fit.bfloat16()


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the values of rows of codes, given fp32 scales."""
    return (2 * codes.float() - 3) * scale[:, None]


def pack(codes: Tensor) -> Tensor:
    """Pack codes of two bits, four to a byte."""
    a, b, c, d = codes.view(-1, 4).unbind(1)
    return a | (b << 2) | (c << 4) | (d << 6)


def unpack(packed: Tensor) -> Tensor:
    """Return the codes of `pack`."""
    return torch.stack([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], 1).flatten()


class Int2:
    """Two bits a value and a scale for each block."""

    name, block, exact = "int2", BLOCK, False

    def sections(self, count: int) -> tuple[int, ...]:
        return count // 4, count // BLOCK * scales.SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        codes, scale = quantize(values.float().view(-1, BLOCK))
        return torch.cat((pack(codes), scales.to_bytes(scale)))

    def decode(self, content: Tensor, count: int) -> Tensor:
        codes = unpack(content[: count // 4]).view(-1, BLOCK)
        return dequantize(codes, scales.from_bytes(content[count // 4 :])).flatten()
