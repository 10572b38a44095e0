"""The interface of codecs, and the choice of one by its name in the run file.

A codec turns a flat tensor into bytes whose number depends on the number of elements alone, so that
replicas know what to expect of each other. It is deterministic: equal values give equal bytes. The
rounding error of a codec is added to the next values (`feedback.py`), so it need not be exact, but
it must be a contraction: |values - decoded| < |values|.

Elements share a scale in blocks. A block with a NaN or an infinity has a scale that is none either,
and decodes to values that are not finite: bad numbers are never sent as good ones.
"""

from typing import Protocol

import torch
from torch import Tensor

from penstock.errors import PenstockError

BLOCK = 128  # elements that share a scale: 16 bits of scale are 1/8 bit an element


class Codec(Protocol):
    """A way to write a flat tensor in fewer bytes."""

    name: str  # in the run file
    block: int  # elements; what is encoded is a whole number of blocks
    exact: bool  # nothing is left out: no error feedback is kept

    def sections(self, count: int) -> tuple[int, ...]:
        """Return the bytes of each section of what `encode` returns for so many elements.

        A section has the same number of bytes for every block, in their order, and no block
        depends on another: so elements may be encoded and decoded some blocks at a time.
        """

    def encode(self, values: Tensor) -> Tensor:
        """Return the bytes of a flat tensor."""

    def decode(self, content: Tensor, count: int) -> Tensor:
        """Return the `count` values that `content` stands for, in fp32 or wider."""


def build_codec(name: str, dtype: torch.dtype = torch.float32) -> Codec:
    """Build the codec that the run file names; `dtype` is that of values that are sent whole."""
    from penstock.train.codecs.bf16 import Bf16
    from penstock.train.codecs.int2 import Int2
    from penstock.train.codecs.int4 import Int4
    from penstock.train.codecs.int8 import Int8
    from penstock.train.codecs.raw import Raw
    from penstock.train.codecs.topk import TopK

    kind, _, share = name.partition(":")
    if kind == "topk":
        return TopK(float(share.removesuffix("%")) / 100)
    found: dict[str, Codec] = {
        "none": Raw(dtype),
        "bf16": Bf16(),
        "int8": Int8(),
        "int4": Int4(),
        "int2": Int2(),
    }
    return found[kind]


def encoded_bytes(codec: Codec, count: int) -> int:
    """Return how many bytes so many elements take."""
    return sum(codec.sections(count))


def block_ranges(codec: Codec, whole: int, start: int, count: int) -> list[slice]:
    """Return where the bytes of `count` elements from `start` on lie among those of `whole`."""
    found, first = [], 0
    for size, before, own in zip(*(codec.sections(n) for n in (whole, start, count)), strict=True):
        found.append(slice(first + before, first + before + own))
        first += size
    return found


def check_content(content: Tensor, codec: Codec, count: int, sender: str) -> None:
    """Refuse bytes that are not `count` values of a codec."""
    expected = encoded_bytes(codec, count)
    if content.dtype != torch.uint8 or content.dim() != 1 or len(content) != expected:
        found = f"{content.numel() * content.element_size()} bytes"
        raise PenstockError(f"{sender}: sent {found} of {codec.name}; {expected} were expected")


def check_finite(values: Tensor, what: str) -> None:
    """Refuse values that are NaN or infinite."""
    if not bool(values.isfinite().all()):
        bad = int((~values.isfinite()).sum())
        raise PenstockError(f"{what}: {bad} of {values.numel()} values are NaN or infinite")
