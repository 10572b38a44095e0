"""Cooling of halls: the heat of a rack that each kind takes away, and its PUE."""

import re
from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table
from penstock.errors import PenstockError

# How people write it, the first that fits: a rear door before the air that it cools.
SPELT = {
    "immersion": r"immers|two-phase|2-phase|\bbath",
    "direct liquid": r"liquid|water|cold.?plate|\bdlc\b|\bd2c\b|\bdtc\b|direct.to.chip|neptune",
    "rear-door": r"rdhx|rear.?door",
    "legacy air": r"legacy.*(air|hall)|(air|hall).*legacy",
    "air": r"\bair|\bfans?\b|\baisle|\bcra[ch]\b",
}


@dataclass(frozen=True, kw_only=True)
class HallCooling(Fact):
    """One way to cool a hall. Low, usual and high: what older, usual and the best halls do."""

    node_cooling: Literal["air", "liquid", "immersion"]  # of the machines that it is for
    rack_w_low: float
    rack_w: float
    rack_w_high: float
    pue_low: float
    pue: float
    pue_high: float


TABLE = Table.of_csv("cooling", HallCooling)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def read(words: str) -> HallCooling | None:
    """Read a kind of cooling from the words of a cluster file or a data sheet; None if unknown."""
    text = words.casefold()
    kind = next((kind for kind, spelt in SPELT.items() if re.search(spelt, text)), None)
    return find(kind) if kind else None


def stated(words: str) -> HallCooling:
    """Return the kind of cooling that `site.cooling` names; refuse words that name none."""
    found = read(words)
    if found is None:
        raise PenstockError(
            f'site.cooling = "{words}": not a cooling that is known; write {", ".join(names())}'
        )
    return found
