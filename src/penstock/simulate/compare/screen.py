"""A comparison of clusters as a table, and the choice in words."""

from collections.abc import Iterator

import numpy as np
from rich.table import Table

from penstock.plan.power.power import BAND
from penstock.simulate.compare.compare import ClusterComparison, OwnedBreakEven
from penstock.simulate.compare.lived import DAY_S
from penstock.simulate.compare.outcome import Outcome, date_of, notes, owned_of
from penstock.simulate.rent.rank import LATE
from penstock.simulate.result import Spread
from penstock.style import (
    ENERGIES,
    MASSES,
    TIMES,
    UNKNOWN,
    Units,
    format_predicted,
    format_predicted_time,
    format_predicted_times,
    format_usd,
)

COLUMNS = ("cluster", "time", "finish", "USD", "USD/M tokens", "energy", "CO2e", "water", "misses")
WORDS = ("cluster", "limit")  # columns of text
SHOWN_FLIPS = 8
VOLUMES: Units = (("m³", 1000.0, 1.0), ("L", 1.0, 0.0))


def rows(found: ClusterComparison) -> Iterator[tuple[str, ...]]:
    """Yield one row of words per cluster, best first; those left out last, with the reason."""
    start = found.asked.start
    for one in found.outcomes:
        days, late, million = one.days, one.late, one.usd_per_million
        yield (
            one.label,
            format_predicted_times(*(d * DAY_S for d in (days.p50, days.p5, days.p95))),
            date_of(start, days.p50 * DAY_S),
            UNKNOWN if one.usd is None else _usd(Spread.of(one.usd)),
            UNKNOWN if million is None else format_usd(million),
            _amount(one.kwh, ENERGIES),
            _amount(one.co2e_kg, MASSES),
            _amount(one.water_l, VOLUMES),
            UNKNOWN if late is None else f"{100 * late:.0f} %",
            one.limit[0],
        )
    for name, why in found.left_out:
        yield (name, *[UNKNOWN] * (len(COLUMNS) - 1), why)


def table(found: ClusterComparison) -> Table:
    """Return the rows as a table."""
    shown = Table(box=None, pad_edge=False, header_style="")
    for name in (*COLUMNS, "limit"):
        shown.add_column(name, justify="left" if name in WORDS else "right")
    for row in rows(found):
        shown.add_row(*row)
    return shown


def markdown(found: ClusterComparison) -> str:
    """Return the rows as a table of Markdown."""
    head = (*COLUMNS, "limit")
    lines = [head, tuple("---" if name in WORDS else "---:" for name in head), *rows(found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lines(found: ClusterComparison) -> Iterator[str]:
    """Yield the choice, what would flip it, when owning pays, and what was assumed."""
    best = found.best
    if best is None:
        return
    yield f"take        {choice(found)}"
    yield f"limit       {best.label}: {': '.join(best.limit)}"
    for flip in found.flips[:SHOWN_FLIPS]:
        yield f"flips       {flip.words}"
    if more := len(found.flips[SHOWN_FLIPS:]):
        yield f"flips       {more} more; --json lists all"
    for one in found.break_evens:
        yield f"owning      {owning(one, found)}"
    for outcome in found.outcomes:
        for note in notes(outcome):
            yield f"note        {outcome.label}: {note}"
    yield (
        "note        ranges hold nine of ten lives: failures, and the error of the planned step. "
        f"The power model errs by {100 * (1 - BAND.low):.0f} % on top"
    )


def choice(found: ClusterComparison) -> str:
    """Say which cluster to take, and why."""
    best, others = found.best, found.outcomes[1:]
    assert best is not None
    price = "no price known" if best.usd is None else format_usd(Spread.of(best.usd).p50)
    said = f"{best.label}: {price}, {format_predicted_time(best.days.p50 * DAY_S)}"
    if best.late is not None:
        said += f", misses the date in {100 * best.late:.0f} of 100 lives"
    if not best.in_time:
        kept = f"{100 - 100 * LATE:.0f} of 100 lives"
        return f"{said}. None is in time in {kept}; this one comes nearest"
    if not others:
        return said
    if best.usd is None:
        return f"{said}; the fastest, because no price is known"
    late = sum(not one.in_time for one in others)
    of = f" of the {len(found.outcomes) - late} in time" if late else ""
    said += f". The cheapest{of}"
    fastest = min((one for one in found.outcomes), key=lambda one: one.days.p50)
    if fastest is best:
        return f"{said} and the fastest"
    more = ""
    if fastest.usd is not None:
        ratio = Spread.of(fastest.usd).p50 / Spread.of(best.usd).p50
        more = f" at {ratio:.2g} × the money"
    takes = format_predicted_time(fastest.days.p50 * DAY_S)
    return f"{said}; the fastest is {fastest.label} with {takes}{more}"


def owning(one: OwnedBreakEven, found: ClusterComparison) -> str:
    """Say when owning a cluster pays."""
    own, against = owned_of(one.outcome.lived), one.against
    assert own is not None
    said = (
        f"{one.outcome.label}: {against.own_usd_per_hour:.3g} USD per accelerator-hour used, "
        f"electricity included, at {100 * own.utilisation:.3g} % utilisation; renting costs "
        f"{against.rent_usd_per_hour:.3g} ({against.rent}): "
    )
    if against.utilisation is None:
        return f"{said}owning never pays"
    pays = f"owning pays above {100 * against.utilisation:.0f} % utilisation"
    day = one.date(found.asked.start)
    back = (
        f"the purchase is paid back on {day}"
        if day
        else "the purchase is not paid back in its life"
    )
    return f"{said}{pays}; at {100 * own.utilisation:.3g} % {back}"


def detail(found: ClusterComparison) -> Iterator[str]:
    """Yield the price of every cluster by its parts, each with its source."""
    for one in found.outcomes:
        hourly = one.lived.hourly
        if hourly is None:
            continue
        yield ""
        yield f"{one.label}: {hourly.usd:.4g} USD per accelerator-hour ({hourly.source})"
        if hourly.usd_per_kwh is not None:
            source = one.lived.candidate.found.machine.sources.get("usd_per_kwh", "given")
            yield f"  electricity    {hourly.usd_per_kwh:g} USD per kWh ({source})"
        own = owned_of(one.lived)
        for item in own.items if own else ():
            each = f"{item.usd_per_year:>12,.0f} USD a year"
            yield f"  {item.name:<14} {each}: {item.words} ({item.source})"
        yield from _life(one)


def _life(one: Outcome) -> Iterator[str]:
    plan = one.lived.plan
    yield f"  layout         {plan.job.layout}, {plan.tokens_per_s:,.0f} tokens/s"
    yield f"  limit          {': '.join(one.limit)}"
    breaks = one.lived.done.interruptions
    yield f"  failures       {breaks.p50:.0f} ({breaks.p5:.0f}–{breaks.p95:.0f})"
    if one.spot is not None:
        share = 100 * (one.spot_share or 0.0)
        waited = format_predicted(float(np.mean(one.spot.of("end_s") - one.lived.wall_s)), TIMES)
        yield f"  spot           {share:.0f} % of the hours; {waited} of waiting and restarts"


def _usd(found: Spread) -> str:
    return f"{format_usd(found.p50)} ({format_usd(found.p5)}–{format_usd(found.p95)})"


def _amount(found: Spread | None, units: Units) -> str:
    return UNKNOWN if found is None else format_predicted(found.p50, units)
