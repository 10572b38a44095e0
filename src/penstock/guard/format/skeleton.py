"""The bytes that `torch.save` writes around a tensor, without the tensor.

An item of a DCP file is one tensor as `torch.save` writes it: a zip archive whose one large record
is the tensor's memory. Everything else in it follows from shape and type alone, so it is written
once, and a save copies raw bytes into their place. torch does not check the archive's checksums.
"""

from dataclasses import dataclass
from functools import cache

import torch

ALIGNMENT = 64  # of items in a file, as torch aligns records in an archive


@dataclass(frozen=True)
class Skeleton:
    """The bytes of an archive before and after the tensor's memory."""

    head: bytes
    data_bytes: int
    tail: bytes

    @property
    def length(self) -> int:
        return len(self.head) + self.data_bytes + len(self.tail)


class _Sink:
    """A file that keeps what is written and only counts what is skipped."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.gaps: list[tuple[int, int]] = []  # where in `written`, and how long

    def write(self, content: bytes) -> int:
        self.written += content
        return len(content)

    def seek(self, count: int, whence: int = 0) -> int:
        assert whence == 1, f"torch.save seeks from {whence}"
        self.gaps.append((len(self.written), count))
        return self.tell()

    def tell(self) -> int:
        return len(self.written) + sum(count for _, count in self.gaps)

    def flush(self) -> None: ...


@cache
def archive_skeleton(shape: tuple[int, ...], dtype: torch.dtype) -> Skeleton:
    """Return the archive of a tensor of this shape and type, without its memory."""
    sink = _Sink()
    # Memory that nobody touches is not allocated: only its size is looked at.
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    with torch.serialization.skip_data():
        torch.save(tensor, sink)
    if not sink.gaps:  # a tensor without elements
        return Skeleton(bytes(sink.written), 0, b"")
    ((at, count),) = sink.gaps
    assert count == tensor.nbytes, f"{count} bytes of {tensor.nbytes}"
    return Skeleton(bytes(sink.written[:at]), count, bytes(sink.written[at:]))
