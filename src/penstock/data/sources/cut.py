"""Cuts a stream of blocks at a separator, whatever the block borders, bounded in memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.data.sources.pieces import HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    number: int  # from 1
    offset: int  # of its first byte
    content: bytes  # only the first bytes when it is too long
    too_long: bool = False
    last: bool = False  # the stream ended before a separator came
    line: int = 0  # of its first byte, from 1, where `number` counts rows; 0: they are the same
    problem: str = ""  # what is wrong with it, where that is known already


def cut(blocks: Iterable[bytes], separator: bytes, most_bytes: int) -> Iterator[Cut]:
    """The parts between separators; an empty part after the last separator is none.

    Parts longer than `most_bytes` are told with their head alone. Memory stays within
    `most_bytes` and two blocks.
    """
    held = bytearray()  # from `offset` on; when `skipped`, the tail of a part that is too long
    number, offset, searched = 1, 0, 0
    head, skipped = b"", 0
    for block in blocks:
        held += block
        if held.find(separator, searched) >= 0:
            # From the left, as on the whole stream: separators may overlap, as in b"\n\n\n".
            *complete, rest = bytes(held).split(separator)
            held = bytearray(rest)
            for part in complete:
                if skipped or len(part) > most_bytes:
                    yield Cut(number, offset, head or part[:HEAD_BYTES], too_long=True)
                else:
                    yield Cut(number, offset, part)
                offset += skipped + len(part) + len(separator)
                number += 1
                head, skipped = b"", 0
        keep = len(separator) - 1  # may be the start of a separator
        if skipped + len(held) > max(most_bytes, HEAD_BYTES) + keep:
            head = head or bytes(held[:HEAD_BYTES])
            drop = len(held) - keep
            del held[:drop]
            skipped += drop
        searched = max(0, len(held) - keep)
    if skipped:
        yield Cut(number, offset, head, too_long=True, last=True)
    elif len(held) > most_bytes:
        yield Cut(number, offset, bytes(held[:HEAD_BYTES]), too_long=True, last=True)
    elif held:
        yield Cut(number, offset, bytes(held), last=True)
