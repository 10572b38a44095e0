"""Days against USD: every cluster, and the line of those that no other one beats in both."""

from collections.abc import Iterator
from math import ceil, floor, log10

from penstock.simulate.compare.compare import ClusterComparison
from penstock.simulate.compare.lived import DAY_S
from penstock.simulate.compare.outcome import Outcome
from penstock.simulate.picture import sheet, text
from penstock.simulate.result import Spread
from penstock.style import format_predicted_time, format_usd

HEIGHT = 520
LEFT, RIGHT, TOP, BOTTOM = 90, 860, 80, 440
ROOM = 0.15  # beside the outermost points, of a decade
SHORT = 1.2  # decades
LONGEST = 220  # pixels of a label
LEAST = 1e-2  # USD: what costs nothing has a place on a logarithmic axis too
LINE = 15  # between labels that would lie on each other


def svg(found: ClusterComparison) -> str:
    """Draw the comparison; both axes are logarithmic."""
    known = [one for one in found.outcomes if one.usd is not None]
    head = [
        text(30, 30, f"{found.run.name}: days against USD", "title"),
        text(30, 50, _about(found), "soft"),
    ]
    if not known:
        return sheet([*head, text(30, 90, "no price of any cluster is known", "")], 130)
    days = _Axis([v for one in known for v in (one.days.p5, one.days.p95)], LEFT, RIGHT)
    usd = _Axis([v for one in known for v in _ends(one)], BOTTOM, TOP)
    parts = [*head, *_grid(days, usd)]
    if found.asked.deadline_s is not None:
        at = days.at(found.asked.deadline_s / DAY_S)
        if LEFT <= at <= RIGHT:
            parts.append(
                f'<line class="ideal" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{BOTTOM}"/>'
            )
            parts.append(text(at - 6, TOP + 12, "the date", "soft", "end"))
    line = " ".join(
        f"{days.at(one.days.p50):.1f},{usd.at(_usd(one).p50):.1f}" for one in found.pareto
    )
    parts.append(f'<polyline class="line" points="{line}"/>')
    taken: list[tuple[float, float]] = []
    for one in known:
        parts += _point(one, days, usd, one is found.best, taken)
    return sheet(parts, HEIGHT)


class _Axis:
    """A logarithmic axis from the lowest to the highest value, with some room."""

    def __init__(self, values: list[float], first: float, last: float) -> None:
        self.low, self.high = log10(min(values)) - ROOM, log10(max(values)) + ROOM
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        share = (log10(max(value, LEAST)) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> Iterator[float]:
        """Yield round values: 1, 2 and 5 times powers of ten, and more on a short axis."""
        steps = (1, 2, 5) if self.high - self.low > SHORT else (1, 2, 3, 4, 5, 6, 8)
        for power in range(floor(self.low), ceil(self.high) + 1):
            for step in steps:
                value = step * 10.0**power
                if self.low <= log10(value) <= self.high:
                    yield value


def _grid(days: _Axis, usd: _Axis) -> Iterator[str]:
    for value in days.ticks():
        x = days.at(value)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
        yield text(x, BOTTOM + 18, f"{value:g}", "soft", "middle")
    for value in usd.ticks():
        y = usd.at(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, format_usd(value), "soft", "end")
    yield text((LEFT + RIGHT) / 2, BOTTOM + 40, "days until the run is done", "soft", "middle")


def _point(
    one: Outcome, days: _Axis, usd: _Axis, best: bool, taken: list[tuple[float, float]]
) -> Iterator[str]:
    """Yield a cross of the 5th to the 95th percentile, the median, and the name."""
    money, time = _usd(one), one.days
    x, y = days.at(time.p50), usd.at(money.p50)
    for x1, y1, x2, y2 in (
        (days.at(time.p5), y, days.at(time.p95), y),
        (x, usd.at(money.p5), x, usd.at(money.p95)),
    ):
        yield f'<line class="ideal" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    said = f"{one.label}: {format_predicted_time(time.p50 * DAY_S)}, {format_usd(money.p50)}"
    yield (
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{7 if best else 4.5}">'
        f"<title>{_escaped(said)}</title></circle>"
    )
    right = x > RIGHT - LONGEST
    at = y + 22 if best else y - 10
    while any(abs(at - other) < LINE and abs(x - beside) < LONGEST for beside, other in taken):
        at -= LINE
    taken.append((x, at))
    late = " (misses the date)" if not one.in_time else ""
    yield text(
        x - 8 if right else x + 8,
        at,
        f"{one.label}{late}",
        "head" if best else "",
        "end" if right else "start",
    )


def _about(found: ClusterComparison) -> str:
    said = "median of the lives, with the 5th to the 95th percentile; the line joins the best"
    return f"{said}. Not shown: {len(found.left_out)}" if found.left_out else said


def _usd(one: Outcome) -> Spread:
    assert one.usd is not None
    return Spread.of(one.usd)


def _ends(one: Outcome) -> tuple[float, float]:
    found = _usd(one)
    return max(found.p5, LEAST), max(found.p95, LEAST)


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
