"""The errors of predictions against measurements, in percent of the measured value.

Sources differ a hundredfold in how many rows they publish, so the headline is the macro average:
the mean over sources of each source's mean. Otherwise the largest table alone would decide.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar


@dataclass(frozen=True)
class ScoredPair:
    """One prediction and its measurement, in the same unit."""

    predicted: float
    measured: float
    source: str
    accelerator: str

    @property
    def error(self) -> float:
        """Return the signed error in percent: above zero is predicted too large."""
        return (self.predicted / self.measured - 1) * 100

    @property
    def ape(self) -> float:
        """Return the absolute percentage error."""
        return abs(self.error)


@dataclass(frozen=True)
class Score:
    """Errors of a group of pairs; None where there is none to average."""

    rows: int
    mape: float | None
    median_ape: float | None
    bias: float | None
    macro_mape: float | None


P = TypeVar("P", bound=ScoredPair)


def score(pairs: Sequence[ScoredPair]) -> Score:
    return Score(len(pairs), mape(pairs), median_ape(pairs), bias(pairs), macro_mape(pairs))


def mape(pairs: Sequence[ScoredPair]) -> float | None:
    return fmean(p.ape for p in pairs) if pairs else None


def median_ape(pairs: Sequence[ScoredPair]) -> float | None:
    return median(p.ape for p in pairs) if pairs else None


def bias(pairs: Sequence[ScoredPair]) -> float | None:
    return fmean(p.error for p in pairs) if pairs else None


def macro_mape(pairs: Sequence[ScoredPair]) -> float | None:
    """Return the mean over sources of the source's mean error."""
    own = [fmean(p.ape for p in group) for group in by_source(pairs).values()]
    return fmean(own) if own else None


def by_source(pairs: Iterable[P]) -> dict[str, list[P]]:
    return _grouped(pairs, lambda pair: pair.source)


def by_accelerator(pairs: Iterable[P]) -> dict[str, list[P]]:
    return _grouped(pairs, lambda pair: pair.accelerator)


def _grouped(pairs: Iterable[P], key: Callable[[P], str]) -> dict[str, list[P]]:
    """Group the rows, largest group first."""
    groups: dict[str, list[P]] = {}
    for pair in pairs:
        groups.setdefault(key(pair), []).append(pair)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def worst(pairs: Iterable[P], count: int) -> list[P]:
    return sorted(pairs, key=lambda pair: -pair.ape)[:count]
