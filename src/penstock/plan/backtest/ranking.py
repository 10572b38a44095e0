"""The planner's order of layouts against the measured one: only that matters when it chooses one.

A sweep is one job that a source measured in three layouts or more. Regret is what the planner's
first choice costs over the best that was measured; Kendall's tau is how much of the order is right.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median

from penstock.plan.backtest.rows import MeasuredRow
from penstock.plan.job.job import Software
from penstock.plan.job.layout import Layout

Ways = dict[tuple[Layout, Software], list[tuple[MeasuredRow, float, float]]]

FEWEST_LAYOUTS = 3


@dataclass(frozen=True)
class LayoutSweep:
    """The layouts of one job, each with a predicted and a measured step time."""

    source: str
    name: str
    predicted_s: tuple[float, ...]
    measured_s: tuple[float, ...]

    @property
    def regret(self) -> float:
        """Return the loss of the planner's choice in percent. Layouts that share the first place
        count as the slowest of them.
        """
        first = min(self.predicted_s)
        chosen = [m for p, m in zip(self.predicted_s, self.measured_s, strict=True) if p <= first]
        return (max(chosen) / min(self.measured_s) - 1) * 100

    @property
    def tau(self) -> float:
        return kendall_tau(self.predicted_s, self.measured_s)


def sweeps(
    timed: Iterable[tuple[MeasuredRow, float, float]], fixed_software: bool = False
) -> list[LayoutSweep]:
    """Return the sweeps among (row, predicted, measured).

    The same layout run by the same software twice (two releases) counts once, as the median. A
    source may change options of the software, such as overlap, along with the layout: they are
    part of the choice, or with `fixed_software` rows with other options make another sweep.
    """
    jobs: dict[Hashable, Ways] = {}
    for row, predicted_s, measured_s in timed:
        if row.job:
            software = row.job.software
            key = (job_key(row), software if fixed_software else None)
            same = jobs.setdefault(key, {}).setdefault((row.job.layout, software), [])
            same.append((row, predicted_s, measured_s))
    return [
        _sweep(ways)
        for ways in jobs.values()
        if len({layout for layout, _ in ways}) >= FEWEST_LAYOUTS
    ]


def _sweep(ways: Ways) -> LayoutSweep:
    row = next(iter(ways.values()))[0][0]
    assert row.job
    name = f"{row.cells.get('model_name', '')} on {row.job.layout.ranks} {row.cells.get('gpu', '')}"
    return LayoutSweep(
        source=row.source,
        name=name,
        predicted_s=tuple(median(p for _, p, _ in same) for same in ways.values()),
        measured_s=tuple(median(m for _, _, m in same) for same in ways.values()),
    )


def job_key(row: MeasuredRow) -> Hashable:
    """Return everything that a change of layout leaves as it is."""
    job = row.job
    assert job
    words = (row.cells.get(k, "").lower() for k in ("model_name", "gpu", "precision", "framework"))
    numbers = (job.sequence, job.batch, job.layout.ranks, job.adapter, job.precision)
    return (row.source, *words, job.shape, *numbers)


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Return tau-b, from -1 (reversed) to 1 (same order). 0 when one side is all ties: no order
    there.
    """
    agree = tied_a = tied_b = pairs = 0
    for (a1, b1), (a2, b2) in combinations(zip(a, b, strict=True), 2):
        pairs += 1
        tied_a += a1 == a2
        tied_b += b1 == b2
        if a1 != a2 and b1 != b2:
            agree += 1 if (a1 < a2) == (b1 < b2) else -1
    scale = sqrt((pairs - tied_a) * (pairs - tied_b))
    return agree / scale if scale else 0.0


def regret(found: Sequence[LayoutSweep]) -> float | None:
    """Return the mean over sources of the mean over the source's sweeps, in percent."""
    return _macro(found, lambda sweep: sweep.regret)


def tau(found: Sequence[LayoutSweep]) -> float | None:
    """Return tau, averaged as regret is."""
    return _macro(found, lambda sweep: sweep.tau)


def _macro(found: Sequence[LayoutSweep], of: Callable[[LayoutSweep], float]) -> float | None:
    sources = sorted({sweep.source for sweep in found})
    own = [fmean(of(sweep) for sweep in found if sweep.source == source) for source in sources]
    return fmean(own) if own else None
