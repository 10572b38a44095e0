"""Offers of accelerators: a user's CSV file from anywhere, or the catalog's dated prices."""

import csv
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from penstock.catalog import accelerators, prices
from penstock.catalog.fact import Fact
from penstock.catalog.table import read_csv
from penstock.errors import PenstockError
from penstock.policy.spot import UNKNOWN, SpotHistory

TERMS = ("on-demand", "spot", "reserved")
TRAINED = ("NVIDIA",)  # vendors of accelerators that this version was tried on
MOST_OFFERS = 10_000
DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class OfferRow(Fact):
    """One row of an offers file: its fields are the columns."""

    name: str = ""
    source: str = ""

    provider: str
    accelerator: str
    usd_per_hour: float  # of one accelerator
    term: str
    per_node: int | None = None  # accelerators; blank: the usual node
    nodes_available: int | None = None  # blank: as many as asked for
    region: str = ""
    interruptions_per_day: float | None = None  # of spot
    available: float | None = None  # the share of time in which spot is there
    egress_usd_per_gb: float | None = None


@dataclass(frozen=True)
class Offer:
    """Accelerators for rent, checked."""

    row: OfferRow
    accelerator: str  # the catalog's name
    source: str

    @property
    def spot(self) -> bool:
        return self.row.term == "spot"

    @property
    def label(self) -> str:
        return f"{self.row.provider} {self.row.region}".strip()

    @property
    def history(self) -> SpotHistory:
        """Return what is known of this spot capacity, as a history of one day."""
        row, share = self.row, UNKNOWN.up_s / (UNKNOWN.up_s + UNKNOWN.down_s)
        per_day = UNKNOWN.taken * DAY_S / (UNKNOWN.up_s + UNKNOWN.down_s)
        if row.available is not None:
            share = row.available
        if row.interruptions_per_day is not None:
            per_day = row.interruptions_per_day
        return SpotHistory(share * DAY_S, (1 - share) * DAY_S, per_day)

    @property
    def assumed(self) -> bool:
        """Tell whether nobody stated how often this spot capacity is taken back."""
        return self.spot and self.row.interruptions_per_day is None


def of_catalog() -> list[Offer]:
    """Return the catalog's prices as offers: the median provider, any number of nodes.

    A contract of a year is no offer for a run, and what this version was never tried on is none.
    """
    return [
        Offer(
            OfferRow(
                provider=f"median of {price.providers}"
                if (price.providers or 1) > 1
                else "one provider",
                accelerator=price.accelerator,
                usd_per_hour=price.usd_per_hour,
                term=price.term,
            ),
            price.accelerator,
            f"catalog, {price.term}, {price.as_of}",
        )
        for price in prices.all()
        if price.term in ("on-demand", "spot")
        and accelerators.find(price.accelerator).vendor in TRAINED
    ]


def read_offers(path: Path) -> list[Offer]:
    """Read a file of offers; refuse a row that cannot be meant, with its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        header = next(csv.reader(text.splitlines()), [])
        missing = [
            c for c in ("provider", "accelerator", "usd_per_hour", "term") if c not in header
        ]
        if missing:
            raise PenstockError(
                f"{path}:1: no column {', '.join(missing)}; `penstock rent --help` names all"
            )
        rows = read_csv(text, OfferRow, str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PenstockError(f"{path}: cannot be read as offers: {why}") from None
    if not 1 <= len(rows) <= MOST_OFFERS:
        raise PenstockError(f"{path}: {len(rows):,} offers; give 1 to {MOST_OFFERS:,} rows")
    return [_checked(row, f"{path}:{i}", str(path)) for i, row in enumerate(rows, 2)]


def _checked(row: OfferRow, where: str, source: str) -> Offer:
    try:
        name = accelerators.find(row.accelerator).name
    except PenstockError as error:
        raise PenstockError(f"{where}: {error}") from None
    if row.term not in TERMS:
        raise PenstockError(f"{where}: term = {row.term!r}: write {', '.join(TERMS)}")
    limits: tuple[tuple[str, float], ...] = (
        ("usd_per_hour", float("inf")),
        ("per_node", 16),
        ("nodes_available", float("inf")),
        ("interruptions_per_day", 24 * 60),
        ("available", 1),
        ("egress_usd_per_gb", 10),
    )
    for field, most in limits:
        value = getattr(row, field)
        least = 0 if field in ("interruptions_per_day", "egress_usd_per_gb") else 1e-9
        if value is not None and not (isfinite(value) and least <= value <= most):
            upto = "" if most == float("inf") else f" and at most {most:g}"
            start = "0 or more" if least == 0 else "more than 0"
            raise PenstockError(f"{where}: {field} = {value:g}: write {start}{upto}")
    prices.refuse_far_off(row.usd_per_hour, name, f"{where}: usd_per_hour")
    return Offer(row, name, source)
