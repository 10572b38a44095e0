"""A sweep as one picture: the speed, and where the rest of the accelerators' time goes.

A self-contained SVG, light or dark as the reader's screen is: two panels over the number of
accelerators, with the points where one limit takes over from another named between them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan.scaling.sweep import ScalePoint, ScalingSweep, Takeover
from penstock.style import cause_classes, format_count

WIDTH, HEIGHT = 900, 640
LEFT, RIGHT = 70, 740  # of both panels; labels stand to the right
SPEED = (92, 276)  # top and bottom of the upper panel
SHARES = (364, 576)
ROW = 16  # of text
CHARACTER = 7.0  # width of one in bold at 12 px, on average
SMALL = 0.005  # causes that never reach this share are drawn as one
TICKS = 9  # at most, under the panels

STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 12px; }
.back { fill: #ffffff; } text { fill: #33373d; } .title { font-size: 17px; font-weight: 600; }
.head { font-weight: 600; } .soft { fill: #6b7078; } .grid { stroke: #e4e6ea; }
.axis { stroke: #9aa0a8; } .ideal { stroke: #8a9099; stroke-dasharray: 5 4; fill: none; }
.speed { stroke: #2f66b0; stroke-width: 2.5; fill: none; } .dot { fill: #2f66b0; }
.gap { fill: #2f66b0; opacity: 0.08; } .turn { stroke: #33373d; stroke-dasharray: 2 3; }
.none { fill: #9aa0a8; opacity: 0.18; } .layer { stroke: #ffffff; stroke-width: 0.7; }
@media (prefers-color-scheme: dark) {
.back { fill: #16181c; } text { fill: #e3e5e8; } .soft { fill: #9aa1ab; }
.grid { stroke: #2c3036; } .axis { stroke: #6b727c; } .turn { stroke: #e3e5e8; }
.speed { stroke: #7fb0f0; } .dot { fill: #7fb0f0; } .gap { fill: #7fb0f0; }
.layer { stroke: #16181c; } }
.c-other { fill: #8f979f; }
"""


@dataclass(frozen=True)
class PictureAxes:
    """The positions of counts, speeds and shares on the sheet."""

    low: float  # log2 of the counts at the ends
    high: float
    slowest: float  # log10 of the tokens/s at the bottom and the top
    fastest: float

    @classmethod
    def of(cls, sweep: ScalingSweep) -> "PictureAxes":
        counts = [point.accelerators for point in sweep.points]
        low, high = log2(min(counts)), log2(max(counts))
        if low == high:
            low, high = low - 0.5, high + 0.5
        planned = [point for point in sweep.points if point.plan]
        speeds = [point.tokens_per_s or 0.0 for point in planned]
        ideal = [point.accelerators * sweep.perfect_each for point in planned]
        return cls(low, high, floor(log10(min(speeds))), ceil(log10(max(ideal)) * 2) / 2)

    def x(self, count: float) -> float:
        return LEFT + (RIGHT - LEFT) * (log2(count) - self.low) / (self.high - self.low)

    def speed_y(self, tokens_per_s: float) -> float:
        share = (log10(tokens_per_s) - self.slowest) / (self.fastest - self.slowest)
        return SPEED[1] - (SPEED[1] - SPEED[0]) * share


def svg(sweep: ScalingSweep) -> str:
    """Draw the whole picture."""
    if not any(point.plan for point in sweep.points):
        first = sweep.points[0]
        raise PenstockError(
            f"picture: no number of accelerators has a plan. {first.accelerators:,}: "
            f"{first.reason or first.limit}"
        )
    axes = PictureAxes.of(sweep)
    parts = (
        _heading(sweep),
        _nothing(sweep, axes),
        _speed_panel(sweep, axes),
        _shares_panel(sweep, axes),
        _turns(sweep, axes),
        _counts(sweep, axes),
    )
    body = "\n".join(line for part in parts for line in part)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{STYLE}{cause_classes()}</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>\n{body}\n</svg>\n'
    )


def _heading(sweep: ScalingSweep) -> Iterator[str]:
    batch = next(point.plan.step.tokens for point in sweep.points if point.plan)
    yield _text(LEFT, 30, f"{sweep.name} on {sweep.accelerator}: how it scales", "title")
    yield _text(
        LEFT, 50, f"batch of {format_count(batch)} tokens, best layout at each count", "soft"
    )


def _speed_panel(sweep: ScalingSweep, axes: PictureAxes) -> Iterator[str]:
    planned = [point for point in sweep.points if point.plan]
    yield _text(LEFT, SPEED[0] - 8, "tokens per second", "head")
    powers = range(ceil(axes.slowest), floor(axes.fastest) + 1)
    for power in powers[:: 1 if len(powers) <= 5 else 2]:
        y = axes.speed_y(10.0**power)
        yield _line(LEFT, y, RIGHT, y, "grid")
        yield _text(LEFT - 8, y + 4, format_count(10.0**power), "soft", "end")
    real = [(axes.x(p.accelerators), axes.speed_y(p.tokens_per_s or 1.0)) for p in planned]
    ideal = [
        (axes.x(p.accelerators), axes.speed_y(p.accelerators * sweep.perfect_each)) for p in planned
    ]
    yield f'<polygon class="gap" points="{_points([*real, *reversed(ideal)])}"/>'
    yield f'<polyline class="ideal" points="{_points(ideal)}"/>'
    yield f'<polyline class="speed" points="{_points(real)}"/>'
    for point, (x, y) in zip(planned, real, strict=True):
        told = (
            f"{point.accelerators:,} accelerators: {format_count(point.tokens_per_s or 0)} tokens/s"
        )
        yield f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{told}</title></circle>'
    last = planned[-1]
    most = last.accelerators * sweep.perfect_each
    speed = last.tokens_per_s or 0.0
    (x, ideal_y), (_, real_y) = ideal[-1], real[-1]
    apart = max(real_y, ideal_y + 2 * ROW + 4)
    yield _text(x + 10, ideal_y + 4, f"perfect: {format_count(most)}", "soft")
    yield _text(x + 10, ideal_y + 4 + ROW, f"({format_count(sweep.perfect_each)} each)", "soft")
    yield _text(x + 10, apart + 4, format_count(speed), "head")
    yield _text(x + 10, apart + 4 + ROW, f"{_percent(speed / most)} of perfect")


def _shares_panel(sweep: ScalingSweep, axes: PictureAxes) -> Iterator[str]:
    planned = [point for point in sweep.points if point.plan]
    yield _text(LEFT, SHARES[0] - 8, "where accelerator-time goes, over the whole run", "head")
    for share in (0.0, 0.5, 1.0):
        y = _share_y(share)
        yield _line(LEFT, y, RIGHT, y, "grid")
        yield _text(LEFT - 8, y + 4, f"{100 * share:.0f} %", "soft", "end")
    below = [0.0] * len(planned)
    ends: list[tuple[float, str, float]] = []  # where a layer ends, its name, its share
    for name, shares in _layers(planned):
        above = [low + share for low, share in zip(below, shares, strict=True)]
        outline = [*_course(planned, above, axes), *reversed(_course(planned, below, axes))]
        yield f'<polygon class="layer c-{name}" points="{_points(outline)}"/>'
        ends.append((_share_y((below[-1] + above[-1]) / 2), name, shares[-1]))
        below = above
    x = axes.x(planned[-1].accelerators) + 10
    for y, (_, name, share) in zip(_spread([y for y, _, _ in ends]), ends, strict=True):
        yield f'<rect class="c-{name}" x="{x:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
        words = f"{name.replace('_', ' ')} {_percent(share)}"
        yield _text(x + 16, y + 4, words)


def _layers(planned: Sequence[ScalePoint]) -> list[tuple[str, list[float]]]:
    """Return shares by cause from the bottom up, at each point; causes that never matter are one
    layer.
    """
    shares = [point.shares for point in planned]
    by_cause = {str(cause): [found[str(cause)] for found in shares] for cause in Cause}
    shown = {name: row for name, row in by_cause.items() if max(row) >= SMALL}
    other = [
        sum(row[i] for n, row in by_cause.items() if n not in shown) for i in range(len(shares))
    ]
    return [*shown.items(), *([("other", other)] if max(other) >= SMALL else [])]


def _course(
    planned: Sequence[ScalePoint], heights: Sequence[float], axes: PictureAxes
) -> list[tuple[float, float]]:
    """Draw a line over the counts; a single count is drawn as wide as the panel."""
    if len(planned) == 1:
        return [(LEFT, _share_y(heights[0])), (RIGHT, _share_y(heights[0]))]
    return [
        (axes.x(point.accelerators), _share_y(height))
        for point, height in zip(planned, heights, strict=True)
    ]


def _share_y(share: float) -> float:
    return SHARES[1] - (SHARES[1] - SHARES[0]) * share


def _spread(wanted: Sequence[float]) -> list[float]:
    """Place labels from the bottom up, a row apart and inside the panel."""
    placed: list[float] = []
    for y in wanted:
        placed.append(min(y, placed[-1] - ROW) if placed else min(y, SHARES[1] - 4))
    ceiling = SHARES[0] + 4.0
    for i in reversed(range(len(placed))):
        placed[i] = max(placed[i], ceiling)
        ceiling = placed[i] + ROW
    return placed


def _nothing(sweep: ScalingSweep, axes: PictureAxes) -> Iterator[str]:
    """Mark counts without a plan at either end, with the reason."""
    planned = [point.accelerators for point in sweep.points if point.plan]
    for edge, inner in ((sweep.points[0], planned[0]), (sweep.points[-1], planned[-1])):
        if edge.plan:
            continue
        left, right = sorted((axes.x(edge.accelerators), axes.x(inner)))
        for top, bottom in (SPEED, SHARES):
            yield (
                f'<rect class="none" x="{left:.1f}" y="{top}" width="{right - left:.1f}" '
                f'height="{bottom - top}"><title>{escape(edge.reason)}</title></rect>'
            )
        x, y = (left + right) / 2 + 4, SHARES[1] - 10
        words = escape(edge.limit)
        yield f'<text class="soft" transform="translate({x:.1f} {y}) rotate(-90)">{words}</text>'


def _turns(sweep: ScalingSweep, axes: PictureAxes) -> Iterator[str]:
    """Draw the take-overs: a line through both panels, and between them the name of the new limit.

    The first limit has a name alone.

    From the right, so that a name with no room beside the next one goes a row lower, where its
    leader passes left of all others. One that finds no row keeps its line alone.
    """
    rows = [float(WIDTH)] * 3  # up to where each row is free
    first = sweep.points[0]
    start = [Takeover(first.accelerators, first.limit, "")] if first.plan else []
    for turn in reversed([*start, *sweep.takeovers]):
        x = axes.x(turn.accelerators)
        if turn.before:
            yield _line(x, SHARES[0], x, SHARES[1], "turn")
        width = CHARACTER * len(turn.limit) + 8
        left = min(x + 5, WIDTH - width)
        row = next((i for i, free in enumerate(rows) if left + width <= free), None)
        end = SPEED[1]
        if row is not None:
            rows[: row + 1] = [min(free, left - 5) for free in rows[: row + 1]]
            end += 20 + ROW * row
            yield _text(left, end - 2, turn.limit, "head")
        if turn.before:
            yield _line(x, SPEED[0], x, end, "turn")


def _counts(sweep: ScalingSweep, axes: PictureAxes) -> Iterator[str]:
    counts = [point.accelerators for point in sweep.points]
    every = ceil(len(counts) / TICKS)
    # From the right, so that the largest count is always named.
    for count in counts[::-1][::every]:
        x = axes.x(count)
        yield _line(x, SHARES[1], x, SHARES[1] + 5, "axis")
        yield _text(x, SHARES[1] + 20, f"{count:,}", "soft", "middle")
    yield _line(LEFT, SHARES[1], RIGHT, SHARES[1], "axis")
    yield _text((LEFT + RIGHT) / 2, SHARES[1] + 42, "accelerators", "soft", "middle")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def _points(found: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in found)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
