"""`Fact`: the base of all catalog records; each value says where it came from.

A record's `source` is one line. Its first part holds for the whole row; parts of the form
`field, field = text` after a `; ` hold for those fields instead:

    ML Engineering 744d01e accelerators; tdp_w = measured by Google; link = estimated, recalled

The first word of a part tells the basis: `measured`, `estimated`, or anything else for published.
"""

import re
from dataclasses import dataclass, fields
from typing import Literal

from penstock.errors import PenstockError

Basis = Literal["measured", "published", "estimated"]

_PART = re.compile(r"([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*) = (.+)")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A named row. An optional value is None when nobody has published it; None is never zero."""

    name: str
    source: str
    note: str = ""
    aliases: tuple[str, ...] = ()

    def known_as(self) -> tuple[str, ...]:
        """Return the names of this record, its own first."""
        return (self.name, *self.aliases)

    def sources(self) -> dict[str, str]:
        """Return the sources by field; the one under `""` holds for all other fields."""
        sources: dict[str, str] = {}
        for part in self.source.split("; "):
            match = _PART.fullmatch(part)
            owners = match[1].split(", ") if match else [""]
            sources |= dict.fromkeys(owners, match[2] if match else part)
        return sources

    def source_of(self, field: str) -> str:
        """Return the source of the value of `field`."""
        if field not in {f.name for f in fields(self)}:
            raise PenstockError(f"{type(self).__name__} has no field '{field}'.")
        sources = self.sources()
        return sources.get(field, sources.get("", ""))

    def basis_of(self, field: str) -> Basis:
        """Return whether the value of `field` was measured, published or estimated."""
        source = self.source_of(field)
        if source.startswith("measured"):
            return "measured"
        return "estimated" if source.startswith("estimated") else "published"
