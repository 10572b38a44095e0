"""Energy spans: sorted, with gaps filled, and divided over causes.

It is pure arithmetic on columns. The parts always add up to the total: dividing joules never makes
or loses any.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.ledger.causes import Cause
from penstock.ledger.journal.energy import EnergySource

# A writer that was killed leaves at most one span unwritten; a gap behind the last one that is
# longer is a node that was gone.
LONGEST_TAIL_S = 60.0


@dataclass(frozen=True)
class EnergySpans:
    """The energy of one device, or of several, in spans of time."""

    start: np.ndarray
    end: np.ndarray
    joules: np.ndarray  # NaN is unknown
    measured: np.ndarray  # by a counter, or by power × time

    @property
    def seconds(self) -> np.ndarray:
        return self.end - self.start

    @property
    def known(self) -> "EnergySpans":
        return self.where(np.isfinite(self.joules))

    @property
    def mean_w(self) -> float | None:
        """Mean power over the known spans, in watts."""
        known = self.known
        seconds = float(known.seconds.sum())
        return float(known.joules.sum()) / seconds if seconds > 0 else None

    @property
    def total_j(self) -> float:
        return float(self.known.joules.sum())

    @property
    def measured_j(self) -> float:
        return self.where(self.measured).total_j

    def where(self, chosen: np.ndarray) -> "EnergySpans":
        return EnergySpans(
            self.start[chosen], self.end[chosen], self.joules[chosen], self.measured[chosen]
        )

    def __add__(self, other: "EnergySpans") -> "EnergySpans":
        return EnergySpans(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.joules, other.joules]),
            np.concatenate([self.measured, other.measured]),
        )


def no_spans() -> EnergySpans:
    none = np.empty(0)
    return EnergySpans(none, none, none, np.empty(0, bool))


def spans_of_records(records: np.ndarray) -> EnergySpans:
    """Return the spans of one device, from one file or several; overlapping records count once."""
    end = records["t"].astype(np.float64)
    start = end - records["seconds"]
    joules = records["joules"].astype(np.float64)
    order = np.argsort(start, kind="stable")
    start, end, joules = start[order], end[order], joules[order]
    # Times are doubles and lengths are not: spans that follow each other may seem to overlap.
    taken = np.maximum.accumulate(np.concatenate([[-np.inf], end]))[:-1]
    begin = np.minimum(np.maximum(start, taken), end)
    joules = joules * np.divide(end - begin, end - start, where=end > start, out=np.zeros(len(end)))
    measured = (records["source"] <= EnergySource.POWER)[order]
    return EnergySpans(begin, end, joules, measured).where(end > begin)


def fill_gaps(
    spans: EnergySpans, windows: list[tuple[float, float]], closed: list[float]
) -> EnergySpans:
    """Fill unknown spans and gaps inside the windows with unmeasured spans at the mean known power.

    The result is NaN where nothing is known. A gap lies between two spans, or behind the last one
    if its writer did not say that it `closed`. Before the first span of a window the device was not
    there.
    """
    mean_w = spans.mean_w
    fill_w = np.nan if mean_w is None else mean_w
    unknown = ~np.isfinite(spans.joules)
    joules = np.where(unknown, fill_w * spans.seconds, spans.joules)
    made = EnergySpans(spans.start, spans.end, joules, spans.measured & ~unknown)
    gaps = [gap for window in windows for gap in _gaps(spans, *window, closed)]
    if not gaps:
        return made
    start, end = np.array(gaps).T
    return made + EnergySpans(start, end, fill_w * (end - start), np.zeros(len(gaps), bool))


def _gaps(
    spans: EnergySpans, low: float, high: float, closed: list[float]
) -> list[tuple[float, float]]:
    inside = spans.where((spans.end > low) & (spans.start < high))
    if not len(inside.start):
        return []
    holes = inside.start[1:] - inside.end[:-1] > 1e-3
    found = list(zip(inside.end[:-1][holes], inside.start[1:][holes], strict=True))
    last = float(inside.end[-1])
    ended = any(last - 1.0 <= t <= high + 1.0 for t in closed)
    if high > last and not ended:
        found.append((last, min(high, last + LONGEST_TAIL_S)))
    return found


def joules_by_cause(
    spans: EnergySpans, edges: np.ndarray, done: np.ndarray, watts: Mapping[Cause, float]
) -> dict[Cause, float]:
    """Divide the joules of the spans over what was done in them.

    `done` are the rank-seconds by cause before each of the `edges`. Where causes mix in a span,
    each gets its part by seconds × `watts`. A span in which nobody did anything counts as
    `startup`.
    """
    known = spans.known
    if not len(known.start):
        return dict.fromkeys(Cause, 0.0)
    share = cause_shares(known, edges, done, watts)
    return dict(zip(Cause, (known.joules @ share).tolist(), strict=True))


def cause_shares(
    known: EnergySpans, edges: np.ndarray, done: np.ndarray, watts: Mapping[Cause, float]
) -> np.ndarray:
    """Return the part of each cause in the energy of each span: [spans, causes]."""
    level = np.array([watts[cause] for cause in Cause])
    before, after = (
        np.array([np.interp(t, edges, column) for column in done.T]).T
        for t in (known.start, known.end)
    )
    weight = np.maximum(after - before, 0.0) * level
    weight[weight.sum(axis=1) <= 0, list(Cause).index(Cause.STARTUP)] = 1.0
    found: np.ndarray = weight / weight.sum(axis=1, keepdims=True)
    return found


def cut_at(spans: EnergySpans, cuts: np.ndarray) -> EnergySpans:
    """Return the spans cut at these moments; each part has its share of the joules by length."""
    first = np.searchsorted(cuts, spans.start, side="right")
    last = np.searchsorted(cuts, spans.end, side="left")
    parts = np.maximum(last - first, 0) + 1
    place = np.repeat(np.arange(len(parts)), parts)  # the span of each part
    number = np.arange(len(place)) - np.repeat(np.cumsum(parts) - parts, parts)
    if not len(cuts):
        return spans
    at = np.clip(first[place] + number, 0, len(cuts) - 1)
    before = np.clip(first[place] + number - 1, 0, len(cuts) - 1)
    start = np.where(number == 0, spans.start[place], cuts[before])
    end = np.where(number == parts[place] - 1, spans.end[place], cuts[at])
    share = np.divide(
        end - start,
        spans.seconds[place],
        where=spans.seconds[place] > 0,
        out=np.ones(len(place)),
    )
    return EnergySpans(start, end, spans.joules[place] * share, spans.measured[place])
