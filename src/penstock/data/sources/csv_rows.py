"""Split CSV into rows and rows into cells by the rules of RFC 4180, in bounded memory.

A quote opens a cell only at the start of the cell. Inside quotes, a doubled quote is a quote, and
delimiters and line ends are text. A quote closes the cell before a delimiter or the end of the row.
Rows end with a line feed, a carriage return or both. Python's `csv` reads the same cells, but it
has one size limit for the whole process and does not report the position of a row in the file.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from penstock.data.sources.documents import HEAD_BYTES
from penstock.data.sources.records import RawRecord

DELIMITERS = (",", "\t", ";", "|")
_QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"')


class BrokenRow(Exception):
    """Description of what is wrong with a row."""


def split_cells(row: str, delimiter: str) -> list[str]:
    """Return the cells of a row without its line end; raise `BrokenRow` if it is malformed."""
    if '"' not in row:
        return row.split(delimiter)
    found: list[str] = []
    at = 0
    while True:
        if row.startswith('"', at):
            quoted = _QUOTED.match(row, at)
            if not quoted:
                raise BrokenRow(f"the quote that opens cell {len(found) + 1} is not closed")
            found.append(quoted[1].replace('""', '"'))
            at = quoted.end()
            if at < len(row) and row[at] != delimiter:
                where = f"cell {len(found)}: {row[at]!r} follows its closing quote"
                raise BrokenRow(f"{where}; a quote within a quoted cell is written twice")
        else:
            end = row.find(delimiter, at)
            found.append(row[at:] if end < 0 else row[at:end])
            at = len(row) if end < 0 else end
        if at >= len(row):
            return found
        at += 1


def sniff_delimiter(header: str) -> str:
    """Return the delimiter that occurs most often outside of quotes in the first row."""
    plain = _QUOTED.sub("", header)
    counts = [plain.count(one) for one in DELIMITERS]
    return DELIMITERS[counts.index(max(counts))] if any(counts) else DELIMITERS[0]


@lru_cache
def _border(delimiter: str) -> re.Pattern[bytes]:
    borders = delimiter or "".join(DELIMITERS)
    return re.compile(b"[\r\n" + re.escape(borders.encode()) + b"]")


class CsvRows:
    """Rows of a file that are not empty, without their line ends. Iterate once.

    While `delimiter` is empty, all of `DELIMITERS` count; it may be set between two rows. `last` is
    set on a row that ended with the file.
    """

    def __init__(self, blocks: Iterable[bytes], delimiter: str, most_bytes: int) -> None:
        self.delimiter = delimiter
        self._blocks, self._most_bytes = iter(blocks), most_bytes
        self._held = b""
        self._begin = 0  # start of the row in `_held`
        self._at = 0  # end of the scanned bytes in `_held`
        self._offset = 0  # position of `_held` in the file
        self._line, self._number = 1, 0
        self._skipped, self._skipped_lines, self._head = 0, 0, b""  # of a row that is too long

    def __iter__(self) -> Iterator[RawRecord]:
        cell_starts = True
        while self._has_more():
            if cell_starts and self._held[self._at] == ord('"'):
                self._at += 1
                if not self._close_quote():
                    problem = "the file ends within quotes that were opened in it"
                    yield from self._row(0, last=True, problem=problem)
                    return
            if not self._seek_border():
                break
            mark, cell_starts = self._held[self._at], True
            self._at += 1
            if mark == ord("\n"):
                yield from self._row(1)
            elif mark == ord("\r"):
                both = self._has_more() and self._held[self._at] == ord("\n")
                self._at += both
                yield from self._row(1 + both, line_feed=both)
        yield from self._row(0, last=True)

    def _seek_border(self) -> bool:
        """Move to the next delimiter or line end; return False if the file ends before it."""
        border = _border(self.delimiter)
        while self._has_more():
            if found := border.search(self._held, self._at):
                self._at = found.start()
                return True
            self._at = len(self._held)
        return False

    def _close_quote(self) -> bool:
        """Move behind the quote that closes a cell; return False if the file ends before it."""
        while self._has_more():
            found = self._held.find(b'"', self._at)
            if found < 0:
                self._at = len(self._held)
                continue
            self._at = found + 1
            if not self._has_more() or self._held[self._at] != ord('"'):
                return True
            self._at += 1
        return False

    def _has_more(self) -> bool:
        """Return whether a byte is left to scan; read the next block if necessary."""
        if self._at < len(self._held):
            return True
        most = max(self._most_bytes, HEAD_BYTES) + 2  # with its line end
        if self._skipped + self._at - self._begin > most:
            self._head = self._head or self._held[self._begin :][:HEAD_BYTES]
            self._skipped += self._at - self._begin
            self._skipped_lines += self._held.count(b"\n", self._begin, self._at)
            self._begin = self._at
        block = next(self._blocks, b"")
        self._offset += self._begin
        self._held = self._held[self._begin :] + block
        self._begin, self._at = 0, self._at - self._begin
        return bool(block)

    def _row(
        self, end: int, last: bool = False, problem: str = "", line_feed: bool = True
    ) -> Iterator[RawRecord]:
        """Yield the row that ends here, if it is not empty.

        `end` is the length of its line end; old Mac files have one without a line feed.
        """
        found = self._held[self._begin : max(self._at - end, self._begin)]
        size = self._skipped + self._at - self._begin - end
        lines = self._skipped_lines + self._held.count(b"\n", self._begin, self._at)
        lines += not line_feed
        if size:
            self._number += 1
            long = size > self._most_bytes
            content = (self._head or found[:HEAD_BYTES]) if long else found
            offset = self._offset + self._begin - self._skipped
            yield RawRecord(self._number, offset, content, long, last, self._line, problem)
        self._line += lines
        self._begin = self._at
        self._skipped, self._skipped_lines, self._head = 0, 0, b""
