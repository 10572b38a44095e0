"""Run file fields that this version does not support: refused, never silently ignored.

The list is the only place that knows them; remove a line when its feature is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import NotYet
from penstock.run import fields, toml
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class UnsupportedField:
    """A field, the values that work, what the other values mean, and what to write instead."""

    field: str
    works: Callable[[Any], bool]
    what: str
    fix: str


UNSUPPORTED_FIELDS = [
    UnsupportedField("dir", lambda value: "://" not in value, "a run at a URL", "write a folder"),
]


def unsupported_lines(run: Run) -> list[str]:
    """Return a line for each field that needs something this version does not do."""
    return [line for gap in UNSUPPORTED_FIELDS if (line := _line(run, gap))]


def refuse_unsupported(run: Run) -> None:
    """Raise `NotYet` with all unsupported fields, if there are any."""
    lines = unsupported_lines(run)
    if lines:
        raise NotYet("\n".join(lines))


def _line(run: Run, gap: UnsupportedField) -> str:
    value = fields.value_at(run, tuple(gap.field.split(".")))
    if value is None or gap.works(value):
        return ""
    shown = (
        ""
        if fields.RUN.by_path[tuple(gap.field.split("."))].section
        else f" = {toml.format_value(value)}"
    )
    verb = "are" if " and " in gap.what else "is"
    return f"{gap.field}{shown}: {gap.what} {verb} not built yet; {gap.fix}"
