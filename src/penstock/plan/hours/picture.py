"""The schedule of hours as one picture: what a kWh counts in each hour, and when the run trains.

A self-contained SVG, light or dark as the reader's screen is: the price or the carbon above, with
the hours at work filled, and the accelerators that work below.
"""

from collections.abc import Iterator
from html import escape
from math import inf

from penstock.errors import PenstockError
from penstock.plan.hours.screen import hours_line
from penstock.plan.hours.supply import HourPlan
from penstock.policy.hours.terms import weight
from penstock.run.hours import HOUR_S
from penstock.style import cause_classes

WIDTH, HEIGHT = 900, 430
LEFT, RIGHT = 70, 870
UPPER = (96, 266)  # top and bottom of the panel of prices
LOWER = (312, 382)  # of the accelerators at work
MOST_HOURS = 14 * 24  # shown: more would be thinner than a line
TICKS = 8
CHARACTERS = 118  # of one line below the title

STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 12px; }
.back { fill: #ffffff; } text { fill: #33373d; } .title { font-size: 17px; font-weight: 600; }
.head { font-weight: 600; } .soft { fill: #6b7078; } .grid { stroke: #e4e6ea; }
.axis { stroke: #9aa0a8; } .waits { fill: #9aa0a8; opacity: 0.25; }
.price { stroke: #33373d; stroke-width: 1.5; fill: none; }
@media (prefers-color-scheme: dark) {
.back { fill: #16181c; } text { fill: #e3e5e8; } .soft { fill: #9aa1ab; }
.grid { stroke: #2c3036; } .axis { stroke: #6b727c; } .price { stroke: #e3e5e8; } }
"""
UNITS = {
    "cost": "USD for a kWh",
    "carbon": "gCO2e for a kWh, of the grid",
    "market_carbon": "gCO2e for a kWh, by contracts",
}


def svg(name: str, hours: HourPlan) -> str:
    """Draw the schedule of a run, its first two weeks if it is longer."""
    if hours.schedule.finish_s == inf:
        raise PenstockError(f"picture: {hours_line(hours)}")
    begin = hours.begins_s
    end = min(hours.schedule.finish_s, begin + MOST_HOURS * HOUR_S)
    whole = end == hours.schedule.finish_s
    title = f"{name}: the hours in which it trains"
    parts = [
        _text(
            LEFT, 30, title + ("" if whole else f" (the first {MOST_HOURS // 24} days)"), "title"
        ),
        *_told(hours_line(hours)),
        *_prices(hours, begin, end),
        *_work(hours, begin, end),
        *_times(hours, begin, end),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{STYLE}{cause_classes()}</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>\n{body}\n</svg>\n'
    )


def _told(line: str) -> Iterator[str]:
    """Yield the line of the plan, on two rows where it is long."""
    cut = len(line)
    if cut > CHARACTERS:
        cut = line.rfind("; ", 0, CHARACTERS) + 1 or CHARACTERS
    yield _text(LEFT, 50, line[:cut].rstrip("; "), "soft")
    if line[cut:]:
        yield _text(LEFT, 66, line[cut:].lstrip("; "), "soft")


def _x(t: float, begin: float, end: float) -> float:
    return LEFT + (RIGHT - LEFT) * (t - begin) / (end - begin)


def _prices(hours: HourPlan, begin: float, end: float) -> Iterator[str]:
    by, curve, t = hours.terms.by, hours.curve, begin
    found: list[tuple[float, float, float]] = []
    while t < end:
        upto = min(curve.next_hour(t), end)
        found.append((t, upto, weight(curve.at(t), by)))
        t = upto
    low, high = min(0.0, *(value for *_, value in found)), max(value for *_, value in found)
    high = high if high > low else low + 1.0

    def y(value: float) -> float:
        return UPPER[1] - (UPPER[1] - UPPER[0]) * (value - low) / (high - low)

    yield _text(LEFT, UPPER[0] - 8, UNITS[by], "head")
    for value in (low, (low + high) / 2, high):
        yield _line(LEFT, y(value), RIGHT, y(value), "grid")
        yield _text(LEFT - 8, y(value) + 4, f"{value:.3g}", "soft", "end")
    points = []
    for start, upto, value in found:
        points += [(_x(start, begin, end), y(value)), (_x(upto, begin, end), y(value))]
    for one in hours.schedule.stretches:
        for start, upto, value in found:
            left, right = max(start, one.start_s), min(upto, one.end_s)
            if left < right:
                kind = "waits" if one.level is None else "c-compute"
                a, b = _x(left, begin, end), _x(right, begin, end)
                top, bottom = sorted((y(value), y(0.0)))
                words = f"{curve.date(start)}: {value:.4g}"
                yield (
                    f'<rect class="{kind}" x="{a:.2f}" y="{top:.1f}" width="{b - a:.2f}" '
                    f'height="{bottom - top:.1f}"><title>{escape(words)}</title></rect>'
                )
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f'<polyline class="price" points="{path}"/>'


def _work(hours: HourPlan, begin: float, end: float) -> Iterator[str]:
    most = hours.terms.levels[0].accelerators
    yield _text(LEFT, LOWER[0] - 8, "accelerators at work", "head")
    for count in (0, most):
        y = LOWER[1] - (LOWER[1] - LOWER[0]) * count / most
        yield _line(LEFT, y, RIGHT, y, "grid")
        yield _text(LEFT - 8, y + 4, f"{count:,}", "soft", "end")
    for one in hours.schedule.stretches:
        if one.level is None or one.start_s >= end:
            continue
        count = hours.terms.levels[one.level].accelerators
        a, b = _x(one.start_s, begin, end), _x(min(one.end_s, end), begin, end)
        height = (LOWER[1] - LOWER[0]) * count / most
        words = f"{count:,} from {hours.curve.date(one.start_s)} to {hours.curve.date(one.end_s)}"
        yield (
            f'<rect class="c-compute" x="{a:.2f}" y="{LOWER[1] - height:.1f}" '
            f'width="{b - a:.2f}" height="{height:.1f}"><title>{escape(words)}</title></rect>'
        )


def _times(hours: HourPlan, begin: float, end: float) -> Iterator[str]:
    """Yield ticks at full hours, or at midnights where there are many days."""
    curve, span_h = hours.curve, (end - begin) / HOUR_S
    step = next(s for s in (1, 2, 3, 6, 12, 24, 48) if span_h / s <= TICKS or s == 48)
    t = curve.next_hour(begin)
    last = -inf
    while t < end:
        clock = curve.clock(t)
        if int(clock[:2]) % min(step, 24) == 0 and t - last >= (step - 1) * HOUR_S:
            words = curve.date(t)[5:10] if clock[:2] == "00" and span_h > 24 else clock
            x = _x(t, begin, end)
            yield _line(x, UPPER[0], x, LOWER[1], "grid")
            yield _text(x, LOWER[1] + 18, words, "soft", "middle")
            last = t
        t = curve.next_hour(t)
    yield _text((LEFT + RIGHT) / 2, LOWER[1] + 36, curve.zone, "soft", "middle")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
