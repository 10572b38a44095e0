"""Limits as one type: what a run needs of a thing, what there is of it, and which limit binds.

`plan`, `plan --scale` and whatever compares machines show the same `LimitVerdict`: one word, the
number behind it, and a sentence. A limit of the site that is exceeded refuses the run; otherwise
the limit that binds is where most of the accelerators' time is lost, or the work itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LimitWord = Literal[
    "compute",
    "memory",
    "network",
    "power",
    "cooling",
    "space",  # places for racks
    "data",  # sequences of a step, or the rate at which they are read
    "failures",  # stopping, saving and slow peers
    "money",
]
# What the number of a limit is.
Measure = Literal["share of the time", "needed over available"]


@dataclass(frozen=True)
class BindingLimit:
    """The limit that binds: one word and one number."""

    word: LimitWord
    number: float
    measure: Measure
    words: str  # a sentence for people, with the number

    def __str__(self) -> str:
        """Return the word and the number, such as `network 42 %` or `power 2.02 ×`."""
        if self.measure == "needed over available":
            return f"{self.word} {self.number:.2f} ×"
        return f"{self.word} {100 * self.number:.0f} %"

    def to_json(self) -> dict[str, Any]:
        return {
            "word": self.word,
            "number": self.number,
            "measure": self.measure,
            "words": self.words,
        }


@dataclass(frozen=True)
class SiteLimit:
    """One limit of a site: needed and available in the same unit."""

    word: LimitWord
    name: str  # of the field or the row that sets it, such as "site.power_limit_w"
    needed: float
    available: float
    unit: Literal["W", "racks"]
    needs: str  # what needs it, in words with the number
    has: str  # what there is, in words with the number and its source
    nearest: tuple[str, ...] = ()  # what would fit, nearest first
    rated: float | None = None  # needed by nameplates, where they say more
    missing: str = ""  # what the site lacks altogether, whatever the number

    @property
    def fits(self) -> bool:
        return not self.missing and self.needed <= self.available

    @property
    def use(self) -> float:
        """Return needed over available."""
        return self.needed / self.available if self.available else float("inf")

    @property
    def over(self) -> float:
        return max(0.0, self.needed - self.available)

    def line(self) -> str:
        """Return the refusal: the limit, by how much, and the nearest things that fit."""
        short = f": {amount(self.over, self.unit)} too much" if self.over else ""
        lack = f"; {self.missing}" if self.missing else ""
        near = f". Nearest: {'; or '.join(self.nearest)}" if self.nearest else ""
        return f"{self.name}: {self.needs}, {self.has}{short}{lack}{near}"

    def to_json(self) -> dict[str, Any]:
        return {
            "word": self.word,
            "name": self.name,
            "needed": self.needed,
            "available": self.available,
            "unit": self.unit,
            "rated": self.rated,
            "fits": self.fits,
            "over": self.over,
            "words": self.line(),
            "nearest": list(self.nearest),
        }


@dataclass(frozen=True)
class LimitVerdict:
    """All limits of one plan, and the one that binds."""

    binds: BindingLimit
    site: tuple[SiteLimit, ...] = ()
    losses: Mapping[str, float] = field(default_factory=dict)  # shares of the time by word

    @property
    def refused(self) -> tuple[str, ...]:
        """Return the limits of the site that are exceeded, a line each."""
        return tuple(limit.line() for limit in self.site if not limit.fits)

    def to_json(self) -> dict[str, Any]:
        return {
            "binds": self.binds.to_json(),
            "site": [limit.to_json() for limit in self.site],
            "losses": dict(self.losses),
            "refused": list(self.refused),
        }


def exceeded(limit: SiteLimit) -> BindingLimit:
    """Return a limit of the site that is exceeded as the one that binds."""
    return BindingLimit(limit.word, limit.use, "needed over available", limit.line())


def amount(value: float, unit: str) -> str:
    """Format watts as `2.02 MW` or `41 kW`, other units as whole numbers."""
    if unit != "W":
        return f"{value:,.0f} {unit}"
    for name, size in (("GW", 1e9), ("MW", 1e6), ("kW", 1e3)):
        if value >= size:
            scaled = value / size
            return f"{scaled:,.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {name}"
    return f"{value:,.0f} W"
