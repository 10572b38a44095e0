"""Overrides of a run file: "train.tokens=2B" from the command line, tables from Python."""

import copy
import datetime
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.run.fields import Field, Path, Schema
from penstock.secret import visible_override

COMMAND_LINE = "command line"
PYTHON = "override"  # where a table from Python is named in messages
Given = str | Mapping[str, Any]  # "train.tokens=2B", or {"train": {"tokens": "2B"}}


@dataclass(frozen=True)
class Override:
    """One field and its new value; None removes the field."""

    path: tuple[str, ...]
    value: Any
    source: str = COMMAND_LINE


def read(given: Sequence[Given], schema: Schema[Any]) -> tuple[list[Override], list[str]]:
    """The overrides, and a line for each that is none."""
    overrides: list[Override] = []
    problems: list[str] = []
    for one in given:
        if isinstance(one, Mapping):
            overrides += _flattened(one)
            continue
        name, equals, raw = one.partition("=") if isinstance(one, str) else ("", "", "")
        path = tuple(part.strip() for part in name.split("."))
        if not isinstance(one, str):
            what = f'not an override; write "{schema.override}" or a dict'
            problems.append(f"{PYTHON}: {one!r}: {what}")
        elif not equals or not all(path) or not raw.strip():
            what = f"not an override; write FIELD=VALUE, such as {schema.override}"
            problems.append(f"{COMMAND_LINE}: {visible_override(one)!r}: {what}")
        else:
            overrides.append(Override(path, _value(schema.by_path.get(path), raw.strip())))
    return overrides, problems


def _flattened(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Override]:
    """Yield an override for each value of a table, whose names may be nested, dotted or both."""
    for name, value in table.items():
        path = (*above, *str(name).split("."))
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, path)
        else:
            yield Override(path, plain(value), PYTHON)


def plain(value: Any) -> Any:
    """Convert a value from Python to what a TOML file can hold, where that is obvious."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else copy.copy(value)


def apply(overrides: list[Override], table: dict[str, Any], schema: Schema[Any]) -> list[str]:
    """Write the overrides into a file's table; return a line for each that has no place there."""
    problems: list[str] = []
    for override in overrides:
        inner = table
        for name in override.path[:-1]:
            below = inner.setdefault(name, {})
            if isinstance(below, list) and len(below) == 1:  # the only [[source]]
                below = below[0]
            if not isinstance(below, dict):
                whole, what = ".".join(override.path), "as a value"
                if isinstance(below, list):
                    what = f"{len(below)} times"
                problems.append(
                    f"{override.source}: {whole}: the file gives `{name}` {what}; fix it there"
                )
                break
            inner = below
        else:
            if override.value is None:
                inner.pop(override.path[-1], None)
                continue
            inner[override.path[-1]] = override.value
            others = [group for group in schema.one_of if override.path in group]
            _displace(inner, {path for group in others for path in group}, overrides)
    return problems


def _displace(section: dict[str, Any], group: set[Path], overrides: list[Override]) -> None:
    for other in group - {override.path for override in overrides}:
        section.pop(other[-1], None)


def _value(field: Field | None, raw: str) -> Any:
    """TOML where it parses, else the text itself; a field of text takes `7` as text too."""
    try:
        table = tomllib.loads(f"v = {raw}")
    except (ValueError, RecursionError):
        return raw
    value = table["v"]
    if len(table) > 1 or isinstance(value, datetime.date | datetime.time):
        return raw
    is_text = field and not field.section and field.kind["title"] in ("text", "name")
    return raw if is_text and not isinstance(value, str) else value
