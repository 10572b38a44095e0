"""Charts of a run as inline SVG, without script and with colours from the page's style sheet.

A chart is stretched to the width of the page, so its numbers are HTML around it.
"""

import math
import time
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.over_time import CausesOverTime
from penstock.style import format_duration
from penstock.watch.facts.downsample import block_means, block_starts
from penstock.watch.style.markup import Markup, join, tag

MOST_POINTS = 400
_WIDE, _TALL = 1000, 240


def curve(
    steps: np.ndarray, losses: np.ndarray, validation: Sequence[tuple[int, float]], about: str
) -> Markup:
    """Return the training and validation loss by step."""
    x, y = _downsample(steps, losses)
    others = [(step, value) for step, value in validation if math.isfinite(value)]
    heights = np.concatenate([y, [value for _, value in others]])
    if not len(heights):
        return join()
    low, high = _bounds(heights)
    right = float(max([1.0, *x.tolist(), *(step for step, _ in others)]))

    def place(step: float, value: float) -> str:
        return f"{step / right * _WIDE:.1f},{_from_top(value, low, high):.1f}"

    drawn = [_grid(), _path(place(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True))]
    if others:
        drawn.append(_path((place(*pair) for pair in others), "validation"))
    labels = [f"{value:.4g}" for value in (high, (low + high) / 2, low)]
    names = {"loss": "on what it trains", "validation": "on held-out samples"} if others else {}
    return _figure(drawn, labels, ("step 0", f"step {right:,.0f}"), about, names)


def areas(found: CausesOverTime, about: str) -> Markup:
    """Return the shares of the causes over time as stacked areas."""
    length = np.diff(found.edges)
    whole = found.seconds.sum(axis=1)
    if not whole.sum() or not length.all():
        return join()
    # Relative to the largest number of ranks: time between invocations stays empty.
    shares = found.seconds / (whole / length).max() / length[:, None]
    upper = np.cumsum(shares, axis=1)
    lower = upper - shares
    x = (found.edges - found.edges[0]) / (found.edges[-1] - found.edges[0]) * _WIDE
    drawn, names = [], {}
    for place, cause in enumerate(Cause):
        if not shares[:, place].any():
            continue
        top, bottom = _stairs(x, upper[:, place]), _stairs(x, lower[:, place])
        path = f"M{' L'.join([*top, *bottom[::-1]])}Z"
        drawn.append(tag("path", d=path, class_=f"area c-{cause}"))
        names[f"c-{cause}"] = str(cause)
    ends = (_clock(found.edges[0]), _clock(found.edges[-1]))
    return _figure(drawn, ("100 %", "50 %", "0"), ends, about, names)


def stack(seconds: Sequence[float], whole: float, about: str) -> Markup:
    """Return one bar of all causes."""
    rects, at = [], 0.0
    for cause, length in zip(Cause, seconds, strict=True):
        if length > 0 and whole > 0:
            width, start = 100 * length / whole, 100 * at / whole
            title = tag("title", f"{cause}: {format_duration(length)}")
            sizes = {"x": f"{start:.3f}%", "width": f"{width:.3f}%", "height": "100%"}
            rects.append(tag("g", title, tag("rect", class_=f"c-{cause}", **sizes)))
            at += length
    return tag("svg", *rects, class_="bar", role="img", aria_label=about)


def _downsample(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `MOST_POINTS` finite points, each the mean of its neighbours."""
    fine = np.isfinite(y)
    x, y = x[fine].astype(np.float64), y[fine].astype(np.float64)
    if len(x) <= MOST_POINTS:
        return x, y
    starts = block_starts(len(x), MOST_POINTS)
    return block_means(x, starts), block_means(y, starts)


def _bounds(values: np.ndarray) -> tuple[float, float]:
    """Return the scale without the highest 1 %: the first steps would flatten all others."""
    low, high = float(values.min()), float(np.quantile(values, 0.99))
    room = (high - low) * 0.05 or max(abs(high), 1.0) * 0.05
    return low - room, high + room


def _from_top(value: float, low: float, high: float) -> float:
    return _TALL * (1 - min(max((value - low) / (high - low), 0.0), 1.0))


def _stairs(x: np.ndarray, shares: np.ndarray) -> list[str]:
    """Return the corners of each share from the left to the right border of its bin."""
    points = []
    for place, share in enumerate(shares.tolist()):
        y = _TALL * (1 - min(share, 1.0))
        points += [f"{x[place]:.1f},{y:.1f}", f"{x[place + 1]:.1f},{y:.1f}"]
    return points


def _path(points: Iterable[str], kind: str = "loss") -> Markup:
    return tag("path", d=f"M{' L'.join(points)}", class_=f"line {kind}")


def _grid() -> Markup:
    heights = (0.5, _TALL / 2, _TALL - 0.5)
    return join(*(tag("line", x1=0, y1=y, x2=_WIDE, y2=y, class_="axis") for y in heights))


def _figure(
    drawn: Sequence[Markup],
    heights: Sequence[str],
    ends: tuple[str, str],
    about: str,
    names: dict[str, str],
) -> Markup:
    box = {"viewBox": f"0 0 {_WIDE} {_TALL}", "preserveAspectRatio": "none"}
    picture = tag("svg", *drawn, class_="chart", role="img", aria_label=about, **box)
    scale = tag("div", *(tag("span", label) for label in heights), class_="scale")
    ticks = tag("div", tag("span", ends[0]), tag("span", ends[1], class_="last"), class_="ticks")
    legend = [tag("span", tag("i", class_=kind), name) for kind, name in names.items()]
    return tag(
        "figure",
        tag("div", scale, picture, class_="plot"),
        ticks,
        tag("div", *legend, class_="legend") if legend else join(),
        tag("figcaption", about),
    )


def _clock(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t))
