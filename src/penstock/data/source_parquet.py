"""Parquet: row group after row group, so that a damaged one costs its own rows alone.

The format is read from its end, so the bytes are hashed in a pass before it. Strings are taken as
bytes and decoded here: writers do put other encodings into string columns. Pages that carry
checksums are checked; most writers store none, and then a flipped bit inside a value is not seen.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO

from penstock.data.extra import extra
from penstock.data.source_blocks import BLOCK_BYTES, Blocks
from penstock.data.source_damage import finish
from penstock.data.source_decode import decode, not_decodable
from penstock.data.source_find import File
from penstock.data.source_options import Options
from penstock.data.source_pieces import HEAD_BYTES, Document, Rejected, Tally

_BATCH_ROWS = 256
_THRIFT_LIMIT = 64 << 20  # of one string and one list in the footer: a mangled length is no order


def read(
    file: File, stored: BinaryIO, options: Options, tally: Tally
) -> Iterator[Document | Rejected]:
    pyarrow = extra("pyarrow", "Reading Parquet")
    if file.packing:
        yield from _hash(file, stored, tally)
        yield Rejected(file.name, "packed Parquet", f"unpack it: Parquet within {file.packing}")
        return
    yield from _hash(file, stored, tally)
    if not tally.size or tally.damage:
        return
    rows = _Rows(pyarrow, file.name, options, tally)
    try:
        stored.seek(0)
        opened = extra("pyarrow.parquet", "Reading Parquet").ParquetFile(
            stored,
            buffer_size=BLOCK_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            thrift_string_size_limit=_THRIFT_LIMIT,
            thrift_container_size_limit=_THRIFT_LIMIT,
        )
        groups, schema = opened.metadata.num_row_groups, opened.schema_arrow
        counts = [opened.metadata.row_group(group).num_rows for group in range(groups)]
    except _errors(pyarrow) as error:
        tally.damage = "damaged Parquet"
        yield Rejected(file.name, tally.damage, _short(error))
        return
    columns = rows.choose(schema)
    if isinstance(columns, Rejected):
        yield columns
        return
    first = 1
    for group in range(groups):
        yield from rows.group(opened, group, first, columns)
        first += max(counts[group], 0)


def _hash(file: File, stored: BinaryIO, tally: Tally) -> Iterator[Rejected]:
    blocks = Blocks(stored, raw=True)
    for _ in blocks:
        pass
    yield from finish(file.name, blocks, tally)


class _Rows:
    def __init__(self, pyarrow: ModuleType, name: str, options: Options, tally: Tally) -> None:
        self._arrow = pyarrow
        self._name = name
        self._options = options
        self._tally = tally

    def choose(self, schema: Any) -> list[str] | Rejected:
        """The columns to read, or why there is no text."""
        names = list(schema.names)
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

    def group(
        self, opened: Any, group: int, first: int, columns: list[str]
    ) -> Iterator[Document | Rejected]:
        row = first
        try:
            batches = opened.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns)
            for batch in batches:
                yield from self._batch(batch, row, columns[1:])
                row += batch.num_rows
        except _errors(self._arrow) as error:
            self._tally.damage = "damaged Parquet"
            detail = f"row group {group} from row {row} on: {_short(error)}"
            yield Rejected(self._name, self._tally.damage, detail, line=row)

    def _batch(self, batch: Any, first: int, columns: list[str]) -> Iterator[Document | Rejected]:
        batch.validate(full=False)
        column = batch.column(self._options.text)
        if self._arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        contents = column.cast(self._arrow.large_binary()).to_pylist()
        carried = [_values(batch.column(name)) for name in columns]
        for at, content in enumerate(contents):
            values = {name: carried[k][at] for k, name in enumerate(columns)}
            yield self._document(content, first + at, values)

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
            reason = not_decodable(self._options.encodings)
            return Rejected(self._name, reason, line=row, head=head)
        bad = next((name for name, value in values.items() if isinstance(value, _Bad)), None)
        if bad is not None:
            return Rejected(
                self._name, "column cannot be read", f"{bad}: {values[bad]}", line=row, head=head
            )
        text, encoding = decoded
        if not text.strip():
            return Rejected(self._name, "empty", line=row, head=head)
        self._tally.encodings[encoding] += 1
        if self._options.columns is not None:
            values = {name: values.get(name) for name in self._options.columns}
        return Document(f"{self._name}:{row}", text, values)


class _Bad(str):
    """Stands for a value that cannot be read, and says why."""


def _values(column: Any) -> list[object]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):  # wrong UTF-8, or a date outside Python's calendar
        return [_value(column[at]) for at in range(len(column))]


def _value(scalar: Any) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        return _Bad(_short(error))


def _errors(pyarrow: ModuleType) -> tuple[type[Exception], ...]:
    """What a mangled file makes Arrow raise: its own errors are also OSError, ValueError, …"""
    return (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
