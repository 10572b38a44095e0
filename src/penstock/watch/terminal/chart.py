"""A curve in a few lines of text, made of braille dots: eight in a character."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

# Bits of a braille character by its dot's row and column, from U+2800 on.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800
MARK = "◆"
LABEL = 7  # characters of the scale on the left
EARLY = 0.06  # of the steps, whose fall would flatten all the rest


@dataclass(frozen=True)
class BrailleChart:
    """A chart of `width` × `height` characters, with its scale and steps."""

    width: int
    height: int
    line: str = "green"
    marks: str = "yellow"

    def lines(
        self, x: np.ndarray, y: np.ndarray, marks: Sequence[tuple[float, float]] = ()
    ) -> list[Text]:
        """Return the lines of `y` over increasing `x` with some points marked; NaN leaves a gap."""
        rows, columns = self.height - 1, self.width - LABEL - 1
        if rows < 1 or columns < 4 or not len(x):
            return []
        first, last = float(x[0]), float(x[-1])
        means = _columns(x, y, 2 * columns)
        low, high = scale(means, [value for _, value in marks])
        cells = np.zeros((rows, columns), np.uint8)
        _connect(cells, [_dot(value, low, high, 4 * rows) for value in means])
        marked = {
            (
                _dot(value, low, high, 4 * rows) // 4,
                min(columns - 1, int((at - first) / max(last - first, 1e-9) * columns)),
            )
            for at, value in marks
            if math.isfinite(value) and first <= at <= last
        }
        lines = [
            self._row(label, cells[row], {column for r, column in marked if r == row})
            for row, label in enumerate(_labels(low, high, rows))
        ]
        return [*lines, self._steps(first, last, columns)]

    def _row(self, label: str, cells: np.ndarray, marked: set[int]) -> Text:
        drawn = [chr(BLANK + bits) if bits else " " for bits in cells.tolist()]
        for column in marked:
            drawn[column] = MARK
        line = Text(f"{label:>{LABEL}} {''.join(drawn)}", no_wrap=True)
        line.stylize("dim", 0, LABEL)
        line.stylize(self.line, LABEL + 1)
        for column in marked:
            line.stylize(self.marks, LABEL + 1 + column, LABEL + 2 + column)
        return line

    def _steps(self, first: float, last: float, columns: int) -> Text:
        left, right = f"{first:,.0f}", f"step {last:,.0f}"
        room = max(1, columns - len(left) - len(right))
        return Text(" " * (LABEL + 1) + left + " " * room + right, style="dim", no_wrap=True)


def scale(means: Sequence[float], others: Sequence[float] = ()) -> tuple[float, float]:
    """Return the lowest and highest value to show: marks, and the curve after its first fall."""
    known = [value for value in means if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    later = known[math.ceil(len(known) * EARLY) :] or known
    shown = [*later, *(value for value in others if math.isfinite(value))]
    low, high = min(shown), float(np.quantile(shown, 0.98))
    if high - low < 1e-6 * max(1.0, abs(high)):
        room = max(0.5, 1e-3 * abs(high))
        return low - room, high + room
    return low, high


def _columns(x: np.ndarray, y: np.ndarray, count: int) -> list[float]:
    """Return the mean of `y` in each of `count` equal parts of the range of `x`, else NaN.

    A part without points that lies between two points is interpolated.
    """
    good = np.isfinite(y)
    if not good.any():
        return [math.nan] * count
    span = max(float(x[-1]) - float(x[0]), 1e-9)
    place = np.minimum(((x[good] - float(x[0])) / span * count).astype(np.int64), count - 1)
    sums = np.bincount(place, y[good], count)
    counts = np.bincount(place, minlength=count)
    filled_columns = np.flatnonzero(counts)
    means = sums[filled_columns] / counts[filled_columns]
    filled = np.interp(np.arange(count), filled_columns, means)
    padded = np.pad(filled, 1, mode="edge")
    calm = 0.25 * padded[:-2] + 0.5 * filled + 0.25 * padded[2:]  # less of the batches' noise
    calm[: filled_columns[0]] = calm[filled_columns[-1] + 1 :] = math.nan
    return [float(value) for value in calm]


def _dot(value: float, low: float, high: float, dots: int) -> int:
    """Return the row of dots of a value, 0 on top; values beyond the scale are at its edge."""
    if not math.isfinite(value):
        return -1
    share = (high - value) / (high - low)
    return min(dots - 1, max(0, round(share * (dots - 1))))


def _connect(cells: np.ndarray, dots: Sequence[int]) -> None:
    """Set the dot of each column and those between it and the one before: a line, not points."""
    before = -1
    for column, dot in enumerate(dots):
        if dot >= 0:
            start = dot if before < 0 else before + (dot > before) - (dot < before)
            for row in range(min(start, dot), max(start, dot) + 1):
                cells[row // 4, column // 2] |= DOTS[row % 4][column % 2]
        before = dot


def _labels(low: float, high: float, rows: int) -> list[str]:
    """Return the labels of the scale: at its ends and, if there is room, in the middle."""
    labels = [""] * rows
    labels[0] = _short(high)
    if rows > 1:
        labels[-1] = _short(low)
    if rows > 4:
        middle = rows // 2
        labels[middle] = _short(high - (high - low) * (middle + 0.5) / rows)
    return labels


def _short(value: float) -> str:
    """Format in seven characters."""
    if abs(value) < 99:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) < 99_999 else f"{value:.0e}"
