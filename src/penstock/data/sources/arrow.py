"""Arrow files, and the rows of Arrow tables, which Parquet files are read as too.

The files are IPC streams, as `datasets` saves them, or IPC files (Feather). The format has no
checksums: a flipped bit inside a value is not detected. Each batch is validated in full before a
value is taken from it, since a damaged offset would read foreign memory.

Strings are taken as bytes and decoded here: some writers put other encodings into string columns.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO

from penstock.data.sources.documents import HEAD_BYTES, Document, FileTally, Rejected
from penstock.data.sources.files import RawFile
from penstock.data.sources.messages import (
    EXTRA_FIELDS,
    InvalidConversation,
    carried_columns,
    take_conversation,
)
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import decode, decode_failure, hash_and_finish
from penstock.extras import extra
from penstock.untrusted import OVER_RATIO, max_unpacked_bytes

BATCH_ROWS = 256


class ArrowRows:
    """Conversion of the rows of one file to documents."""

    def __init__(
        self, pyarrow: ModuleType, name: str, options: ReadOptions, tally: FileTally
    ) -> None:
        self._arrow = pyarrow
        self._name = name
        self._options = options
        self._tally = tally
        self._unpacked = 0

    def choose_columns(self, schema: Any) -> list[str] | Rejected:
        """Return the columns to read, or the rejection if there is no text column."""
        names = list(schema.names)
        if self._options.chat:
            return self._choose_chat(names)
        text, wanted = self._options.text, self._options.columns
        if names.count(text) != 1:
            found = ", ".join(names)[:200]
            return Rejected(self._name, "no text", f"no single column {text!r}; found {found}")
        kind = schema.field(text).type
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        texts = (types.is_string, types.is_large_string, types.is_string_view)
        bytes_ = (types.is_binary, types.is_large_binary, types.is_binary_view)
        if not any(is_kind(kind) for is_kind in (*texts, *bytes_)):
            return Rejected(self._name, "text is not a string", f"column {text!r} is {kind}")
        if wanted is None:
            return [text, *(name for name in names if name != text)]
        return [text, *(name for name in wanted if name in names and name != text)]

    def _choose_chat(self, names: list[str]) -> list[str] | Rejected:
        for field in self._options.chat:
            if names.count(field) != 1:
                found = ", ".join(names)[:200]
                reason = self._options.missing_fields
                return Rejected(self._name, reason, f"no single column {field!r}; found {found}")
        wanted = self._options.columns
        needed = {*self._options.chat, *EXTRA_FIELDS}
        return [name for name in names if wanted is None or name in wanted or name in needed]

    def read_batch(
        self, batch: Any, first: int, columns: list[str]
    ) -> Iterator[Document | Rejected]:
        """Yield the rows of a batch, numbered from `first`; `columns` are the chosen ones."""
        batch.validate(full=False)
        self._count(batch.nbytes)
        if self._options.chat:
            yield from self._conversations(batch, first, columns)
        else:
            yield from self._texts(batch, first, columns[1:])

    def _texts(self, batch: Any, first: int, columns: list[str]) -> Iterator[Document | Rejected]:
        column = batch.column(self._options.text)
        if self._arrow.types.is_dictionary(column.type):
            column = self._decoded(column)
        contents = column.cast(self._arrow.large_binary()).to_pylist()
        others = [_values(batch.column(name)) for name in columns]
        for at, content in enumerate(contents):
            values = {name: others[k][at] for k, name in enumerate(columns)}
            yield self._document(content, first + at, values)

    def _decoded(self, column: Any) -> Any:
        """Expand a dictionary column, after checking that the result is not too large."""
        compute = extra("pyarrow.compute", "Reading columns with a dictionary")
        sizes = compute.binary_length(column.dictionary.cast(self._arrow.large_binary()))
        self._count(compute.sum(sizes.take(column.indices)).as_py() or 0)
        return column.dictionary_decode()

    def _count(self, unpacked: int) -> None:
        """Add unpacked bytes, and raise ArrowInvalid if the file cannot really hold so many."""
        self._unpacked += unpacked
        if self._unpacked > max_unpacked_bytes(self._tally.size):
            raise self._arrow.ArrowInvalid(f"unpacks to too much: {OVER_RATIO}")

    def _conversations(
        self, batch: Any, first: int, columns: list[str]
    ) -> Iterator[Document | Rejected]:
        values = {name: _values(batch.column(name)) for name in columns}
        for at in range(batch.num_rows):
            record = {name: values[name][at] for name in columns}
            yield self._conversation(record, first + at)

    def _conversation(self, record: dict[str, Any], row: int) -> Document | Rejected:
        if bad := self._unreadable(record, row):
            return bad
        try:
            text = take_conversation(record, self._options)
        except InvalidConversation as refused:
            return Rejected(self._name, refused.reason, refused.detail, line=row)
        head = text[:HEAD_BYTES].encode()[:HEAD_BYTES]
        if len(text.encode()) > self._options.most_bytes:
            detail = f"over {self._options.most_bytes} bytes"
            return Rejected(self._name, "too long", detail, line=row, head=head)
        if not text.strip():
            return Rejected(self._name, "empty", line=row)
        self._tally.encodings["utf-8"] += 1
        return Document(f"{self._name}:{row}", text, carried_columns(record, self._options))

    def _unreadable(self, values: dict[str, Any], row: int, head: bytes = b"") -> Rejected | None:
        for name, value in values.items():
            if isinstance(value, _UnreadableValue):
                detail = f"{name}: {value}"
                return Rejected(self._name, "column cannot be read", detail, line=row, head=head)
        return None

    def _document(
        self, content: bytes | None, row: int, values: dict[str, object]
    ) -> Document | Rejected:
        if content is None:
            return Rejected(self._name, "no text", "null", line=row)
        head = content[:HEAD_BYTES]
        if len(content) > self._options.most_bytes:
            detail = f"over {self._options.most_bytes} bytes"
            return Rejected(self._name, "too long", detail, line=row, head=head)
        decoded = decode(content, self._options.encodings)
        if decoded is None:
            reason = decode_failure(self._options.encodings)
            return Rejected(self._name, reason, line=row, head=head)
        if bad := self._unreadable(values, row, head):
            return bad
        text, encoding = decoded
        if not text.strip():
            return Rejected(self._name, "empty", line=row, head=head)
        self._tally.encodings[encoding] += 1
        return Document(f"{self._name}:{row}", text, carried_columns(values, self._options))


class _UnreadableValue(str):
    """Placeholder of a value that cannot be read; its text is the reason."""


def _values(column: Any) -> list[object]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):  # invalid UTF-8, or a date outside Python's calendar
        return [_value(column[at]) for at in range(len(column))]


def _value(scalar: Any) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        return _UnreadableValue(first_line(error))


def arrow_errors(pyarrow: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions that Arrow raises on a damaged file.

    Its own errors are also OSError, ValueError and so on.
    """
    return (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


_FILE = b"ARROW1"


def read(
    file: RawFile, stored: BinaryIO, options: ReadOptions, tally: FileTally
) -> Iterator[Document | Rejected]:
    pyarrow = extra("pyarrow", "Reading Arrow")
    yield from hash_and_finish(file.name, stored, tally)
    if file.packing:
        yield Rejected(file.name, "packed Arrow", f"unpack it: Arrow within {file.packing}")
        return
    if not tally.size or tally.damage:
        return
    rows = ArrowRows(pyarrow, file.name, options, tally)
    row = 1
    try:
        batches, schema = _batches(stored)
        columns = rows.choose_columns(schema)
        if isinstance(columns, Rejected):
            yield columns
            return
        for batch in batches:
            batch.validate(full=True)
            batch = batch.select(columns)
            for at in range(0, batch.num_rows, BATCH_ROWS):
                part = batch.slice(at, BATCH_ROWS)
                yield from rows.read_batch(part, row, columns)
                row += part.num_rows
    except arrow_errors(pyarrow) as error:
        tally.damage = "damaged Arrow"
        yield Rejected(file.name, tally.damage, f"from row {row} on: {first_line(error)}", line=row)


def _batches(stored: BinaryIO) -> tuple[Iterator[Any], Any]:
    ipc = extra("pyarrow.ipc", "Reading Arrow")
    stored.seek(0)
    is_file = stored.read(len(_FILE)) == _FILE
    stored.seek(0)
    if not is_file:
        stream = ipc.open_stream(stored)
        return iter(stream), stream.schema
    opened = ipc.open_file(stored)
    return (opened.get_batch(n) for n in range(opened.num_record_batches)), opened.schema
