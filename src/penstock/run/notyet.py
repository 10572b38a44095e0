"""What the run file can say and this version cannot do: refused, never quietly something else.

The two lists are the only place that knows; when a room gets built, its line goes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.catalog.shapes import ModelShape
from penstock.errors import NotYet
from penstock.run import fields, toml
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class Gap:
    """A field, the values that work, what the others would be, and what to write now."""

    field: str
    works: Callable[[Any], bool]
    what: str
    fix: str


def _only(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _never(_: Any) -> bool:
    return False


GAPS = [
    Gap("dir", lambda value: "://" not in value, "a run at a URL", "write a folder"),
    Gap("train.sync.local_steps", _only(1), "DiLoCo", "write 1"),
    Gap("train.sync.compress", _only("none", "bf16"), "int8 and powersgd", 'write "bf16"'),
    Gap("cluster.use", _only("here"), "any cluster but this machine", 'write "here"'),
    Gap("cluster.launcher", _only("local"), "any launcher but local", 'write "local"'),
    Gap("log.tensorboard", _never, "logging to TensorBoard", "remove it"),
    Gap("log.mlflow", _never, "logging to MLflow", "remove it"),
]

# Parts of a preset's shape: (whether the shape has it, what it is).
SHAPE_GAPS: list[tuple[Callable[[ModelShape], bool], str]] = [
    (lambda shape: shape.kv_rank > 0, "latent attention"),
]


def not_yet(run: Run) -> list[str]:
    """A line for each field that asks for something this version does not do."""
    lines = [line for gap in GAPS if (line := _line(run, gap))]
    shape = run.model.base() if run.model.preset else None
    if shape:
        named = f"model.preset = {toml.value(run.model.preset)}"
        for has, what in SHAPE_GAPS:
            if has(shape):
                lines.append(f"{named}: {what} is not built yet; choose a dense preset")
    return lines


def refuse(run: Run) -> None:
    """Raises `NotYet` with all of them, if there are any."""
    lines = not_yet(run)
    if lines:
        raise NotYet("\n".join(lines))


def _line(run: Run, gap: Gap) -> str:
    value = fields.get(run, tuple(gap.field.split(".")))
    if value is None or gap.works(value):
        return ""
    shown = (
        "" if fields.by_path()[tuple(gap.field.split("."))].section else f" = {toml.value(value)}"
    )
    verb = "are" if " and " in gap.what else "is"
    return f"{gap.field}{shown}: {gap.what} {verb} not built yet; {gap.fix}"
