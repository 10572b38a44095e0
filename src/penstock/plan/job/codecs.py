"""The bytes of what replicas send each other, by codec: as `train/codecs/` writes them.

Elements share a scale in blocks, and every tensor begins with a block of its own. A message is a
header and the codes, so that its size depends on the sizes of the tensors alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SCALED = 128  # elements that share a scale
SCALE_BYTES = 2
CHUNK = 4096  # elements of which top-k keeps some
HEADER_BYTES = 8  # the tokens behind a difference
# What the objects of sites take of their messages, deflated (`train/sites/objects.py`), and bytes a
# second of one core: measured on 30 steps of Muon with 3.3M parameters (docs/log.md, 2026-11-20).
DEFLATED = {"none": 0.88, "bf16": 0.78, "int8": 0.955, "int4": 0.87, "int2": 0.945, "topk": 0.996}
DEFLATE_BYTES_PER_S, INFLATE_BYTES_PER_S = 170e6, 300e6


@dataclass(frozen=True)
class CodecSize:
    """The size of one block of a codec."""

    block: int  # elements
    block_bytes: int
    exact: bool = False  # nothing is left out, so that no error feedback is kept

    @property
    def value_bytes(self) -> float:
        """Return the bytes of one element of a whole block."""
        return self.block_bytes / self.block

    def encoded_bytes(self, tensors: Sequence[int]) -> int:
        """Return the bytes of tensors with so many elements each."""
        return sum(-(-count // self.block) for count in tensors) * self.block_bytes


def codec_size(name: str, wide_bytes: int = 4) -> CodecSize:
    """Return the size of the codec that the run file names; `wide_bytes` is that of a value which
    is sent as it is.
    """
    kind, _, share = name.partition(":")
    if kind == "topk":
        kept = topk_kept(float(share.removesuffix("%")) / 100)
        return CodecSize(CHUNK, kept * 14 // 8 + SCALE_BYTES)
    return {
        "none": CodecSize(1, wide_bytes, exact=True),
        "bf16": CodecSize(1, 2),
        "int8": CodecSize(SCALED, SCALED + SCALE_BYTES),
        "int4": CodecSize(SCALED, SCALED // 2 + SCALE_BYTES),
        "int2": CodecSize(SCALED, SCALED // 4 + SCALE_BYTES),
    }[kind]


def deflated_share(name: str) -> float:
    """Return what is left of a message once it is deflated."""
    return DEFLATED[name.partition(":")[0]]


def topk_kept(share: float) -> int:
    """Return how many values of a chunk are sent: a multiple of four, whose sizes fill bytes."""
    return min(CHUNK, max(4, 4 * round(share * CHUNK / 4)))
