"""Plain text files: one document per file, or several between separators.

A source of conversations has no plain text: its text files, such as a README.md beside the rows,
are rejected.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.documents import HEAD_BYTES, Document, FileTally, Rejected
from penstock.data.sources.find import RawFile
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import (
    RawRecord,
    decode,
    decode_failure,
    finish_file,
    reject,
    split_stream,
)


def read(
    file: RawFile, stored: BinaryIO, options: ReadOptions, tally: FileTally
) -> Iterator[Document | Rejected]:
    blocks = FileBlocks(stored, file.packing)
    if options.chat:
        for _ in blocks:  # the identity of the file needs every byte
            pass
        fields = ", ".join(map(repr, options.chat))
        yield Rejected(file.name, "text beside conversations", f"plain text has no {fields}")
        yield from finish_file(file.name, blocks, tally)
        return
    if options.separator is None:
        parts = _whole(blocks, options.most_bytes)
    else:
        parts = split_stream(blocks, options.separator.encode(), options.most_bytes)
    for part in parts:
        if part.last and blocks.damage:
            yield reject(file.name, part, "cut off by damage", blocks.damage.reason)
            continue
        yield _document(file.name, part, options, blocks.encoding, tally)
    yield from finish_file(file.name, blocks, tally)


def _whole(blocks: Iterable[bytes], most_bytes: int) -> Iterator[RawRecord]:
    held = bytearray()
    for block in blocks:  # to the end even if it is too long: the identity needs every byte
        if len(held) <= most_bytes:
            held += block
    if len(held) > most_bytes:
        yield RawRecord(1, 0, bytes(held[:HEAD_BYTES]), too_long=True, last=True)
    elif held:
        yield RawRecord(1, 0, bytes(held), last=True)


def _document(
    name: str, part: RawRecord, options: ReadOptions, stored_as: str, tally: FileTally
) -> Document | Rejected:
    if part.too_long:
        return reject(name, part, "too long", f"over {options.most_bytes} bytes")
    if b"\0" in part.content:
        return reject(name, part, "NUL bytes", "binary, or text in UTF-16 without its mark")
    # UTF-16 and UTF-32 with a byte-order mark were already converted to UTF-8.
    decoded = decode(part.content, options.encodings if stored_as == "utf-8" else ("utf-8",))
    if decoded is None:
        return reject(name, part, decode_failure(options.encodings))
    text, encoding = decoded
    if options.separator == "\n":
        text = text.removesuffix("\r")
    if not text.strip():
        return reject(name, part, "empty")
    tally.encodings[encoding if stored_as == "utf-8" else stored_as] += 1
    return Document(name if options.separator is None else f"{name}:{part.number}", text)
