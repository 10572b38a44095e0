"""Raw records of a file: cut from a stream, decoded, rejected; and the end of the file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.documents import HEAD_BYTES, FileTally, Rejected


@dataclass(frozen=True, slots=True)
class RawRecord:
    """The undecoded bytes of a line, row or document of a file."""

    number: int  # from 1
    offset: int  # of its first byte
    content: bytes  # only the first bytes if it is too long
    too_long: bool = False
    last: bool = False  # the stream ended without a separator after it
    line: int = 0  # line of its first byte, from 1, if `number` counts rows; 0: the same as number
    problem: str = ""  # what is wrong with it, if that is already known


def split_stream(blocks: Iterable[bytes], separator: bytes, most_bytes: int) -> Iterator[RawRecord]:
    """Yield the records between separators; there is no empty record after the last separator.

    A record longer than `most_bytes` keeps only its first bytes. Memory stays within `most_bytes`
    and two blocks.
    """
    held = (
        bytearray()
    )  # bytes from `offset` on; if `skipped`, the tail of a record that is too long
    number, offset, searched = 1, 0, 0
    head, skipped = b"", 0
    for block in blocks:
        held += block
        if held.find(separator, searched) >= 0:
            # Split from the left, as on the whole stream: separators may overlap (b"\n\n\n").
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
        keep = len(separator) - 1  # these bytes may be the start of a separator
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
    """Decode strictly; return the text and the first encoding that fits, or None."""
    for encoding in encodings:
        try:
            text = content.decode(encoding)
            text.encode()  # raises on lone surrogates, which some codecs let through
        except (UnicodeError, ValueError):
            continue
        return text, encoding
    return None


def decode_failure(encodings: tuple[str, ...]) -> str:
    """Return the reason for rejecting a record that none of the encodings can decode."""
    return "not " + " or ".join(encoding.upper() for encoding in encodings)


def reject(file: str, record: RawRecord, reason: str, detail: str = "") -> Rejected:
    """Reject a record, with its position in the file."""
    line, row = (record.line, record.number) if record.line else (record.number, None)
    return Rejected(file, reason, detail, line, record.offset, record.content[:HEAD_BYTES], row)


def finish_file(name: str, blocks: FileBlocks, tally: FileTally) -> Iterator[Rejected]:
    """Store the identity of a file that was read to its end, and yield what was wrong with it."""
    tally.size = blocks.size
    tally.blake3 = blocks.digest
    if damage := blocks.damage:
        tally.damage = damage.reason
        detail = f"{damage.detail}; stored bytes from about {damage.offset} on are lost"
        yield Rejected(name, damage.reason, detail)
    elif not blocks.size:
        yield Rejected(name, "empty file")


def hash_and_finish(name: str, stored: BinaryIO, tally: FileTally) -> Iterator[Rejected]:
    """Hash a file whose format is not read from front to back, then `finish_file` it."""
    blocks = FileBlocks(stored, raw=True)
    for _ in blocks:
        pass
    yield from finish_file(name, blocks, tally)
