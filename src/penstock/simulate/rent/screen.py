"""Ranked offers as a table, and in words: which to take, and when to leave spot."""

from collections.abc import Iterator

from rich.table import Table

from penstock.plan.life.life import DAY_S
from penstock.simulate.rent.rank import LATE, Ranked, Ranking
from penstock.style import format_duration, format_predicted_times, format_usd

SHOWN_LEFT_OUT = 5
COLUMNS = ("USD/M tokens", "USD", "time", "late", "accelerators", "term", "USD/h", "provider")


def table(found: Ranking, top: int) -> Table:
    """Return one row per offer and size, best first."""
    shown = Table(box=None, pad_edge=False, header_style="")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in COLUMNS[4:6] + COLUMNS[7:] else "right")
    for one in found.ranked[:top]:
        usd, days = one.usd, one.days
        shown.add_row(
            format_usd(one.usd_per_million),
            f"{format_usd(usd.p50)} ({format_usd(usd.p5)}–{format_usd(usd.p95)})",
            format_predicted_times(*(d * DAY_S for d in (days.p50, days.p5, days.p95))),
            "–" if one.late is None else f"{100 * one.late:.0f} %",
            f"{one.lived.own.ranks} × {one.offer.accelerator}",
            one.offer.row.term + (" + on-demand" if one.fallback else ""),
            f"{one.offer.row.usd_per_hour:g}",
            one.offer.label,
        )
    return shown


def lines(found: Ranking) -> Iterator[str]:
    """Yield the advice and what it stands on."""
    best, by_s = found.ranked[0], found.wanted.deadline_s
    yield (
        f"take      {best.lived.own.ranks} × {best.offer.accelerator}, {best.offer.row.term}, "
        f"{best.offer.label}, at {best.offer.row.usd_per_hour:g} USD per accelerator-hour "
        f"({best.offer.source}): {format_usd(best.usd_per_million)} per million useful tokens"
    )
    if by_s is not None and (best.late or 0.0) > LATE:
        yield (
            f"late      no offer is in time: the best misses {format_duration(by_s)} in "
            f"{100 * (best.late or 0):.0f} of 100 lives; give a later --deadline or more --nodes"
        )
    if best.fallback and by_s is not None:
        yield "mix       " + _mix(best, by_s)
    elif best.offer.spot:
        yield "mix       spot alone, and wait while it is away; --deadline plans when to leave it"
    if any(one.offer.assumed for one in found.ranked) and found.wanted.trace is None:
        yield (
            "note      nobody stated how often some spot offers are taken back: there 75 % of the "
            "time, 2.25 interruptions a day are assumed; give interruptions_per_day, or --trace"
        )
    if any(one.offer.source.startswith("catalog") for one in found.ranked):
        yield "note      catalog prices are dated medians, not quotes; --offers FILE takes your own"
    for why in found.left_out[:SHOWN_LEFT_OUT]:
        yield f"left out  {why}"
    if more := len(found.left_out[SHOWN_LEFT_OUT:]):
        yield f"left out  {more} more; --json lists all"


def _mix(best: Ranked, by_s: float) -> str:
    """Say how to mix spot and on-demand, and when to leave spot for good."""
    assert best.fallback
    need_s = best.lived.wall_s.max() + 2 * best.restart_s
    leave_s = max(by_s - need_s, 0.0)
    dear = best.fallback
    return (
        f"start on spot; {100 * best.spot_share:.0f} % of the rented hours are spot. On-demand "
        f"from {dear.label} at {dear.row.usd_per_hour:g} USD fills gaps when the spot to be "
        "expected is not enough. Switch to it for good when the time left is the work left and one "
        f"restart ({format_duration(best.restart_s)}), or two if spot is not in use: with nothing "
        f"done, {format_duration(leave_s)} after the start"
    )
