"""When owning pays: the utilisation, and the time, from which renting would have cost more."""

from dataclasses import dataclass
from typing import Any

from penstock.plan.cost.owned import HOURS_A_YEAR, OwnedCost


@dataclass(frozen=True)
class BreakEven:
    """Owning against renting the same accelerators."""

    rent_usd_per_hour: float  # of one accelerator
    rent: str  # what it is, with its source
    own_usd_per_hour: float  # at the utilisation of the owner, with electricity
    utilisation: float | None  # above it owning is cheaper; None: never
    years: float | None  # until the rent saved has paid for the purchase; None: not in its life

    def to_json(self) -> dict[str, Any]:
        return {
            "rent_usd_per_hour": self.rent_usd_per_hour,
            "rent": self.rent,
            "own_usd_per_hour": self.own_usd_per_hour,
            "utilisation": self.utilisation,
            "years": self.years,
        }


def break_even(own: OwnedCost, rent_usd_per_hour: float, rent: str) -> BreakEven:
    """Compare owned machines with renting as many for the hours in which they are used."""
    busy, rest = own.busy_usd_per_hour, own.rest_usd_per_hour
    fixed = own.fixed_usd_per_year / HOURS_A_YEAR / own.accelerators
    # rent = (fixed + rest) / u + busy − rest
    saved = rent_usd_per_hour - busy + rest
    share = (fixed + rest) / saved if saved > 0 else None
    rented = rent_usd_per_hour * own.utilisation * HOURS_A_YEAR * own.accelerators
    kept = rented - own.running_usd_per_year
    years = (own.purchase_usd + own.hall_usd) / kept if kept > 0 else None
    return BreakEven(
        rent_usd_per_hour,
        rent,
        own.usd_per_hour + busy,
        share if share is not None and share <= 1 else None,
        years if years is not None and years <= own.years else None,
    )
