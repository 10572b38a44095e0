"""CSV and TSV: the first row names the columns, each row after it is a document."""

from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from penstock.data.format.locate import PACKINGS
from penstock.data.sources.blocks import Blocks
from penstock.data.sources.csv_rows import BrokenRow, CsvRows, cells, sniff
from penstock.data.sources.cut import Cut
from penstock.data.sources.damage import finish
from penstock.data.sources.decode import aside, decode, not_decodable
from penstock.data.sources.files import File
from penstock.data.sources.messages import NotChat, carried, take_conversation
from penstock.data.sources.options import Options
from penstock.data.sources.pieces import Document, Rejected, Tally

BROKEN = "broken CSV"


def read(
    file: File, stored: BinaryIO, options: Options, tally: Tally
) -> Iterator[Document | Rejected]:
    """The documents of a file; a row that is broken costs itself alone."""
    blocks = Blocks(stored, file.packing)
    table = Table(file, blocks, options)
    try:
        columns = table.columns()
        if columns:
            _refuse_missing(table.names, options)
        for row in table.rows:
            if row.last and blocks.damage:
                yield aside(file.name, row, "cut off by damage", blocks.damage.reason)
                continue
            try:
                yield _document(file.name, row, table, columns, tally)
            except (Refused, NotChat) as why:
                yield aside(file.name, row, *why.args)
    except Refused as why:
        for _ in table.rows:  # the identity of the file needs every byte
            pass
        if table.header and not blocks.damage:
            yield aside(file.name, table.header, *why.args)
    yield from finish(file.name, blocks, tally)
    if table.unclosed and not blocks.damage:
        tally.damage = "unclosed quote"


class Refused(Exception):
    """Reason and detail of a row that is not taken, or of a file without the columns asked for."""


class Table:
    """A file of rows whose first names the columns."""

    def __init__(self, file: File, blocks: Blocks, options: Options) -> None:
        self.header: Cut | None = None
        self.names: list[str] = []  # of the columns, as they stand there
        self.unclosed = False  # the file ends within quotes
        self.options, self.blocks = options, blocks
        self._rows = CsvRows(blocks, options.delimiter or _by_name(file), options.most_bytes)
        self.rows = self._noticing(iter(self._rows))

    def columns(self) -> list[str]:
        """The names in the first row; an empty one and the second of a kind get a number."""
        self.header = next(self.rows, None)
        if self.header is None:
            return []
        if self.header.last and self.blocks.damage:
            raise Refused("cut off by damage", self.blocks.damage.reason)
        if not self._rows.delimiter:
            self._rows.delimiter = sniff(self._text(self.header)[0])
        self.names = [name.strip() for name in self.cells(self.header)[0]]
        seen: Counter[str] = Counter()
        out = []
        for place, name in enumerate(self.names, 1):
            name = name or f"column_{place}"
            seen[name] += 1
            out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        return out

    def cells(self, row: Cut) -> tuple[list[str], str]:
        """The cells of a row, and the encoding that they are in."""
        text, encoding = self._text(row)
        try:
            return cells(text, self._rows.delimiter), encoding
        except BrokenRow as why:
            raise Refused(BROKEN, str(why)) from None

    def _text(self, row: Cut) -> tuple[str, str]:
        if row.too_long:
            detail = f"over {self.options.most_bytes} bytes"
            raise Refused("too long", f"{detail}; {row.problem}" if row.problem else detail)
        if row.problem:
            raise Refused(BROKEN, row.problem)
        if b"\0" in row.content:
            raise Refused("NUL bytes", "binary, or text in UTF-16 without its mark")
        # UTF-16 and UTF-32 with a mark were turned into UTF-8 on the way.
        stored_as = self.blocks.encoding
        encodings = self.options.encodings if stored_as == "utf-8" else ("utf-8",)
        decoded = decode(row.content, encodings)
        if decoded is None:
            raise Refused(not_decodable(encodings))
        return decoded[0], decoded[1] if stored_as == "utf-8" else stored_as

    def _noticing(self, rows: Iterator[Cut]) -> Iterator[Cut]:
        for row in rows:
            self.unclosed |= bool(row.problem)
            yield row


def _by_name(file: File) -> str:
    """The delimiter that a file's name tells; empty: its first row tells."""
    name = file.name.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    return "\t" if name.endswith((".tsv", ".tab")) else ""


def _refuse_missing(names: list[str], options: Options) -> None:
    for field in options.chat or (options.text,):
        if names.count(field) != 1:
            reason = "no text"
            if options.chat:
                reason = "no messages" if options.messages else "no prompt and response"
            found = ", ".join(names)[:200]
            raise Refused(reason, f"no single column {field!r} in the first row; found {found}")


def _document(name: str, row: Cut, table: Table, columns: list[str], tally: Tally) -> Document:
    found, encoding = table.cells(row)
    if len(found) != len(columns):
        raise Refused("wrong number of cells", f"{len(found)} instead of {len(columns)}")
    record: dict[str, object] = dict(zip(columns, found, strict=True))
    options = table.options
    if options.chat:
        text = take_conversation(record, options)
    else:
        text = str(record.pop(options.text))
    if not text.strip():
        raise Refused("empty")
    tally.encodings[encoding] += 1
    return Document(f"{name}:{row.number}", text, carried(record, options))
