"""`Table`: the records of one kind, read on first use and found by a tolerant name match.

The same code reads every CSV: the columns are the fields of the dataclass, and the type of a field
decides how a cell is read.
"""

import csv
import re
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.catalog.fact import Fact
from penstock.errors import PenstockError, nearest
from penstock.suggest import nearest_names

F = TypeVar("F", bound=Fact)


def packaged(file: str) -> str:
    """Return the text of a file in `catalog/facts/`."""
    from importlib.resources import (
        files,
    )  # here: it is slow to import and not every look-up needs it

    return files("penstock.catalog").joinpath("facts", file).read_text(encoding="utf-8")


def read_csv(text: str, record: type[F], where: str) -> list[F]:
    """Read one record per line. Columns are fields of `record`; missing ones keep their default."""
    reader = csv.DictReader(text.splitlines(), strict=True)
    types_by_field = get_type_hints(record)
    columns = reader.fieldnames or ()
    for place, column in enumerate(columns):
        if column in columns[:place]:
            raise PenstockError(f"{where}:1: the column '{column}' is there twice; remove one")
        if column not in types_by_field:
            hint = nearest(column, types_by_field)
            raise PenstockError(f"{where}: unknown column '{column}'. {hint}".rstrip())
    return [_record(row, record, types_by_field, f"{where}:{i}") for i, row in enumerate(reader, 2)]


def _record(row: dict[str, str], record: type[F], hints: dict[str, Any], where: str) -> F:
    if None in row or None in row.values():
        raise PenstockError(f"{where}: not as many cells as the header has columns.")
    values = {c: _cell(cell.strip(), hints[c], f"{where}: {c}") for c, cell in row.items()}
    try:
        return record(**values)
    except TypeError as error:
        raise PenstockError(f"{where}: {error}") from error


def _cell(cell: str, hint: Any, where: str) -> Any:
    """Convert a cell to the type `hint`; blank is None if the type allows None."""
    if get_origin(hint) in (Union, types.UnionType):
        if not cell:
            return None
        hint = next(a for a in get_args(hint) if a is not type(None))
    if get_origin(hint) is tuple:
        return tuple(part.strip() for part in cell.split("|") if part.strip())
    if get_origin(hint) is Literal:
        if cell not in get_args(hint):
            raise PenstockError(f"{where}: '{cell}' is none of {', '.join(get_args(hint))}.")
        return cell
    try:
        return hint(cell)
    except ValueError:
        raise PenstockError(f"{where}: expected {hint.__name__}, found '{cell}'.") from None


def fold(name: str) -> str:
    """Return a name without case, spaces, dashes and other marks."""
    return re.sub(r"[\W_]+", "", name.casefold())


def _words(name: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", name.casefold()))


class Table(Generic[F]):
    """All records of one kind, in file order. `kind` is the plural a user types."""

    def __init__(self, kind: str, load: Callable[[], Iterable[F]]) -> None:
        self.kind = kind
        self._load = load

    @classmethod
    def of_csv(
        cls, kind: str, record: type[F], path: Path | None = None, file: str | None = None
    ) -> "Table[F]":
        """Return the packaged table of `kind`, or a user's own file with the same columns.

        `file` is the name of the packaged one, where it is not that of the kind.
        """
        packaged_file = file or f"{kind}.csv"

        def load() -> list[F]:
            if path is None:
                return read_csv(packaged(packaged_file), record, packaged_file)
            try:
                return read_csv(path.read_text(encoding="utf-8"), record, str(path))
            except OSError as error:
                raise PenstockError(f"cannot read {kind} from {path}: {error.strerror}.") from error

        return cls(kind, load)

    @cached_property
    def _records(self) -> tuple[F, ...]:
        return tuple(self._load())

    def all(self) -> tuple[F, ...]:
        return self._records

    def names(self) -> list[str]:
        return [record.name for record in self._records]

    def __iter__(self) -> Iterator[F]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def matches(self, name: str) -> list[F]:
        """Return the records that match `name`, by the strictest rule that finds any.

        The rules: the exact name, the exact alias, either without spaces and dashes (AWS
        us-east-1 and GCP us-east1 differ only there), and last all words of `name` in one key.
        """
        plain, folded, words = name.strip().casefold(), fold(name), _words(name)
        readings: tuple[Callable[[F], bool], ...] = (
            lambda r: plain == r.name.casefold(),
            lambda r: any(plain == key.casefold() for key in r.known_as()),
            lambda r: any(folded == fold(key) for key in r.known_as()),
            lambda r: any(words <= _words(key) for key in r.known_as()),
        )
        if not words:
            return []
        found = ([r for r in self._records if reads(r)] for reads in readings)
        return next((records for records in found if records), [])

    def find(self, name: str) -> F:
        """Return the one record that matches `name`; else raise an error with the candidates."""
        found = self.matches(name)
        if len(found) == 1:
            return found[0]
        how = f"`penstock catalog {self.kind}` lists all."
        if found:
            which = ", ".join(f"'{r.name}'" for r in found[:8]) + (" …" if found[8:] else "")
            raise PenstockError(f"{self.kind}: '{name}' can be {which}. Say which; {how}")
        keys = [key for r in self._records for key in r.known_as()]
        hint = nearest(name, keys)
        if not hint and (near := nearest_names(name, keys)):
            hint = f"Nearest are {', '.join(repr(key) for key in near)}."
        raise PenstockError(" ".join(filter(None, [f"{self.kind}: no '{name}'.", hint, how])))
