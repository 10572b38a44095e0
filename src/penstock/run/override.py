"""Overrides of a run file: "train.tokens=2B" on the command line, tables from Python."""

import copy
import datetime
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.run.fields import Path, Schema, SchemaField
from penstock.secret import visible_override

COMMAND_LINE = "command line"
PYTHON = "override"  # name of a table from Python in messages
OverrideInput = str | Mapping[str, Any]  # "train.tokens=2B", or {"train": {"tokens": "2B"}}


@dataclass(frozen=True)
class Override:
    """One field and its new value; None removes the field."""

    path: tuple[str, ...]
    value: Any
    source: str = COMMAND_LINE


def parse_overrides(
    given: Sequence[OverrideInput], schema: Schema[Any]
) -> tuple[list[Override], list[str]]:
    """Return the overrides, and a message for each invalid one."""
    overrides: list[Override] = []
    problems: list[str] = []
    for item in given:
        if isinstance(item, Mapping):
            overrides += _flattened(item)
            continue
        name, equals, raw = item.partition("=") if isinstance(item, str) else ("", "", "")
        path = tuple(part.strip() for part in name.split("."))
        if not isinstance(item, str):
            what = f'not an override; write "{schema.override}" or a dict'
            problems.append(f"{PYTHON}: {item!r}: {what}")
        elif not equals or not all(path) or not raw.strip():
            what = f"not an override; write FIELD=VALUE, such as {schema.override}"
            problems.append(f"{COMMAND_LINE}: {visible_override(item)!r}: {what}")
        else:
            overrides.append(Override(path, _value(schema.by_path.get(path), raw.strip())))
    return overrides, problems


def _flattened(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Override]:
    """Yield an override for each value of a table; its names may be nested, dotted or both."""
    for name, value in table.items():
        path = (*above, *str(name).split("."))
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, path)
        else:
            yield Override(path, to_toml_value(value), PYTHON)


def to_toml_value(value: Any) -> Any:
    """Convert a Python value to one that TOML can hold, if that is obvious."""
    if isinstance(value, Mapping):
        return {
            str(name): to_toml_value(inner) for name, inner in value.items() if inner is not None
        }
    if isinstance(value, list | tuple):
        return [to_toml_value(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else copy.copy(value)


def apply_overrides(
    overrides: list[Override], table: dict[str, Any], schema: Schema[Any]
) -> list[str]:
    """Write the overrides into a table; return a message for each that does not fit there."""
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


def _value(field: SchemaField | None, raw: str) -> Any:
    """Return the value as TOML if it parses, else as text; a text field takes `7` as text too."""
    try:
        table = tomllib.loads(f"v = {raw}")
    except (ValueError, RecursionError):
        return raw
    value = table["v"]
    if len(table) > 1 or isinstance(value, datetime.date | datetime.time):
        return raw
    is_text = field and not field.section and field.kind["title"] in ("text", "name")
    return raw if is_text and not isinstance(value, str) else value
