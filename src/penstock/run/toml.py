"""Values and tables as TOML text, for the types a run file holds. Python only reads TOML."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def value(item: Any) -> str:
    """One value on one line."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return _string(item)
    if isinstance(item, float):
        return _float(item)
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key(str(k))} = {value(v)}" for k, v in item.items()) + "}"
    if isinstance(item, Sequence):
        return "[" + ", ".join(map(value, item)) + "]"
    return str(item)  # whole numbers, and dates in messages


def document(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Lines of a table: its values first, then its tables and lists of tables."""
    for name, item in table.items():
        if not _is_table(item) and not _is_tables(item):
            yield f"{key(name)} = {value(item)}"
    for name, item in table.items():
        inner = (*path, name)
        header = ".".join(map(key, inner))
        if _is_table(item):
            yield from ("", f"[{header}]", *document(item, inner))
        elif _is_tables(item):
            for part in item:
                yield from ("", f"[[{header}]]", *document(part, inner))


def _is_table(item: Any) -> bool:
    return isinstance(item, Mapping)


def _is_tables(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(map(_is_table, item))


def _string(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _float(number: float) -> str:
    text = repr(number)
    return text if "." in text or "e" in text or "n" in text else f"{text}.0"
