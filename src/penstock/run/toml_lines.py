"""Line numbers of the keys of a TOML text, which `tomllib` does not give.

`tomllib` has parsed the text already, so this scanner only has to handle valid TOML.
"""

import re
import tomllib
from bisect import bisect_right

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"[ \t]*(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'",
    re.S,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")


class KeyLines:
    """Line numbers of the keys of one text, counted from 1."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._starts = [0, *(match.end() for match in re.finditer("\n", self._text))]
        self._lines: dict[Path, int] = {}
        self._tables_in: dict[Path, int] = {}  # how many [[tables]] a list has so far
        self._scan()

    def of(self, path: Path) -> int | None:
        """Return the line of a key, or of the nearest table above it that is in the text."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return self._lines[path[:end]]
        return None

    def _scan(self) -> None:
        table: Path = ()
        at = self._skip(0)
        while at < len(self._text):
            if self._text[at] == "[":
                at, table = self._header(at)
            else:
                at = self._pair(at, table)
            at = self._skip(at)

    def _skip(self, at: int) -> int:
        match = _BLANK.match(self._text, at)
        return match.end() if match else at

    def _note(self, path: Path, at: int) -> None:
        line = bisect_right(self._starts, at)
        for end in range(1, len(path) + 1):
            self._lines.setdefault(path[:end], line)

    def _key(self, at: int) -> tuple[int, list[str]]:
        """Return the end of a dotted key, and its parts."""
        parts = []
        while match := _KEY.match(self._text, at):
            quoted = match[1][0] in "\"'"
            parts.append(tomllib.loads(f"v = {match[1]}")["v"] if quoted else match[1])
            at = match.end()
            if self._text[at : at + 1] != ".":
                break
            at += 1
        return at, parts

    def _header(self, at: int) -> tuple[int, Path]:
        brackets = 2 if self._text.startswith("[[", at) else 1
        end, parts = self._key(at + brackets)
        path: Path = ()
        for depth, part in enumerate(parts, start=1):
            path = (*path, part)
            if brackets == 2 and depth == len(parts):
                self._tables_in[path] = self._tables_in.get(path, 0) + 1
            if path in self._tables_in:
                path = (*path, self._tables_in[path] - 1)
        self._note(path, at)
        return end + brackets, path

    def _pair(self, at: int, table: Path) -> int:
        end, parts = self._key(at)
        path = (*table, *parts)
        self._note(path, at)
        return self._value(self._skip(end + 1), path)

    def _value(self, at: int, path: Path) -> int:
        """Return the end of the value at `at`; note the keys and elements inside it."""
        opening = self._text[at : at + 1]
        if opening in ("[", "{"):
            return self._inside(at + 1, path, "]" if opening == "[" else "}")
        match = _STRING.match(self._text, at) or _BARE_VALUE.match(self._text, at)
        return match.end() if match and match.end() > at else at + 1

    def _inside(self, at: int, path: Path, closing: str) -> int:
        index = 0
        at = self._skip(at)
        while at < len(self._text) and self._text[at] != closing:
            if closing == "}":
                at = self._pair(at, path)
            else:
                self._note((*path, index), at)
                at = self._value(at, (*path, index))
                index += 1
            at = self._skip(at)
            if self._text[at : at + 1] == ",":
                at = self._skip(at + 1)
        return at + 1
