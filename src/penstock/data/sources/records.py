"""Raw records of a file: cut from a stream, decoded, rejected; and the end of the file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.documents import HEAD_BYTES, FileTally, Rejected


@dataclass(frozen=True, slots=True)
class RawRecord:
    number: int  # from 1
    offset: int  # of its first byte
    content: bytes  # only the first bytes when it is too long
    too_long: bool = False
    last: bool = False  # the stream ended before a separator came
    line: int = 0  # of its first byte, from 1, where `number` counts rows; 0: they are the same
    problem: str = ""  # what is wrong with it, where that is known already


def split_stream(blocks: Iterable[bytes], separator: bytes, most_bytes: int) -> Iterator[RawRecord]:
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
                    yield RawRecord(number, offset, head or part[:HEAD_BYTES], too_long=True)
                else:
                    yield RawRecord(number, offset, part)
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
        yield RawRecord(number, offset, head, too_long=True, last=True)
    elif len(held) > most_bytes:
        yield RawRecord(number, offset, bytes(held[:HEAD_BYTES]), too_long=True, last=True)
    elif held:
        yield RawRecord(number, offset, bytes(held), last=True)


def decode(content: bytes, encodings: tuple[str, ...]) -> tuple[str, str] | None:
    """The text and the first encoding that gives it, or None."""
    for encoding in encodings:
        try:
            text = content.decode(encoding)
            text.encode()  # some codecs let lone surrogates through
        except (UnicodeError, ValueError):
            continue
        return text, encoding
    return None


def decode_failure(encodings: tuple[str, ...]) -> str:
    return "not " + " or ".join(encoding.upper() for encoding in encodings)


def reject(file: str, cut: RawRecord, reason: str, detail: str = "") -> Rejected:
    """A part that is not taken, with its place."""
    line, row = (cut.line, cut.number) if cut.line else (cut.number, None)
    return Rejected(file, reason, detail, line, cut.offset, cut.content[:HEAD_BYTES], row)


def finish_file(name: str, blocks: FileBlocks, tally: FileTally) -> Iterator[Rejected]:
    tally.size = blocks.size
    tally.blake3 = blocks.digest
    if damage := blocks.damage:
        tally.damage = damage.reason
        detail = f"{damage.detail}; stored bytes from about {damage.offset} on are lost"
        yield Rejected(name, damage.reason, detail)
    elif not blocks.size:
        yield Rejected(name, "empty file")


def hash_and_finish(name: str, stored: BinaryIO, tally: FileTally) -> Iterator[Rejected]:
    """The same for a format that is not read from front to back: its bytes are hashed before."""
    blocks = FileBlocks(stored, raw=True)
    for _ in blocks:
        pass
    yield from finish_file(name, blocks, tally)
