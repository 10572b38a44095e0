"""JSON files: one object per line or an array of objects; each row is parsed on its own."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import BinaryIO

from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.documents import Document, FileTally, Rejected
from penstock.data.sources.files import RawFile
from penstock.data.sources.json_rows import JsonRows
from penstock.data.sources.messages import InvalidConversation, carried_columns, take_conversation
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import RawRecord, decode, decode_failure, finish_file, reject
from penstock.extras import extra

BROKEN = "broken JSON"
_WRAPPER = re.compile(rb'\{\s*"([^"\\]+)"\s*:\s*\[')  # {"data": [


def read(
    file: RawFile, stored: BinaryIO, options: ReadOptions, tally: FileTally
) -> Iterator[Document | Rejected]:
    parse = _RowParser(file.name, options, tally)
    blocks = FileBlocks(stored, file.packing)
    rows = JsonRows(blocks, options.most_bytes)
    for row in rows:
        if row.last and blocks.damage:
            yield reject(file.name, row, "cut off by damage", blocks.damage.reason)
        elif row.too_long:
            detail = f"over {options.most_bytes} bytes{_wrapped(row.content)}"
            yield reject(file.name, row, "too long", detail)
        elif row.problem:
            yield reject(file.name, row, BROKEN, row.problem)
        elif not row.content.isspace() and row.content:
            yield parse(row, blocks.encoding)
    yield from finish_file(file.name, blocks, tally)
    if rows.unclosed and not blocks.damage:
        tally.damage = "truncated JSON array"
        detail = "the file ends before the closing ]; the rows before it are kept"
        yield Rejected(file.name, tally.damage, detail)


def _wrapped(head: bytes) -> str:
    """Return a hint if the first bytes look like one object that holds all rows."""
    found = _WRAPPER.match(head)
    return _unwrap(found[1].decode("utf-8", "replace")) if found else ""


def _unwrap(field: str) -> str:
    return (
        f"; if the rows are the list {field!r} in it, put that list alone into a file: "
        f"jq '.[\"{field}\"]' FILE > rows.json"
    )


class _RowParser:
    def __init__(self, name: str, options: ReadOptions, tally: FileTally) -> None:
        self._loads = extra("orjson", "Reading JSON lines").loads
        self._name = name
        self._options = options
        self._tally = tally

    def __call__(self, line: RawRecord, stored_as: str) -> Document | Rejected:
        # UTF-16 and UTF-32 with a byte-order mark were already converted to UTF-8.
        plain = stored_as == "utf-8"
        try:
            record, encoding = self._record(
                line.content, self._options.encodings if plain else ("utf-8",)
            )
        except _RejectedRow as refused:
            return reject(self._name, line, *refused.args)
        if not isinstance(record, dict):
            return reject(self._name, line, "not an object", type(record).__name__)
        try:
            text = self._text(record)
        except (_RejectedRow, InvalidConversation) as refused:
            return reject(self._name, line, *refused.args)
        if not text.strip():
            return reject(self._name, line, "empty")
        self._tally.encodings[encoding if plain else stored_as] += 1
        return Document(f"{self._name}:{line.number}", text, carried_columns(record, self._options))

    def _text(self, record: dict[str, object]) -> str:
        """Remove the text from the record and return it."""
        if self._options.chat:
            return take_conversation(record, self._options)
        field = self._options.text
        if field not in record:
            found = ", ".join(map(str, record))[:200] or "none"
            lists = (name for name, value in record.items() if _holds_objects(value))
            hint = "".join(_unwrap(name) for name in islice(lists, 1))
            raise _RejectedRow("no text", f"no field {field!r}; found {found}{hint}")
        text = record.pop(field)
        if not isinstance(text, str):
            raise _RejectedRow("text is not a string", type(text).__name__)
        return text

    def _record(self, content: bytes, encodings: tuple[str, ...]) -> tuple[object, str]:
        """Return the value of a line and its encoding."""
        if encodings[0] == "utf-8":  # the parser validates UTF-8 itself: no second decoding
            with suppress(ValueError):
                return self._loads(content), "utf-8"
        decoded = decode(content, encodings)
        if decoded is None:
            raise _RejectedRow(decode_failure(encodings))
        try:
            return self._loads(decoded[0]), decoded[1]
        except ValueError as error:
            reason = "NUL bytes" if b"\0" in content else BROKEN
            raise _RejectedRow(reason, str(error)) from None


def _holds_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


class _RejectedRow(Exception):
    """Reason and detail for rejecting a line."""
