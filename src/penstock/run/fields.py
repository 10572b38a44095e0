"""A schema as a list: every field of a kind of file with its dotted path, in the file's order.

Messages, overrides, the reference and the diff of runs all need to know which fields exist. They
ask here, so that the section classes stay the only description.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from functools import cached_property
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import WithJsonSchema
from pydantic.fields import FieldInfo

from penstock.run.schema.model import SOURCES
from penstock.run.schema.run import Run
from penstock.run.schema.section import Section
from penstock.run.schema.train import LENGTHS

Path = tuple[str, ...]
S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class SchemaField:
    """One field: its path in the file, and its section if it is a table."""

    path: Path
    info: FieldInfo
    section: type[Section] | None  # of a table, or of each table in a list
    repeated: bool  # a list of tables: [[data.mix]]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that a field takes, if it takes nothing else."""
        annotation = _without_none(self.info.annotation)
        return get_args(annotation) if get_origin(annotation) is Literal else ()

    @property
    def kind(self) -> dict[str, Any]:
        """The JSON schema of the value (not of a section); its title is the type in words."""
        if self.choices:
            quoted = [f'"{word}"' for word in self.choices]
            title = f"{', '.join(quoted[:-1])} or {quoted[-1]}"
            return {"title": title, "type": "string", "enum": list(self.choices)}
        schema = _schema(self.info)
        if _is_tuple(_without_none(self.info.annotation)):
            return {"title": f"list of {schema['title']}", "type": "array", "items": schema}
        return schema


@dataclass(frozen=True)
class Schema(Generic[S]):
    """A kind of file: its top section, and the texts that messages about such a file need."""

    root: type[S]
    noun: str  # "run file"
    start: str  # how to fix an empty file
    absent: str  # how to fix a missing file; {path} is its path
    override: str  # an example for the command line
    reference: str  # the command that says what each field takes
    missing: Mapping[Path, str]  # what to write for a section that must be there
    elsewhere: Mapping[str, str] = default(default_factory=dict)  # names in other tools → ours
    one_of: tuple[tuple[Path, ...], ...] = ()  # setting one of a group replaces the others

    @cached_property
    def fields(self) -> tuple[SchemaField, ...]:
        """Every field, sections before their fields."""
        return tuple(walk_fields(self.root, ()))

    @cached_property
    def by_path(self) -> dict[Path, SchemaField]:
        return {field.path: field for field in self.fields}

    def names_in(self, section: Path) -> list[str]:
        """Return the names that a section may have; () is the top of the file."""
        return [field.path[-1] for field in self.fields if field.path[:-1] == section]


RUN = Schema(
    Run,
    noun="run file",
    start="`penstock init` writes one that works",
    absent="`penstock init --out {path}` writes one",
    override="train.tokens=2B",
    reference="penstock schema --markdown",
    missing={("model",): '[model] with preset = "llama-3m"'},
    elsewhere={
        "lr": "train.learning_rate",
        "batch_size": "train.batch_tokens (tokens, not samples)",
        "seq_len": "data.sequence",
        "max_steps": "train.steps",
        "dtype": "train.precision",
        "gpus": "cluster.accelerators",
    },
    one_of=(
        tuple(("train", name) for name in LENGTHS),
        tuple(("model", name) for name in SOURCES.values()),
        (("data", "dataset"), ("data", "mix")),
    ),
)


def python_name(section: type[Section], name: str) -> str:
    """Return the attribute of a name in the file ("from" is `from_`)."""
    aliases = {info.alias: attribute for attribute, info in section.model_fields.items()}
    return aliases.get(name, name) or name


def value_at(run: Run, path: Path) -> Any:
    """Return the value at a path, or None if its section is left out."""
    value: Any = run
    for name in path:
        if value is None:
            return None
        value = getattr(value, python_name(type(value), name))
    return value


def walk_fields(section: type[Section], above: Path) -> Iterator[SchemaField]:
    for attribute, info in section.model_fields.items():
        path = (*above, info.alias or attribute)
        below = _section(info.annotation)
        yield SchemaField(
            path, info, below, repeated=below is not None and _is_tuple(info.annotation)
        )
        if below:
            yield from walk_fields(below, path)


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _without_none(annotation: Any) -> Any:
    """Return X of `X | None`: the type of a field that is set."""
    parts = [part for part in get_args(annotation) if part is not NoneType]
    return parts[0] if NoneType in get_args(annotation) and len(parts) == 1 else annotation


def _is_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and Ellipsis in get_args(annotation)


def _schema(info: FieldInfo) -> dict[str, Any]:
    """Return the `WithJsonSchema` of a type, also inside `X | None` or a list."""
    found: list[Any] = list(info.metadata)
    todo: list[Any] = [info.annotation]
    while todo:
        annotation = todo.pop()
        found += getattr(annotation, "__metadata__", ())
        todo += get_args(annotation)
    return next(dict(item.json_schema or {}) for item in found if isinstance(item, WithJsonSchema))
