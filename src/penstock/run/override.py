"""Overrides from the command line: "train.tokens=2B"."""

import datetime
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.run.fields import Field, Path, Schema
from penstock.secret import visible_override


@dataclass(frozen=True)
class Override:
    path: tuple[str, ...]
    value: Any


def read(texts: Sequence[str], schema: Schema[Any]) -> tuple[list[Override], list[str]]:
    """The overrides, and a line for each that is none."""
    overrides, problems = [], []
    for text in texts:
        name, equals, raw = text.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        if not equals or not all(path) or not raw.strip():
            what = f"not an override; write FIELD=VALUE, such as {schema.override}"
            problems.append(f"command line: {visible_override(text)!r}: {what}")
        else:
            overrides.append(Override(path, _value(schema.by_path.get(path), raw.strip())))
    return overrides, problems


def apply(overrides: list[Override], table: dict[str, Any], schema: Schema[Any]) -> list[str]:
    """Writes the overrides into a file's table; gives a line for each that has no place there."""
    problems = []
    for override in overrides:
        inner = table
        for name in override.path[:-1]:
            below = inner.setdefault(name, {})
            if not isinstance(below, dict):
                whole = ".".join(override.path)
                problems.append(
                    f"command line: {whole}: the file gives `{name}` as a value; fix it there"
                )
                break
            inner = below
        else:
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
