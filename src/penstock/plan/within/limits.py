"""Limits of a budget, in money and days, and the price of an accelerator-hour."""

import math
import re
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.plan.cost.cost import HourlyPrice, price_at_work
from penstock.plan.hardware.machine import Machine
from penstock.plan.life.life import DAY_S
from penstock.run.schema.run import Run

UNITS = {"usd": 1.0, "kusd": 1e3, "musd": 1e6}
EXAMPLE = "write dollars, such as --within 5000usd"


@dataclass(frozen=True)
class SpendingLimits:
    """The money and the wall clock that a run may take; None is no limit."""

    usd: float | None
    seconds: float | None

    def __post_init__(self) -> None:
        if self.usd is None and self.seconds is None:
            raise PenstockError("plan: give --within, --days or both")

    def seconds_on(self, accelerators: int, price: HourlyPrice | None) -> float:
        """Return the wall clock that a run on so many accelerators may take."""
        if self.usd is None:
            assert self.seconds is not None
            return self.seconds
        assert price is not None
        paid_s = self.usd / (price.usd * accelerators) * 3600 if price.usd else math.inf
        return paid_s if self.seconds is None else min(paid_s, self.seconds)


def parse(within: str | None, days: float | None) -> SpendingLimits:
    """Read `--within 5000usd` and `--days 10`."""
    usd = None if within is None else dollars(within)
    if days is not None and not 0 < days < 1e5:
        raise PenstockError(f"--days {days:g}: write a number of days above zero, below 100000")
    return SpendingLimits(usd, None if days is None else days * DAY_S)


def dollars(text: str) -> float:
    """Read an amount of money with its unit; none is guessed."""
    plain = text.strip().replace(",", "").replace("_", "")
    found = re.fullmatch(r"(\$?)\s*(-?\d+(?:\.\d+)?(?:e\d{1,2})?)\s*(\S*)", plain, re.I)
    if not found:
        raise PenstockError(f"--within '{text}': not an amount of money; {EXAMPLE}")
    sign, number, unit = found.groups()
    unit = unit.casefold() or ("usd" if sign else "")
    if unit in ("c", "ct", "cent", "cents", "¢", "usc"):
        raise PenstockError(f"--within '{text}': in cents; {EXAMPLE}")
    if not unit:
        raise PenstockError(f"--within '{text}': no unit; {EXAMPLE}")
    if unit not in UNITS:
        raise PenstockError(
            f"--within '{text}': the unit '{found[3]}' is not one of usd, kusd and Musd; prices "
            f"here are in US dollars, and no rate of exchange is guessed. {EXAMPLE}"
        )
    usd = float(number) * UNITS[unit]
    if not 0 < usd < 1e13:
        raise PenstockError(f"--within '{text}': write an amount above zero, such as 5000usd")
    return usd


def known_price(run: Run, machine: Machine, limits: SpendingLimits) -> HourlyPrice | None:
    """Return the price of an accelerator-hour; money without a price is refused."""
    price = price_at_work(run, machine)
    if price is None and limits.usd is not None:
        raise PenstockError(
            "--within: no price is known for this machine, so nobody can say what money buys; "
            "write cluster.usd_per_hour=2.50 (of one accelerator), or give --days alone"
        )
    return price
