"""Field types of the cluster file: sizes, rates, watts, latencies, and readings of a probe."""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from penstock.errors import nearest
from penstock.run.schema import quantity
from penstock.run.schema.section import number

FLOP_UNITS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15, "EFLOP/s": 1e18}
WATT_UNITS = {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}
DEAREST_USD_PER_KWH = 2.0  # twice what a remote site pays that burns oil
LATENCY_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

_TEXT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*(\S+)\s*", re.A)

Points = tuple[tuple[float, ...], ...]


def in_units(units: dict[str, float], example: str) -> Callable[[object], float]:
    """Return a reader of positive quantities: a plain number, or text with one of `units`."""
    wrong = f"not a quantity in {', '.join(units)}; write {example}"

    def read(raw: object) -> float:
        if not isinstance(raw, str):
            return number(above=0, below=1e300)(raw)
        match = _TEXT.fullmatch(raw)
        if not match or match[2] not in units:
            raise ValueError(wrong)
        return number(above=0, below=1e300)(float(match[1]) * units[match[2]])

    return read


def above_zero(read: Callable[[object], float]) -> Callable[[object], float]:
    """Return a reader that also refuses zero."""

    def positive(raw: object) -> float:
        value = read(raw)
        if value <= 0:
            raise ValueError("nothing; write more than zero, or leave the field out")
        return value

    return positive


def one_of(*words: str) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw not in words:
            guess = nearest(raw, words) if isinstance(raw, str) else ""
            raise ValueError(f"not a choice; write {_quoted(words)}. {guess}".rstrip(" ."))
        return raw

    return read


def _quoted(words: tuple[str, ...]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def usd_per_kwh(raw: object) -> float:
    """Read a price of electricity; refuse one that nobody pays, because it is in cents."""
    value = number(least=0, below=1e300)(raw)
    if value > DEAREST_USD_PER_KWH:
        raise ValueError(f"nobody pays that much: is it in cents? Write USD: {value / 100:g}")
    return value


def points(*sizes: str) -> Callable[[object], Points]:
    """Return a reader of rows of numbers: the named sizes, then seconds."""
    wrong = f"not readings; write rows of [{', '.join(sizes)}, seconds], all above zero"

    def read(raw: object) -> Points:
        rows: list[Any] = list(raw) if isinstance(raw, list | tuple) else [None]
        for row in rows:
            if not isinstance(row, list | tuple) or len(row) != len(sizes) + 1:
                raise ValueError(wrong)
            if not all(_is_reading(value) for value in row):
                raise ValueError(wrong)
        return tuple(tuple(float(value) for value in row) for row in rows)

    return read


def _show(rows: Points) -> list[list[float]]:
    """Return rows with sizes as whole numbers and seconds with five digits."""
    return [[*(int(size) for size in row[:-1]), float(f"{row[-1]:.5g}")] for row in rows]


def _is_reading(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _schema(title: str, *kinds: str) -> WithJsonSchema:
    return WithJsonSchema({"title": title, "type": kinds[0] if len(kinds) == 1 else list(kinds)})


Kind = Annotated[str, PlainValidator(one_of("cuda", "cpu")), _schema('"cuda" or "cpu"', "string")]
Size = Annotated[
    int,
    PlainValidator(above_zero(quantity.size_bytes)),
    PlainSerializer(quantity.show_bytes),
    _schema("size", "string", "integer"),
]
Rate = Annotated[
    float,
    PlainValidator(above_zero(quantity.rate_bytes_per_s)),
    PlainSerializer(lambda rate: f"{rate / 1e9!r} GB/s"),
    _schema("rate", "string"),
]
Flops = Annotated[
    float, PlainValidator(in_units(FLOP_UNITS, '"790 TFLOP/s"')), _schema("FLOP/s", "string")
]
Watts = Annotated[
    float, PlainValidator(in_units(WATT_UNITS, '700 or "2 MW"')), _schema("watts", "number")
]
UsdPerKwh = Annotated[float, PlainValidator(usd_per_kwh), _schema("number", "number")]
Latency = Annotated[
    float, PlainValidator(in_units(LATENCY_UNITS, '"5 us"')), _schema("latency", "string")
]
AtLeastOne = Annotated[
    float, PlainValidator(number(least=1, below=1e6)), _schema("number", "number")
]
Sized = Annotated[
    Points,
    PlainValidator(points("size")),
    PlainSerializer(_show),
    _schema("rows of [size, seconds]", "array"),
]
Products = Annotated[
    Points,
    PlainValidator(points("rows", "inner", "columns")),
    PlainSerializer(_show),
    _schema("rows of [rows, inner, columns, seconds]", "array"),
]
Heads = Annotated[
    Points,
    PlainValidator(points("sequence", "head width", "heads")),
    PlainSerializer(_show),
    _schema("rows of [sequence, head width, heads, seconds]", "array"),
]
