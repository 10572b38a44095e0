"""YAML of what an engine submits, without a YAML library: the core install has none.

Only what engines submit can be written: tables, lists, texts, whole numbers, true, false and null.
A text stands without quotes only where no YAML parser, old or new, could read something else.
"""

import re
from collections.abc import Iterator

Value = str | int | bool | None | dict[str, "Value"] | list["Value"]

# Begins with a letter or a slash, so that it is no number, date or indicator.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def to_yaml(*documents: Value) -> str:
    """Return YAML documents, divided by `---`."""
    return "---\n".join("\n".join(_lines(one)) + "\n" for one in documents)


def _lines(value: Value) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _entry(f"{_short(name)}:", inner)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from _item(inner)
    elif isinstance(value, str) and _fits_block(value):
        yield "|"
        yield from (f"  {line}".rstrip(" ") for line in value.splitlines())
    else:
        yield _short(value)


def _entry(name: str, value: Value) -> Iterator[str]:
    """Yield the lines of one field of a table."""
    first, *rest = _lines(value)
    if isinstance(value, dict | list) and value:
        yield name
        yield from (f"  {line}".rstrip(" ") for line in (first, *rest))
    else:
        yield f"{name} {first}"
        yield from rest


def _item(value: Value) -> Iterator[str]:
    """Yield the lines of one item of a list."""
    first, *rest = _lines(value)
    yield f"- {first}"
    yield from (f"  {line}".rstrip(" ") for line in rest)


def _fits_block(text: str) -> bool:
    """Return whether a text reads well, and back as it was, as a block of lines.

    Lines that end with white space, and characters that cannot be seen, are kept in quotes.
    """
    lines = text.split("\n")
    return (
        len(lines) > 2
        and lines[-1] == ""
        and lines[-2] != ""
        and not lines[0].startswith((" ", "\t"))
        and lines[0] != ""
        and all(line.replace("\t", "").isprintable() for line in lines)
        and not any(line.endswith((" ", "\t")) for line in lines)
    )


def _short(value: Value) -> str:
    """Return a value that takes one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list):
        return "[]"
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character == "\n":
        return "\\n"
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\U{number:08x}"
