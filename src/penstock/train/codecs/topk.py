"""top-k: of every 4,096 values the largest few, as a place of 12 bits and two bits of size.

A chunk is the reach of a 12-bit place. Values of equal size are kept in their order, so that the
bytes do not depend on how a device sorts.
"""

import torch
from torch import Tensor

from penstock.train.codecs import int2, scales

CHUNK = 4096


class TopK:
    """A share of the values, those that are largest in their chunk; all others are 0."""

    block, exact = CHUNK, False

    def __init__(self, share: float) -> None:
        self.name = f"topk:{share * 100:g}%"
        # A multiple of four: their sizes fill whole bytes, and pairs of places do too.
        self.kept = min(CHUNK, max(4, 4 * round(share * CHUNK / 4)))

    def sections(self, count: int) -> tuple[int, ...]:
        chunks = count // CHUNK
        kept = chunks * self.kept
        return kept * 3 // 2, kept // 4, chunks * scales.SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        chunks = values.float().view(-1, CHUNK)
        # A NaN counts as the largest: it must be among those that are sent.
        sizes = chunks.abs().nan_to_num(nan=torch.inf)
        order = sizes.sort(dim=1, descending=True, stable=True).indices
        places = order[:, : self.kept].sort(1).values
        codes, scale = int2.quantize(chunks.gather(1, places))
        first, second = places.to(torch.int32).view(-1, 2).unbind(1)
        pairs = torch.stack((first & 255, (first >> 8) | ((second & 15) << 4), second >> 4), 1)
        parts = (pairs.to(torch.uint8).flatten(), int2.pack(codes), scales.to_bytes(scale))
        return torch.cat(parts)

    def decode(self, content: Tensor, count: int) -> Tensor:
        coded, packed, scale = content.split(list(self.sections(count)))
        a, b, c = coded.to(torch.int64).view(-1, 3).unbind(1)
        places = torch.stack((a | ((b & 15) << 8), (b >> 4) | (c << 4)), 1).view(-1, self.kept)
        values = int2.dequantize(int2.unpack(packed).view(-1, self.kept), scales.from_bytes(scale))
        chunks = values.new_zeros(len(places), CHUNK)
        return chunks.scatter_(1, places, values).flatten()
