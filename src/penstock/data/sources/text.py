"""Plain text: a file is one document, or several between separators.

A source of conversations has none: its text files, such as a README.md beside the rows, are kept
aside.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from penstock.data.sources.blocks import Blocks
from penstock.data.sources.cut import Cut, cut
from penstock.data.sources.damage import finish
from penstock.data.sources.decode import aside, decode, not_decodable
from penstock.data.sources.find import File
from penstock.data.sources.options import Options
from penstock.data.sources.pieces import HEAD_BYTES, Document, Rejected, Tally


def read(
    file: File, stored: BinaryIO, options: Options, tally: Tally
) -> Iterator[Document | Rejected]:
    blocks = Blocks(stored, file.packing)
    if options.chat:
        for _ in blocks:  # the identity needs every byte
            pass
        fields = ", ".join(map(repr, options.chat))
        yield Rejected(file.name, "text beside conversations", f"plain text has no {fields}")
        yield from finish(file.name, blocks, tally)
        return
    if options.separator is None:
        parts = _whole(blocks, options.most_bytes)
    else:
        parts = cut(blocks, options.separator.encode(), options.most_bytes)
    for part in parts:
        if part.last and blocks.damage:
            yield aside(file.name, part, "cut off by damage", blocks.damage.reason)
            continue
        yield _document(file.name, part, options, blocks.encoding, tally)
    yield from finish(file.name, blocks, tally)


def _whole(blocks: Iterable[bytes], most_bytes: int) -> Iterator[Cut]:
    held = bytearray()
    for block in blocks:  # to the end also when it is too long: the identity needs every byte
        if len(held) <= most_bytes:
            held += block
    if len(held) > most_bytes:
        yield Cut(1, 0, bytes(held[:HEAD_BYTES]), too_long=True, last=True)
    elif held:
        yield Cut(1, 0, bytes(held), last=True)


def _document(
    name: str, part: Cut, options: Options, stored_as: str, tally: Tally
) -> Document | Rejected:
    if part.too_long:
        return aside(name, part, "too long", f"over {options.most_bytes} bytes")
    if b"\0" in part.content:
        return aside(name, part, "NUL bytes", "binary, or text in UTF-16 without its mark")
    # UTF-16 and UTF-32 with a mark were turned into UTF-8 on the way.
    decoded = decode(part.content, options.encodings if stored_as == "utf-8" else ("utf-8",))
    if decoded is None:
        return aside(name, part, not_decodable(options.encodings))
    text, encoding = decoded
    if options.separator == "\n":
        text = text.removesuffix("\r")
    if not text.strip():
        return aside(name, part, "empty")
    tally.encodings[encoding if stored_as == "utf-8" else stored_as] += 1
    return Document(name if options.separator is None else f"{name}:{part.number}", text)
