"""Base class, field types and `InvalidFields`, which all sections of the run file share.

Each type reads a whole TOML value and words its own error, so that pydantic only collects the
mistakes. A type defines three things: how to read a value, how to write it back, and what an editor
should accept (its JSON schema, whose title is the name of the type for people).
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from penstock.run.schema import quantity


class Section(BaseModel):
    """A table of the run file. Frozen: a run changes by loading it again."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InvalidFields(ValueError):
    """Errors of fields that contradict each other: (field, what is wrong and how to fix it)."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {what}" for field, what in problems))
        self.problems = problems


WRITABLE = ("s3", "gs", "az", "file")


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('not text; put it in quotes: "..."')
    if not value.strip():
        raise ValueError("empty; write something between the quotes or leave the field out")
    if not value.isprintable():
        raise ValueError("holds a character that cannot be printed; write plain text on one line")
    return value


def folder_or_url(value: object) -> str:
    """Check a folder, or a URL of a store that can be written."""
    where = text(value)
    scheme, url, _ = where.partition("://")
    if url and scheme not in WRITABLE:
        known = ", ".join(f"{name}://" for name in WRITABLE)
        raise ValueError(f"not a place that can be written; write a folder or a URL of {known}")
    return where


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not true or false; write true or false without quotes")
    return value


def whole_number(
    least: int, of: str, example: str = "4", most: int = quantity.LARGEST_COUNT
) -> Callable[[object], int]:
    """Return a reader of a count between `least` and `most`; `of` names what is counted."""

    def read(value: object) -> int:
        number = quantity.count(value, of, example)
        if number < least:
            raise ValueError(f"too few {of}; write {least} or more")
        if number > most:
            raise ValueError(f"too many {of}; write {most} or fewer")
        return number

    return read


def number(
    least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> Callable[[object], float]:
    """Return a reader of a number, at least `least`, more than `above` and less than `below`."""
    bounds = [f"of at least {least:g}"] if least > -math.inf else []
    bounds += [f"above {above:g}"] if above > -math.inf else []
    bounds += [f"below {below:g}"] if below < math.inf else []

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("not a number; write it without quotes, such as 0.1")
        if not (least <= value < below and value > above):
            raise ValueError(f"out of range; write a number {' and '.join(bounds)}")
        return float(value)

    return read


def _share_below_one(value: object) -> float:
    part = quantity.share(value)
    if part == 1:
        raise ValueError('leaves nothing; write less than "100%"')
    return part


def _positive_duration(value: object) -> float:
    seconds = quantity.duration_s(value)
    if seconds == 0:
        raise ValueError('a duration of nothing; write for example "2 min"')
    return seconds


def _or(word: str, read: Callable[[object], object]) -> Callable[[object], object]:
    """Return a reader that takes `word`, or what `read` takes."""

    def either(value: object) -> object:
        if value == word:
            return word
        try:
            return read(value)
        except ValueError as error:
            what = error.what if isinstance(error, quantity.BadQuantity) else str(error)
            raise ValueError(f'{what}, or "{word}"') from None

    return either


def _schema(title: str, *kinds: str, pattern: str = "") -> WithJsonSchema:
    schema: dict[str, object] = {
        "title": title,
        "type": kinds[0] if len(kinds) == 1 else list(kinds),
    }
    return WithJsonSchema(schema | ({"pattern": f"^({pattern})$"} if pattern else {}))


_figure = r"[0-9][0-9_]*(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_count = rf"{_figure} *([KkMmBbTt]|[KkMmGgTt]i)?"
_interval = rf"{_count} *steps?|{_figure} *(ms|s|min|h|days?)"
_count_schema = _schema("count", "integer", "number", "string", pattern=_count)
_number_schema = _schema("number", "number")
_share_schema = _schema("share", "number", "string", pattern=rf"{_figure} *%?")

FolderOrUrl = Annotated[str, PlainValidator(folder_or_url), _schema("folder or URL", "string")]
Text = Annotated[str, PlainValidator(text), _schema("text", "string")]
Flag = Annotated[bool, PlainValidator(flag), _schema("true or false", "boolean")]
Tokens = Annotated[
    int, PlainValidator(whole_number(1, "tokens", '524288, "512Ki" or "0.5M"')), _count_schema
]
Steps = Annotated[int, PlainValidator(whole_number(1, "steps", '1000 or "1K"')), _count_schema]
Width = Annotated[int, PlainValidator(whole_number(1, "elements", '4096 or "4Ki"')), _count_schema]
Documents = Annotated[int, PlainValidator(whole_number(1, "documents", "100")), _count_schema]
PositiveCount = Annotated[int, PlainValidator(whole_number(1, "units", most=10**6)), _count_schema]
CountOrZero = Annotated[int, PlainValidator(whole_number(0, "units", most=10**6)), _count_schema]
CountOrFlag = Annotated[
    int,
    PlainValidator(
        lambda value: (
            int(value) if isinstance(value, bool) else whole_number(0, "units", "1")(value)
        )
    ),
    _schema("true, false or count", "boolean", "integer"),
]
CountOrAll = Annotated[
    int | Literal["all"],
    PlainValidator(_or("all", whole_number(1, "accelerators", most=10**6))),
    _schema('count or "all"', "integer", "string", pattern=f"{_count}|all"),
]
CountOrAuto = Annotated[
    int | Literal["auto"],
    PlainValidator(_or("auto", whole_number(1, "steps", "30"))),
    _schema('count or "auto"', "integer", "string", pattern=f"{_count}|auto"),
]
Seed = Annotated[
    int, PlainValidator(whole_number(0, "seeds", "0 or 42")), _schema("whole number", "integer")
]

Positive = Annotated[float, PlainValidator(number(above=0, below=1e300)), _number_schema]
NotNegative = Annotated[float, PlainValidator(number(least=0, below=1e300)), _number_schema]
PositiveOrAuto = Annotated[
    float | Literal["auto"],
    PlainValidator(_or("auto", number(above=0, below=1e300))),
    _schema('number or "auto"', "number", "string", pattern="auto"),
]
Share = Annotated[
    float,
    PlainValidator(quantity.share),
    PlainSerializer(quantity.show_share),
    _share_schema,
]
ShareBelowOne = Annotated[
    float,
    PlainValidator(_share_below_one),
    PlainSerializer(quantity.show_share),
    _share_schema,
]
PartOfRun = Annotated[
    quantity.Portion,
    PlainValidator(quantity.portion),
    PlainSerializer(str),
    _schema(
        "share of the run or steps", "number", "string", pattern=rf"{_figure} *%?|{_count} *steps?"
    ),
]
EveryOrNever = Annotated[
    quantity.Every | Literal["never"],
    PlainValidator(_or("never", quantity.every)),
    PlainSerializer(str),
    _schema('interval or "never"', "string", pattern=f"{_interval}|never"),
]
EveryOrAuto = Annotated[
    quantity.Every | Literal["auto"],
    PlainValidator(_or("auto", quantity.every)),
    PlainSerializer(str),
    _schema('interval or "auto"', "string", pattern=f"{_interval}|auto"),
]
EveryOrAutoOrNever = Annotated[
    quantity.Every | Literal["auto", "never"],
    PlainValidator(_or("never", _or("auto", quantity.every))),
    PlainSerializer(str),
    _schema('interval, "auto" or "never"', "string", pattern=f"{_interval}|auto|never"),
]
Seconds = Annotated[
    float,
    PlainValidator(_positive_duration),
    PlainSerializer(quantity.show_duration),
    _schema("duration", "string", pattern=rf"{_figure} *(ms|s|min|h|days?)"),
]


class Switch(Section):
    """A table that `true` and `false` can stand for: `near = false` is `near = { on = false }`."""

    on: Flag = Field(
        True, description="Whether it is done at all; `false` may stand for the table."
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"on": value} if isinstance(value, bool) else value
