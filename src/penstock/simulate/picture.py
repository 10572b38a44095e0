"""A simulation as one picture: progress of all lives, and where the time of one of them goes.

Self-contained SVG, light or dark as the reader's screen is.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

import numpy as np

from penstock.ledger.causes import Cause
from penstock.simulate.result import Simulation
from penstock.simulate.vary import Comparison
from penstock.style import TIMES, cause_classes, unit_for

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT = 70, 740
UPPER, LOWER = (80, 270), (330, 510)
ROW = 16
SMALL = 0.003
STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 12px; }
.back { fill: #ffffff; } text { fill: #33373d; } .title { font-size: 17px; font-weight: 600; }
.head { font-weight: 600; } .soft { fill: #6b7078; } .grid { stroke: #e4e6ea; }
.band { fill: #2f66b0; opacity: 0.18; } .line { stroke: #2f66b0; stroke-width: 2.5; fill: none; }
.dot { fill: #2f66b0; } .ideal { stroke: #8a9099; stroke-dasharray: 5 4; fill: none; }
@media (prefers-color-scheme: dark) {
.back { fill: #16181c; } text { fill: #e3e5e8; } .soft { fill: #9aa1ab; }
.grid { stroke: #2c3036; } .band, .dot { fill: #7fb0f0; } .line { stroke: #7fb0f0; } }
"""


def svg(done: Simulation) -> str:
    """Draw the progress of all lives, and the causes over time of the life in the middle."""
    own = done.own
    t, steps = _courses(done)
    most = max(float(steps.max()), 1.0)
    last_s = max(float(t[-1]), 1.0)

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * at / last_s

    def y(step: float) -> float:
        return UPPER[1] - (UPPER[1] - UPPER[0]) * step / most

    low, middle, high = np.percentile(steps, (5, 50, 95), axis=0)
    parts = [
        text(LEFT, 30, f"{done.run.name}: {len(done.lives)} lives", "title"),
        text(
            LEFT,
            50,
            f"{own.ranks:,} accelerators; {done.interruptions.p50:,.0f} interruptions "
            f"({done.interruptions.p5:,.0f}–{done.interruptions.p95:,.0f}); "
            f"{100 * done.effective.p50:.1f} % effective",
            "soft",
        ),
        text(LEFT, UPPER[0] - 8, "steps done, median and 5th to 95th percentile", "head"),
        *_grid(UPPER, [(0.0, "0"), (1.0, f"{most:,.0f}")]),
        _polygon(
            zip(map(x, t), map(y, high), strict=True), zip(map(x, t), map(y, low), strict=True)
        ),
        f'<polyline class="line" points="{_points(zip(map(x, t), map(y, middle), strict=True))}"/>',
        text(LEFT, LOWER[0] - 8, "where the time of the life in the middle goes", "head"),
        *_grid(LOWER, [(0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %")]),
        *_layers(done, x),
        *_days(last_s, x, LOWER[1]),
    ]
    return sheet(parts, HEIGHT)


def compared(table: Comparison) -> str:
    """Draw the effective share of every variant: median, and 5th to 95th percentile."""
    height = 110 + 34 * len(table.variants)
    label = 290

    def x(share: float) -> float:
        return label + (WIDTH - 60 - label) * share

    name = table.variants[0].done.run.name
    parts = [
        text(30, 30, f"{name}: effective share of the time", "title"),
        text(30, 50, "median, and 5th to 95th percentile of the lives", "soft"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{x(share):.1f}" y1="66" x2="{x(share):.1f}" '
            f'y2="{height - 40}"/>'
        )
        parts.append(text(x(share), height - 22, f"{100 * share:.0f} %", "soft", "middle"))
    for place, one in enumerate(table.variants):
        y, found = 84 + 34 * place, one.done.effective
        wide = x(max(found.p95, 0.0)) - x(max(found.p5, 0.0))
        parts += [
            text(label - 12, y + 4, one.label, "", "end"),
            f'<rect class="band" x="{x(max(found.p5, 0.0)):.1f}" y="{y - 7}" '
            f'width="{max(wide, 1.0):.1f}" height="14"/>',
            f'<circle class="dot" cx="{x(max(found.p50, 0.0)):.1f}" cy="{y}" r="5"><title>'
            f"{100 * found.p50:.1f} %</title></circle>",
        ]
    return sheet(parts, height)


def _courses(done: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Return common moments, and the steps of every life at each of them."""
    last_s = float(done.wall_s.max())
    t = np.linspace(0.0, last_s, 121)
    rows = []
    for life in done.lives:
        course = sorted((at, step) for at, step, _ in life.course)
        rows.append(np.interp(t, [at for at, _ in course], [step for _, step in course]))
    return t, np.array(rows)


def _layers(done: Simulation, x: object) -> Iterator[str]:
    """Yield the shares of causes over time, stacked, with their names at the right."""
    assert callable(x)
    course = sorted(done.lives[done.middle].course, key=lambda moment: moment[0])
    t = np.array([at for at, _, _ in course])
    books = np.array([seconds for _, _, seconds in course])
    spans = np.diff(t)
    keep = spans > 0
    shares = np.diff(books, axis=0)[keep] / spans[keep][:, None]
    edges = np.stack([t[:-1][keep], t[1:][keep]], axis=1)
    below = np.zeros(len(edges))
    labels: list[tuple[str, float]] = []
    total = done.share
    for place, cause in enumerate(Cause):
        share = np.clip(shares[:, place], 0.0, 1.0)
        if share.max(initial=0.0) < SMALL:
            continue
        above = below + share
        upper = [(x(e), _y(a)) for pair, a in zip(edges, above, strict=True) for e in pair]
        lower = [(x(e), _y(b)) for pair, b in zip(edges, below, strict=True) for e in pair]
        yield f'<polygon class="c-{cause}" points="{_points([*upper, *reversed(lower)])}"/>'
        labels.append((str(cause), float(total(cause)[done.middle])))
        below = above
    for row, (name, share_of) in enumerate(labels):
        at = LOWER[1] - 6 - ROW * row
        yield f'<rect class="c-{name}" x="{RIGHT + 12}" y="{at - 9}" width="10" height="10"/>'
        yield text(RIGHT + 28, at, f"{name.replace('_', ' ')} {100 * share_of:.1f} %")


def _y(share: float) -> float:
    return LOWER[1] - (LOWER[1] - LOWER[0]) * min(share, 1.0)


def _days(last_s: float, x: object, bottom: float) -> Iterator[str]:
    assert callable(x)
    word, unit = unit_for(last_s, TIMES)
    for place in range(7):
        at = last_s * place / 6
        yield text(x(at), bottom + 18, f"{at / unit:,.3g}", "soft", "middle")
    yield text((LEFT + RIGHT) / 2, bottom + 36, word, "soft", "middle")


def _grid(panel: tuple[int, int], ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for share, words in ticks:
        y = panel[1] - (panel[1] - panel[0]) * share
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, words, "soft", "end")


def _polygon(upper: Iterable[tuple[float, float]], lower: Iterable[tuple[float, float]]) -> str:
    return f'<polygon class="band" points="{_points([*upper, *reversed(list(lower))])}"/>'


def _points(found: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in found)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return words at a place."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def sheet(parts: Iterable[str], height: int) -> str:
    """Return a whole picture."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<style>{STYLE}{cause_classes()}</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{height}"/>\n{body}\n</svg>\n'
    )
