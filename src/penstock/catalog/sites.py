"""Sites: carbon, electricity price, PUE and water by cloud region, country, state and grid zone.

Carbon is the yearly average of the grid where the power is drawn. Market-based figures ("100 %
carbon-free") are about contracts, not about the grid, and are not kept.
"""

from dataclasses import dataclass
from typing import Literal

from penstock.catalog.fact import Fact
from penstock.catalog.table import Table


@dataclass(frozen=True, kw_only=True)
class Site(Fact):
    """A place that a machine can stand in; `name` is its code, such as us-east-1, US-TX or DEU."""

    place: str
    kind: Literal[
        "cloud-region",
        "us-state",
        "china-province",
        "grid-zone",
        "country",
        "continent",
        "fleet",
        "world",
    ]
    provider: str  # of a cloud region: aws, azure, gcp
    carbon_gco2_per_kwh: float | None
    carbon_year: int | None
    pue: float | None
    pue_year: int | None
    water_l_per_kwh: float | None
    electricity_usd_per_kwh: float | None
    electricity_year: int | None

    def known_as(self) -> tuple[str, ...]:
        named = f"{self.provider} {self.name}" if self.provider else ""
        return tuple(key for key in (self.name, self.place, named, *self.aliases) if key)


TABLE = Table.of_csv("sites", Site)
all, find, names = TABLE.all, TABLE.find, TABLE.names
