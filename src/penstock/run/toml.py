"""TOML in both directions: bounded parsing, and writing of the types that a run file holds.

Parsing is bounded because `tomllib` needs gigabytes of memory for a key of 50,000 parts. Writing is
done here and not by tomli-w, which writes every array with one element per line: readings of a
probe would take ten thousands of lines. Messages and the reference also need single values on one
line, for which tomli-w has no function.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
# A string, a comment, or the text between them. An unclosed string matches nothing.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|'
    r"'''.*?'''(?!')|"
    r'"(?!"")(?:[^"\\\n]|\\.)*"|'
    r"'(?!'')[^'\n]*'|"
    r"#[^\n]*|"
    r"(?P<plain>[^\"'#]+)",
    re.S,
)
MAX_PARTS = 16  # of a dotted key
MAX_DEPTH = 32  # of lists and tables in each other
MAX_KEYS = 10_000


class TooLarge(ValueError):
    """A TOML text that is larger or deeper than any that Penstock reads."""


def parse(text: str, most_keys: int = MAX_KEYS) -> dict[str, Any]:
    """Parse TOML. Raises ValueError; TooLarge if depth or number of keys is out of bounds."""
    _refuse_too_much(text, most_keys)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TooLarge("nested too deeply") from None


def _refuse_too_much(text: str, most_keys: int) -> None:
    """Raise TooLarge by counting dots, brackets and equals signs outside strings and comments.

    The scan stops at an unclosed string: the parser stops there too.
    """
    keys = depth = dots = at = 0
    while token := _TOKEN.match(text, at):
        at = token.end()
        if token["plain"] is None:
            continue
        for mark in re.finditer(r"[.=\n,\[\]{}]", token["plain"]):
            if mark[0] == ".":
                dots += 1
                if dots >= MAX_PARTS:
                    raise TooLarge(f"a key has more than {MAX_PARTS} parts")
                continue
            dots = 0
            if mark[0] == "=":
                keys += 1
            elif mark[0] in "[{":
                keys, depth = keys + 1, depth + 1  # the header of a table, or an inner one
            elif mark[0] in "]}":
                depth -= 1
            if keys > most_keys:
                raise TooLarge(f"it has more than {most_keys:,} keys and lists")
            if depth > MAX_DEPTH:
                raise TooLarge("nested too deeply")


def format_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def format_value(item: Any) -> str:
    """Return one value on one line."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return _string(item)
    if isinstance(item, float):
        return _float(item)
    if isinstance(item, Mapping):
        return (
            "{"
            + ", ".join(f"{format_key(str(k))} = {format_value(v)}" for k, v in item.items())
            + "}"
        )
    if isinstance(item, Sequence):
        return "[" + ", ".join(map(format_value, item)) + "]"
    return str(item)  # whole numbers, and dates in messages


def format_document(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of a table: its values first, then its tables and lists of tables."""
    for name, item in table.items():
        if not _is_table(item) and not _is_tables(item):
            yield f"{format_key(name)} = {format_value(item)}"
    for name, item in table.items():
        inner = (*path, name)
        header = ".".join(map(format_key, inner))
        if _is_table(item):
            yield from ("", f"[{header}]", *format_document(item, inner))
        elif _is_tables(item):
            for part in item:
                yield from ("", f"[[{header}]]", *format_document(part, inner))


def _is_table(item: Any) -> bool:
    return isinstance(item, Mapping)


def _is_tables(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(map(_is_table, item))


def _string(text: str) -> str:
    # TOML has the escapes of JSON, and also needs DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _float(number: float) -> str:
    text = repr(number)
    return text if "." in text or "e" in text or "n" in text else f"{text}.0"
