"""Split JSON files into rows: one object per line, an array of objects, or multi-line objects.

The first bytes decide. A file that begins with `[` is an array. One that begins with `{`, a line
feed and a quote holds objects over several lines. Anything else is lines. Rows are found by
brackets and quotes only and parsed later, so that a broken row does not affect its neighbours.
Memory stays within `most_bytes` and two blocks, whatever the size of the file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from penstock.data.sources.documents import HEAD_BYTES
from penstock.data.sources.records import RawRecord, split_stream

_HEAD_BYTES = 4096  # they decide the shape of a file
_BLANKS = b" \t\r\n"
_BLANK = re.compile(rb"[ \t\r\n]*")
_ARRAY = re.compile(rb'\s*\[\s*(?:[\[{"\]0-9-]|true|false|null|\Z)')
_OBJECTS = re.compile(rb'\s*\{[ \t\r]*\n\s*"')
# Matches a whole string in one step; a string that ends in a later block is scanned piecewise.
_OUTSIDE = re.compile(rb'"[^"\\\n]*+(?:\\[\s\S][^"\\\n]*+)*+"|["{}\[\],]')
_INSIDE = re.compile(rb'["\\\n]')  # a string never contains a line feed
_OPENS = {ord("}"): ord("{"), ord("]"): ord("[")}
_DEEPEST = 1 << 16  # brackets that are remembered; deeper nesting is not a row


class JsonRows:
    """Rows of a file, in order. Iterate once; `unclosed` is final at the end."""

    def __init__(self, blocks: Iterable[bytes], most_bytes: int) -> None:
        self.unclosed = False  # the file is an array and ends before its `]`
        self._blocks = iter(blocks)
        self._most_bytes = most_bytes

    def __iter__(self) -> Iterator[RawRecord]:
        first = b""
        while len(first) < _HEAD_BYTES and (block := next(self._blocks, b"")):
            first += block
        blocks = chain([first], self._blocks)
        head = first[:_HEAD_BYTES]
        if _ARRAY.match(head):
            yield from self._array(first)
        elif _OBJECTS.match(head):
            yield from _RowScanner(self._blocks, self._most_bytes, first).objects()
        else:
            yield from split_stream(blocks, b"\n", self._most_bytes)

    def _array(self, first: bytes) -> Iterator[RawRecord]:
        opened = first.index(b"[") + 1
        scan = _RowScanner(self._blocks, self._most_bytes, first, opened)
        yield from scan.elements()
        self.unclosed = not scan.closed
        # Text after the array is read as lines, so that it is reported and not dropped.
        for line in split_stream(chain([scan.rest()], self._blocks), b"\n", self._most_bytes):
            yield replace(
                line,
                number=scan.number + line.number,
                offset=scan.offset + line.offset,
                line=scan.line + line.number - 1,
            )


class _RowScanner:
    """Scanner that finds where rows end, block by block."""

    def __init__(
        self, blocks: Iterator[bytes], most_bytes: int, first: bytes, opened: int = 0
    ) -> None:
        self.closed = False  # True after the `]` of an array
        self.number = 0  # of the last row
        self.line = 1 + first.count(b"\n", 0, opened)  # where the next row may begin
        self._blocks, self._most_bytes = blocks, most_bytes
        self._held, self._offset = first, 0  # bytes, and where they begin in the file
        self._begin = opened  # start of the row in `_held`
        self._at = opened  # end of the scanned bytes in `_held`
        self._skipped, self._skipped_lines, self._head = 0, 0, b""  # of a row that is too long
        self._in_string = False
        self._open = bytearray()  # brackets within the row

    @property
    def offset(self) -> int:
        """Return the position in the file of the first byte after the last row."""
        return self._offset + self._begin

    def rest(self) -> bytes:
        """Return the bytes after the last row that are already read."""
        return self._held[self._begin :]

    def elements(self) -> Iterator[RawRecord]:
        """Yield the elements of an array whose `[` was read."""
        after_comma = False
        while (mark := self._next()) is not None:
            if mark == b"," and not self._open:
                yield self._row(1, "there is no row before this comma")
                after_comma = True
            elif mark == b"]" and not self._open:
                self.closed = True
                if after_comma or self._pending(1):
                    yield self._row(1, "there is no row after the last comma")
                else:
                    self._next_row()
                return
            else:
                self._bracket(mark[0])
        yield from self._last()

    def objects(self) -> Iterator[RawRecord]:
        """Yield objects that follow each other."""
        while (mark := self._next()) is not None:
            inside = bool(self._open)
            self._bracket(mark[0])
            if inside and not self._open:
                yield self._row(0)
        yield from self._last()

    def _last(self) -> Iterator[RawRecord]:
        """Yield what is left at the end of the file."""
        whole = not (self._in_string or self._open)
        self._at = len(self._held)
        if self._pending(0):
            row = self._row(0)
            problem = "" if whole or row.too_long else "the file ends within it"
            yield replace(row, problem=problem, last=True)

    def _next(self) -> bytes | None:
        """Return the next bracket or comma outside of strings; None at the end of the file."""
        while True:
            search = _INSIDE if self._in_string else _OUTSIDE
            found = search.search(self._held, self._at)
            if found is None:
                self._at = max(self._at, len(self._held))
                if not self._read_on():
                    return None
                continue
            self._at = found.end()
            mark = found[0]
            if len(mark) > 1:
                continue
            if mark == b"\\":
                self._at += 1  # skip the escaped byte, which may be in the next block
            elif mark == b"\n":
                self._in_string = False
                if self._lost_quote():
                    self._open.clear()
                    return b","
            elif mark == b'"':
                self._in_string = not self._in_string
            else:
                return mark

    def _lost_quote(self) -> bool:
        """Return whether a row ends with this line although one of its strings is not closed."""
        row = self._held[self._begin : self._at - 1]
        within = self._skipped + len(row) <= self._most_bytes
        return within and row.endswith((b"},", b"},\r"))

    def _read_on(self) -> bool:
        self._skip_blanks(len(self._held))
        pending = len(self._held) - self._begin
        if self._skipped + pending > max(self._most_bytes, HEAD_BYTES):
            self._head = self._head or self._held[self._begin :][:HEAD_BYTES]
            self._skipped += pending
            self._skipped_lines += self._held.count(b"\n", self._begin)
            self._begin = len(self._held)
        block = next(self._blocks, b"")
        self._offset += self._begin
        self._held = self._held[self._begin :] + block
        self._begin, self._at = 0, self._at - self._begin
        return bool(block)

    def _skip_blanks(self, end: int) -> None:
        """Move the start of the row behind leading white space."""
        if not self._skipped:
            found = _BLANK.match(self._held, self._begin, end)
            assert found
            self.line += self._held.count(b"\n", self._begin, found.end())
            self._begin = found.end()

    def _bracket(self, mark: int) -> None:
        if mark in b"{[":
            if len(self._open) < _DEEPEST:
                self._open.append(mark)
        elif mark in _OPENS and (at := self._open.rfind(_OPENS[mark])) >= 0:
            del self._open[at:]

    def _pending(self, mark: int) -> bool:
        """Return whether there is anything but white space before the mark of `mark` bytes."""
        self._skip_blanks(self._at - mark)
        return bool(self._skipped or self._begin < self._at - mark)

    def _row(self, mark: int, if_empty: str = "") -> RawRecord:
        """Return the row that ends here, before a mark of `mark` bytes."""
        self._skip_blanks(self._at - mark)
        found = self._held[self._begin : self._at - mark]
        offset, line = self.offset - self._skipped, self.line
        too_long = self._skipped + len(found) > self._most_bytes
        content = (self._head or found[:HEAD_BYTES]) if too_long else found.rstrip(_BLANKS)
        self.number += 1
        self._next_row()
        problem = "" if content else if_empty
        return RawRecord(self.number, offset, content, too_long, line=line, problem=problem)

    def _next_row(self) -> None:
        self.line += self._skipped_lines + self._held.count(b"\n", self._begin, self._at)
        self._begin = self._at
        self._skipped, self._skipped_lines, self._head = 0, 0, b""
        self._open.clear()
        self._in_string = False
