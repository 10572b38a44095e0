"""CSV and TSV files: the first row names the columns, each later row is a document."""

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from penstock.data.format.locate import PACKINGS
from penstock.data.sources.blocks import FileBlocks
from penstock.data.sources.csv_rows import BrokenRow, CsvRows, sniff_delimiter, split_cells
from penstock.data.sources.documents import Document, FileTally, Rejected
from penstock.data.sources.files import RawFile
from penstock.data.sources.messages import InvalidConversation, carried_columns, take_conversation
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.records import RawRecord, decode, decode_failure, finish_file, reject

BROKEN = "broken CSV"


def read(
    file: RawFile, stored: BinaryIO, options: ReadOptions, tally: FileTally
) -> Iterator[Document | Rejected]:
    """Yield the documents of a file. A broken row is rejected; its neighbours are not affected."""
    blocks = FileBlocks(stored, file.packing)
    table = CsvTable(file, blocks, options)
    try:
        columns = table.columns()
        if columns:
            _refuse_missing(table.names, options)
        for row in table.rows:
            if row.last and blocks.damage:
                yield reject(file.name, row, "cut off by damage", blocks.damage.reason)
                continue
            try:
                yield _document(file.name, row, table, columns, tally)
            except (RejectedRow, InvalidConversation) as why:
                yield reject(file.name, row, *why.args)
    except RejectedRow as why:
        for _ in table.rows:  # the identity of the file needs every byte
            pass
        if table.header and not blocks.damage:
            yield reject(file.name, table.header, *why.args)
    yield from finish_file(file.name, blocks, tally)
    if table.unclosed and not blocks.damage:
        tally.damage = "unclosed quote"


class RejectedRow(Exception):
    """Reason and detail for rejecting a row, or a file that lacks a required column."""


class CsvTable:
    """Rows of a CSV file whose first row names the columns."""

    def __init__(self, file: RawFile, blocks: FileBlocks, options: ReadOptions) -> None:
        self.header: RawRecord | None = None
        self.names: list[str] = []  # of the columns, as written in the file
        self.unclosed = False  # True if the file ends inside quotes
        self.options, self.blocks = options, blocks
        self._rows = CsvRows(
            blocks, options.delimiter or _delimiter_by_name(file), options.most_bytes
        )
        self.rows = self._noticing(iter(self._rows))

    def columns(self) -> list[str]:
        """Return the column names in the first row; number the empty and repeated ones."""
        self.header = next(self.rows, None)
        if self.header is None:
            return []
        if self.header.last and self.blocks.damage:
            raise RejectedRow("cut off by damage", self.blocks.damage.reason)
        if not self._rows.delimiter:
            self._rows.delimiter = sniff_delimiter(self._text(self.header)[0])
        self.names = [name.strip() for name in self.cells(self.header)[0]]
        seen: Counter[str] = Counter()
        out = []
        for place, name in enumerate(self.names, 1):
            name = name or f"column_{place}"
            seen[name] += 1
            out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        return out

    def cells(self, row: RawRecord) -> tuple[list[str], str]:
        """Return the cells of a row and their encoding."""
        text, encoding = self._text(row)
        try:
            return split_cells(text, self._rows.delimiter), encoding
        except BrokenRow as why:
            raise RejectedRow(BROKEN, str(why)) from None

    def _text(self, row: RawRecord) -> tuple[str, str]:
        if row.too_long:
            detail = f"over {self.options.most_bytes} bytes"
            raise RejectedRow("too long", f"{detail}; {row.problem}" if row.problem else detail)
        if row.problem:
            raise RejectedRow(BROKEN, row.problem)
        if b"\0" in row.content:
            raise RejectedRow("NUL bytes", "binary, or text in UTF-16 without its mark")
        # UTF-16 and UTF-32 with a byte-order mark were already converted to UTF-8.
        stored_as = self.blocks.encoding
        encodings = self.options.encodings if stored_as == "utf-8" else ("utf-8",)
        decoded = decode(row.content, encodings)
        if decoded is None:
            raise RejectedRow(decode_failure(encodings))
        return decoded[0], decoded[1] if stored_as == "utf-8" else stored_as

    def _noticing(self, rows: Iterator[RawRecord]) -> Iterator[RawRecord]:
        for row in rows:
            self.unclosed |= bool(row.problem)
            yield row


def _delimiter_by_name(file: RawFile) -> str:
    """Return a tab for .tsv and .tab files, else an empty string: the first row decides."""
    name = file.name.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    return "\t" if name.endswith((".tsv", ".tab")) else ""


def _refuse_missing(names: list[str], options: ReadOptions) -> None:
    for field in options.chat or (options.text,):
        if names.count(field) != 1:
            reason = "no text"
            if options.chat:
                reason = options.missing_fields
            found = ", ".join(names)[:200]
            raise RejectedRow(reason, f"no single column {field!r} in the first row; found {found}")


def _document(
    name: str, row: RawRecord, table: CsvTable, columns: list[str], tally: FileTally
) -> Document:
    found, encoding = table.cells(row)
    if len(found) != len(columns):
        raise RejectedRow("wrong number of cells", f"{len(found)} instead of {len(columns)}")
    record: dict[str, object] = dict(zip(columns, found, strict=True))
    options = table.options
    if options.chat:
        text = take_conversation(record, options)
    else:
        text = str(record.pop(options.text))
    if not text.strip():
        raise RejectedRow("empty")
    tally.encodings[encoding] += 1
    return Document(f"{name}:{row.number}", text, carried_columns(record, options))
