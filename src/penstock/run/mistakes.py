"""Messages about mistakes in a file: what is wrong, what was found, how to fix it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from penstock import secret
from penstock.errors import nearest
from penstock.run import toml
from penstock.run.fields import Schema
from penstock.run.schema.quantity import BadQuantity
from penstock.run.schema.section import InvalidFields, Switch
from penstock.suggest import closest

Path = tuple[str | int, ...]
_NOT_THERE = object()
MAX_SHOWN = 100  # mistakes of one file


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file."""

    path: Path
    text: str  # "train.tokens = 3: what is wrong; how to fix it"


def find_mistakes(
    error: ValidationError, table: dict[str, Any], schema: Schema[Any]
) -> list[Mistake]:
    """Return the mistakes that pydantic found in `table`."""
    return describe_errors(error, lambda detail: describe_error(detail, table, schema))


def describe_errors(error: ValidationError, words: Callable[[Any], list[Mistake]]) -> list[Mistake]:
    """Return pydantic's errors as mistakes; of more than 100, the first 100 and their number."""
    details = error.errors(include_url=False)
    value = [mistake for detail in details[:MAX_SHOWN] for mistake in words(detail)]
    if len(details) > MAX_SHOWN:
        value.append(Mistake((), f"{len(details):,} mistakes; the first {MAX_SHOWN} are told"))
    return value


def describe_error(detail: Any, table: dict[str, Any], schema: Schema[Any]) -> list[Mistake]:
    path: Path = detail["loc"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidFields):
        return [_wrong(path, field, what, table) for field, what in cause.problems]
    if isinstance(cause, BadQuantity):
        return [_mistake(path, table, cause.what)]
    if isinstance(cause, ValueError):
        return [_mistake(path, table, str(cause))]
    say = _SAY.get(detail["type"], _unexpected)
    return [say(path, table, schema)]


def _wrong(section: Path, field: str, what: str, table: dict[str, Any]) -> Mistake:
    path = (*section, *field.split(".")) if field else section
    return _mistake(path, table, what)


def _mistake(path: Path, table: dict[str, Any], what: str) -> Mistake:
    value = _found(path, table)
    shown = "" if value is _NOT_THERE or isinstance(value, dict) else f" = {_short(path, value)}"
    return Mistake(path, f"{dotted(path)}{shown}: {what}")


def _unknown(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    return Mistake(path, f"{dotted(path)}: no such field. {_suggest(path, schema)}")


def _missing(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    name = path[-1]
    fix = schema.missing.get(_plain(path), f"{name} = ...")
    return Mistake(path, f"{dotted(path)}: missing; write {fix}")


def _not_a_table(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    header = ".".join(_plain(path))
    if any(isinstance(part, int) for part in path):
        return _mistake(path, table, f"not a table; write each part under its own [[{header}]]")
    below = schema.by_path[_plain(path)].section if _plain(path) in schema.by_path else None
    if below and issubclass(below, Switch):
        return _mistake(path, table, "neither true nor false nor a table; write one of them")
    what = f"a section, not a value; write [{header}] on a line of its own and its fields below it"
    return _mistake(path, table, what)


def _not_a_list(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    field = schema.by_path[_plain(path)]
    fix = f"each part under its own [[{field.name}]]" if field.repeated else 'it as ["...", "..."]'
    return Mistake(path, f"{dotted(path)}: not a list; write {fix}")


def _not_a_choice(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    field, value = schema.by_path[_plain(path)], _found(path, table)
    guess = nearest(value, field.choices) if isinstance(value, str) else ""
    what = f"not a choice; write {field.kind['title']}"
    return _mistake(path, table, f"{what}. {guess}" if guess else what)


def _unexpected(path: Path, table: dict[str, Any], schema: Schema[Any]) -> Mistake:
    what = f"cannot be used here; `{schema.reference}` says what each field takes"
    return _mistake(path, table, what)


_SAY: dict[str, Callable[[Path, dict[str, Any], Schema[Any]], Mistake]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "model_type": _not_a_table,
    "dict_type": _not_a_table,
    "tuple_type": _not_a_list,
    "literal_error": _not_a_choice,
}


def _suggest(path: Path, schema: Schema[Any]) -> str:
    """Return where the name belongs, the nearest name, or all names of the section."""
    section, name = _plain(path)[:-1], str(path[-1])
    known = [field.path for field in schema.fields if not field.section]
    if name in schema.elsewhere:
        return f"Write {schema.elsewhere[name]} instead"
    if homes := [path[:-1] for path in known if path[-1] == name]:
        return f"'{name}' belongs {' or '.join(map(_place, homes))}"
    here = schema.names_in(section)
    if guess := nearest(name, here):
        return guess
    if elsewhere := closest(name, [path[-1] for path in known]):
        home = next(path[:-1] for path in known if path[-1] == elsewhere)
        return f"Did you mean '{elsewhere}' {_place(home)}?"
    return f"{_place(section).capitalize()} there are {', '.join(here)}"


def _place(section: tuple[str, ...]) -> str:
    return f"in [{'.'.join(section)}]" if section else "at the top of the file"


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as text: data.mix[0].weight"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{toml.format_key(part)}"
    return text.lstrip(".")


def _plain(path: Path) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


def _found(path: Path, table: Any) -> Any:
    for part in path:
        try:
            table = table[part]
        except (KeyError, IndexError, TypeError):
            return _NOT_THERE
    return table


def _short(path: Path, value: Any) -> str:
    text = toml.format_value(secret.visible(".".join(_plain(path)), value))
    return text if len(text) <= 60 else text[:57] + "..."
