"""JSON lines: one object a line, each line on its own, whatever its neighbours hold."""

from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from penstock.data.chat_messages import NotChat, carried, take_conversation
from penstock.data.extra import extra
from penstock.data.source_blocks import Blocks
from penstock.data.source_cut import Cut, cut
from penstock.data.source_damage import finish
from penstock.data.source_decode import aside, decode, not_decodable
from penstock.data.source_find import File
from penstock.data.source_options import Options
from penstock.data.source_pieces import Document, Rejected, Tally


def read(
    file: File, stored: BinaryIO, options: Options, tally: Tally
) -> Iterator[Document | Rejected]:
    parse = _Parser(file.name, options, tally)
    blocks = Blocks(stored, file.packing)
    for line in cut(blocks, b"\n", options.most_bytes):
        if line.last and blocks.damage:
            yield aside(file.name, line, "cut off by damage", blocks.damage.reason)
        elif line.too_long:
            yield aside(file.name, line, "too long", f"over {options.most_bytes} bytes")
        elif not line.content.isspace() and line.content:
            yield parse(line, blocks.encoding)
    yield from finish(file.name, blocks, tally)


class _Parser:
    def __init__(self, name: str, options: Options, tally: Tally) -> None:
        self._loads = extra("orjson", "Reading JSON lines").loads
        self._name = name
        self._options = options
        self._tally = tally

    def __call__(self, line: Cut, stored_as: str) -> Document | Rejected:
        # UTF-16 and UTF-32 with a mark were turned into UTF-8 on the way.
        plain = stored_as == "utf-8"
        try:
            record, encoding = self._record(
                line.content, self._options.encodings if plain else ("utf-8",)
            )
        except _Refused as refused:
            return aside(self._name, line, *refused.args)
        if not isinstance(record, dict):
            return aside(self._name, line, "not an object", type(record).__name__)
        try:
            text = self._text(record)
        except (_Refused, NotChat) as refused:
            return aside(self._name, line, *refused.args)
        if not text.strip():
            return aside(self._name, line, "empty")
        self._tally.encodings[encoding if plain else stored_as] += 1
        return Document(f"{self._name}:{line.number}", text, carried(record, self._options))

    def _text(self, record: dict[str, object]) -> str:
        """Taken out of the record."""
        if self._options.chat:
            return take_conversation(record, self._options)
        field = self._options.text
        if field not in record:
            found = ", ".join(map(str, record))[:200] or "none"
            raise _Refused("no text", f"no field {field!r}; found {found}")
        text = record.pop(field)
        if not isinstance(text, str):
            raise _Refused("text is not a string", type(text).__name__)
        return text

    def _record(self, content: bytes, encodings: tuple[str, ...]) -> tuple[object, str]:
        """The value of a line, and the encoding that it is in."""
        if encodings[0] == "utf-8":  # the parser checks UTF-8 itself: nothing is decoded twice
            with suppress(ValueError):
                return self._loads(content), "utf-8"
        decoded = decode(content, encodings)
        if decoded is None:
            raise _Refused(not_decodable(encodings))
        try:
            return self._loads(decoded[0]), decoded[1]
        except ValueError as error:
            reason = "NUL bytes" if b"\0" in content else "broken JSON"
            raise _Refused(reason, str(error)) from None


class _Refused(Exception):
    """Reason and detail of a line that is no record."""
