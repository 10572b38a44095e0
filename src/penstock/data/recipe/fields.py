"""Field types that only recipes have: bounds that `false` switches off, rows of numbers, words."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from penstock.data.clean.language import CODES
from penstock.data.sources.options import ReadOptions
from penstock.errors import PenstockError, nearest
from penstock.run.schema.quantity import BadQuantity
from penstock.run.schema.section import number, text, whole_number

Steps = tuple[tuple[float, float], ...]


def _or_off(read: Callable[[object], float]) -> Callable[[object], float | None]:
    """Return a reader that also takes `false` for "no bound": TOML has no null."""

    def either(value: object) -> float | None:
        if value is False or value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            what = error.what if isinstance(error, BadQuantity) else str(error)
            raise ValueError(f"{what}, or false to switch this rule off") from None

    return either


def _off(bound: float | str | None) -> float | str | bool:
    return False if bound is None else bound


def _word_shares(value: object) -> tuple[tuple[int, float], ...]:
    rows = _rows(value, "[words, share], such as [[2, 0.2], [3, 0.18]]")
    if not all(first == int(first) and first >= 1 and 0 <= share <= 1 for first, share in rows):
        raise ValueError("each row is [words, share]: a whole number and a share from 0 to 1")
    return tuple((int(first), share) for first, share in rows)


def _steps(value: object) -> Steps:
    rows = _rows(value, "[score, copies], such as [[0.0, 1], [0.8, 2]]")
    scores = [score for score, _ in rows]
    if scores != sorted(set(scores)):
        raise ValueError("scores must grow from row to row; put them in order")
    if any(copies > 100 for _, copies in rows):
        raise ValueError("more than 100 copies of a document; write fewer")
    return tuple(rows)


def _rows(value: object, shape: str) -> list[tuple[float, float]]:
    read = number(least=0, below=1e9)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"not a list of rows; write {shape}")
    if not all(isinstance(row, list | tuple) and len(row) == 2 for row in value):
        raise ValueError(f"each row has two numbers; write {shape}")
    return [(read(first), read(second)) for first, second in value]


def _lists(rows: tuple[tuple[float, float], ...]) -> list[list[float]]:
    return [list(row) for row in rows]


def _separator(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(r'not text; write for example "\n\n" or "<|endoftext|>"')
    return value


def _delimiter(value: object) -> str:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '\r\n"\0':
        raise ValueError(r'not one character; write for example ";" or "\t"')
    return value


def _encoding(value: object) -> str:
    try:
        ReadOptions(encodings=(text(value),))
    except PenstockError as error:
        raise ValueError(str(error).rstrip(".")) from None
    return text(value)


def _language(value: object) -> str:
    if not isinstance(value, str) or value not in CODES:
        guess = nearest(value, CODES) if isinstance(value, str) else ""
        raise ValueError(
            f'not a language; write a code such as "en", "de" or "zh". {guess}'.strip()
        )
    return value


def _titled(title: str, *kinds: str) -> WithJsonSchema:
    return WithJsonSchema({"title": title, "type": kinds[0] if len(kinds) == 1 else list(kinds)})


BoundOrOff = Annotated[
    float | None,
    PlainValidator(_or_off(number(least=0, below=1e12))),
    PlainSerializer(_off, return_type=Any),
    _titled("number or false", "number", "boolean"),
]
CountOrOff = Annotated[
    int | None,
    PlainValidator(_or_off(whole_number(0, "things"))),
    PlainSerializer(_off, return_type=Any),
    _titled("count or false", "integer", "string", "boolean"),
]
Count = Annotated[
    int, PlainValidator(whole_number(0, "things")), _titled("count", "integer", "string")
]
Positive = Annotated[
    int,
    PlainValidator(whole_number(1, "things", most=10**6)),
    _titled("count", "integer", "string"),
]
Score = Annotated[float, PlainValidator(number(least=0, below=1e6)), _titled("number", "number")]
Part = Annotated[
    float, PlainValidator(number(least=0, below=1.000001)), _titled("number up to 1", "number")
]
Copies = Annotated[
    Steps,
    PlainValidator(_steps),
    PlainSerializer(_lists, return_type=Any),
    _titled("rows of [score, copies]", "array"),
]
WordShares = Annotated[
    tuple[tuple[int, float], ...],
    PlainValidator(_word_shares),
    PlainSerializer(_lists, return_type=Any),
    _titled("rows of [words, share]", "array"),
]
Separator = Annotated[str, PlainValidator(_separator), _titled("text", "string")]
Delimiter = Annotated[str, PlainValidator(_delimiter), _titled("text", "string")]
Encoding = Annotated[str, PlainValidator(_encoding), _titled("text", "string")]
LanguageCode = Annotated[str, PlainValidator(_language), _titled("text", "string")]
TextOrOff = Annotated[
    str | None,
    PlainValidator(lambda value: None if value is False or value is None else text(value)),
    PlainSerializer(_off, return_type=Any),
    _titled("text or false", "string", "boolean"),
]
