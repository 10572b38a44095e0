"""The outcome of a run on one cluster: finish, money, energy, carbon, water, risk, its limit."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from penstock.plan.cost.embodied import EmbodiedCarbon, embodied
from penstock.plan.cost.owned import HOURS_A_YEAR, OwnedCost, owned_cost
from penstock.run.clusters.price import PriceSection
from penstock.simulate.compare.lived import DAY_S, Lived
from penstock.simulate.compare.spot import OnSpot, on_spot
from penstock.simulate.rent.rank import LATE
from penstock.simulate.result import Spread
from penstock.style import TIMES, format_predicted

BINDS = 0.2  # of the time: below it, waiting for machines is not the limit


@dataclass(frozen=True)
class Outcome:
    """One cluster that can hold the run."""

    lived: Lived
    deadline_s: float | None
    begin_s: float  # from the start of the comparison until the machines are there
    finish_s: np.ndarray  # of each life, from the start of the comparison
    usd: np.ndarray | None
    spot: OnSpot | None

    @property
    def label(self) -> str:
        return self.lived.candidate.label

    @property
    def days(self) -> Spread:
        return Spread.of(self.finish_s / DAY_S)

    @property
    def late(self) -> float | None:
        """Return the share of lives that miss the date."""
        if self.deadline_s is None:
            return None
        return float(np.mean(self.finish_s > self.deadline_s))

    @property
    def in_time(self) -> bool:
        return (self.late or 0.0) <= LATE

    @property
    def needs_s(self) -> float:
        """Return the earliest deadline that would be kept in all but LATE of the lives."""
        spare = int(LATE * len(self.finish_s))
        ends = self.finish_s
        if self.mixed:  # on-demand from the start, and the restart that a rule keeps time for
            lived = self.lived
            ends = lived.delivery_s + lived.wall_s + lived.restart_s
        return float(np.sort(ends)[len(ends) - 1 - spare])

    @property
    def mixed(self) -> bool:
        """Tell whether on-demand capacity keeps the date where spot would not."""
        price = self.lived.price
        return self.spot is not None and bool(price and price.on_demand_usd_per_hour)

    @property
    def kwh(self) -> Spread | None:
        return None if self.lived.kwh is None else Spread.of(self.lived.kwh)

    @property
    def co2e_kg(self) -> Spread | None:
        grams, kwh = self.lived.plan.job.machine.gco2e_per_kwh, self.lived.kwh
        return None if grams is None or kwh is None else Spread.of(kwh * grams / 1e3)

    @property
    def water_l(self) -> Spread | None:
        """Return the water that the site evaporates; that of power plants is not in it."""
        machine, kwh = self.lived.plan.job.machine, self.lived.kwh
        if machine.water_l_per_kwh is None or kwh is None:
            return None
        return Spread.of(kwh / (machine.pue or 1.0) * machine.water_l_per_kwh)

    @property
    def embodied(self) -> EmbodiedCarbon | None:
        """Return the carbon of making the accelerators that falls on the median life."""
        hours = float(np.median(self.lived.paid_h))
        return embodied(self.lived.candidate.found.machine, hours)

    @property
    def usd_per_million(self) -> float | None:
        """Return USD for a million tokens that end in the model, by the median life."""
        return None if self.usd is None else float(np.median(self.usd)) / self.lived.tokens * 1e6

    @property
    def spot_share(self) -> float | None:
        if self.spot is None:
            return None
        spot_s = self.spot.of("spot_s")
        return float(np.median(spot_s / (spot_s + self.spot.of("on_demand_s"))))

    @property
    def limit(self) -> tuple[str, str]:
        """Return the limit that binds, as a word and as a sentence."""
        total_s, binds = float(np.median(self.finish_s)), self.lived.plan.limits.binds
        waits = {("", ""): 0.0}
        if self.lived.delivery_s:
            said = format_predicted(self.lived.delivery_s, TIMES)
            words = f"{said} until the machines are there"
            waits["delivery", words] = self.begin_s / total_s
        if self.spot is not None:
            away = float(np.median(1 - self.lived.wall_s / self.spot.of("end_s")))
            words = f"spot is away or starting {100 * away:.0f} % of the time"
            waits["capacity", words] = away
        worst = max(waits, key=waits.__getitem__)
        return worst if waits[worst] >= BINDS else (binds.word, binds.words)

    def to_json(self, start: datetime) -> dict[str, Any]:
        lived, own = self.lived, self.lived.done.own
        hourly, days = lived.hourly, self.days
        usd = None if self.usd is None else Spread.of(self.usd)
        owned = owned_of(lived)
        found: dict[str, Any] = {
            "cluster": self.label,
            "fits": True,
            "accelerator": lived.plan.job.machine.accelerator,
            "accelerators": own.ranks,
            "nodes": own.nodes,
            "term": lived.candidate.term or None,
            "layout": lived.plan.job.layout.to_json(),
            "tokens_per_s": lived.plan.tokens_per_s,
            "mfu": lived.plan.mfu,
            "start": date_of(start, self.begin_s),
            "finish": date_of(start, days.p50 * DAY_S),
            "finish_late": date_of(start, days.p95 * DAY_S),
            "days": days.to_json(),
            "late": self.late,
            "usd": usd and usd.to_json(),
            "usd_per_million_tokens": self.usd_per_million,
            "usd_per_hour": hourly and hourly.usd,
            "usd_per_kwh_apart": hourly and hourly.usd_per_kwh,
            "price": hourly and hourly.source,
            "commitment_usd": commitment_usd(lived),
            "owned": owned and [item.to_json() for item in owned.items],
            "purchase_usd": owned and owned.purchase_usd,
            "interruptions": lived.done.interruptions.to_json(),
            "effective": lived.done.effective.to_json(),
            "spot_share": self.spot_share,
            "binds": {"word": self.limit[0], "words": self.limit[1]},
            "limits": lived.plan.limits.to_json(),
            "notes": list(notes(self)),
        }
        made = self.embodied
        found["embodied_co2e_kg"] = made.kg if made else None
        for name in ("kwh", "co2e_kg", "water_l"):
            spread: Spread | None = getattr(self, name)
            found[name] = spread and spread.to_json()
        return found


def outcome(lived: Lived, deadline_s: float | None) -> Outcome | str:
    """Return what the run would be; or why it would not end."""
    begin_s = lived.delivery_s + lived.boot_s
    if lived.candidate.term != "spot":
        finish_s = begin_s + lived.wall_s
        return Outcome(lived, deadline_s, begin_s, finish_s, usd_of(lived, None), None)
    left_s = None if deadline_s is None else max(deadline_s - lived.delivery_s, 1.0)
    played = on_spot(lived, left_s)
    if 2 * played.of("done").sum() < len(played.lives):
        return "on spot alone most lives do not finish; give price.on_demand_usd_per_hour"
    finish_s = lived.delivery_s + played.of("end_s")
    return Outcome(lived, deadline_s, begin_s, finish_s, usd_of(lived, played), played)


def usd_of(
    lived: Lived,
    played: OnSpot | None,
    price: PriceSection | None = None,
    usd_per_kwh: float | None = None,
    usd_per_hour: float | None = None,
) -> np.ndarray | None:
    """Return the money of each life; by other terms or prices of the same machines if given."""
    machine, hourly = lived.candidate.found.machine, lived.hourly
    if hourly is None:
        return None
    terms = price or machine.price
    kwh = lived.kwh if lived.kwh is not None else np.zeros(1)
    if terms is not None and terms.term == "owned":
        each = machine.usd_per_kwh if usd_per_kwh is None else usd_per_kwh
        own = owned_cost(replace(machine, usd_per_kwh=each), terms)
        return lived.paid_h * own.usd_per_hour + kwh * (each or 0.0)
    each = hourly.usd if usd_per_hour is None else usd_per_hour
    egress = _egress(lived, played, terms)
    if played is None:
        return lived.paid_h * each + egress
    assert terms is not None
    dear = (terms.usd(terms.on_demand_usd_per_hour) or 0.0) * each / (hourly.usd or 1.0)
    ranks_h = lived.done.own.ranks / 3600
    return ranks_h * (played.of("spot_s") * each + played.of("on_demand_s") * dear) + egress


def _egress(lived: Lived, played: OnSpot | None, terms: PriceSection | None) -> np.ndarray:
    """Return what is paid for checkpoints that leave: the last one, and at each move of region."""
    each = (terms.usd(terms.egress_usd_per_gb) or 0.0) if terms else 0.0
    times = np.ones(len(lived.done.lives))
    if played is not None and terms is not None and terms.regions > 1:
        times = times + np.maximum(
            played.of("starts") - 1, 0
        )  # at most: a return may be to the same region
    return each * lived.plan.life.recovery.checkpoint_bytes / 1e9 * times


def owned_of(lived: Lived) -> OwnedCost | None:
    machine = lived.candidate.found.machine
    if machine.price is None or machine.price.term != "owned":
        return None
    return owned_cost(machine, machine.price)


def commitment_usd(lived: Lived) -> float | None:
    """Return what a contract costs in all, whatever of it this run uses."""
    price = lived.price
    if price is None or price.commitment is None:
        return None
    machine = lived.candidate.found.machine
    return price.commitment / 3600 * machine.accelerators * (price.usd(price.usd_per_hour) or 0.0)


def date_of(start: datetime, seconds: float) -> str:
    """Return the day so many seconds after the start."""
    try:
        return (start + timedelta(seconds=seconds)).strftime("%Y-%m-%d")
    except OverflowError:
        return "after 9999"


def notes(one: Outcome) -> list[str]:
    """Return what was assumed about this cluster, and what it commits to."""
    price, found = one.lived.price, []
    if made := one.embodied:
        found.append(f"making the accelerators: {made.words}")
    if one.usd is None:
        found.append("no price is known: write [price] in its cluster file")
    if price is None:
        return found
    given = price.model_fields_set
    if price.term == "owned":
        found.append(_bought(one.lived, "utilisation" in given))
    if price.term == "reserved":
        whole = commitment_usd(one.lived)
        if whole:
            days = (price.commitment or 0.0) / DAY_S
            found.append(f"the contract is {whole:,.0f} USD over {days:,.0f} days")
        if "utilisation" not in given:
            found.append(
                "price.utilisation is not stated: hours that this run leaves are taken to be used"
            )
    if price.term == "spot" and not {"interruptions_per_day", "available"} <= given:
        found.append(
            "nobody stated how often its spot is taken back: there 75 % of the time, 2.25 "
            "interruptions a day are assumed"
        )
    if price.term == "spot" and one.deadline_s is not None and not one.mixed:
        found.append("spot alone: price.on_demand_usd_per_hour would keep the date")
    return found


def _bought(lived: Lived, stated: bool) -> str:
    """Say what is bought, and how much of it this run uses."""
    own = owned_of(lived)
    assert own is not None
    hours = own.years * HOURS_A_YEAR * own.utilisation * own.accelerators
    share = float(np.median(lived.paid_h)) / hours
    source = "" if stated else ", which nobody stated (`penstock catalog costs`)"
    return (
        f"the purchase is {own.purchase_usd + own.hall_usd:,.0f} USD; this run is "
        f"{100 * share:.2g} % of its work in {own.years:g} years at "
        f"{100 * own.utilisation:g} % utilisation{source}"
    )
