"""The outcome of a backtest: rows with both numbers, out-of-memory calls, sweeps, and the
baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from penstock.plan.backtest import ranking, scores
from penstock.plan.backtest.ranking import LayoutSweep
from penstock.plan.backtest.rows import Kind, MeasuredRow
from penstock.plan.backtest.scores import ScoredPair, score

# Below this, fixed costs of the driver and the allocator outweigh the model: scored apart.
SMALL_GIB = 10.0


@dataclass(frozen=True)
class ScoredRow(ScoredPair):
    """A predicted row that has a measured value."""

    row: MeasuredRow
    unit: str  # "s", "GiB"; "%" where a row gives a share of another layout's memory

    @property
    def moe(self) -> bool:
        return self.row.job is not None and self.row.job.shape.moe


@dataclass(frozen=True)
class OomCall:
    """A row of which it is known whether it ran out of memory."""

    row: MeasuredRow
    oom: bool  # measured
    fits: bool  # predicted


@dataclass(frozen=True)
class BacktestReport:
    """The backtest of one file."""

    kind: Kind
    leave_one_out: bool  # the planner's constants were fitted without the source being scored
    rows: int
    skipped: tuple[tuple[int, str], ...]  # row number, reason
    items: tuple[ScoredRow, ...]
    calls: tuple[OomCall, ...] = ()  # memory only
    sweeps: tuple[LayoutSweep, ...] = ()  # throughput only, as the three below
    fixed_sweeps: tuple[
        LayoutSweep, ...
    ] = ()  # where the options of the software stay the same too
    baseline: tuple[ScoredRow, ...] = ()  # one constant MFU, fitted on these rows
    baseline_left_out: tuple[
        ScoredRow, ...
    ] = ()  # the same, fitted without the source being scored

    @property
    def predicted(self) -> int:
        return self.rows - len(self.skipped)

    @property
    def scored(self) -> list[ScoredRow]:
        """Return the rows of the headline figures."""
        return [i for i in self.items if i.unit == "s" or (_gib(i) and i.measured >= SMALL_GIB)]

    @property
    def small(self) -> list[ScoredRow]:
        return [i for i in self.items if _gib(i) and i.measured < SMALL_GIB]

    @property
    def relative(self) -> list[ScoredRow]:
        """Return the shares of another layout's memory: they have no size, so neither large nor
        small.
        """
        return [i for i in self.items if i.unit == "%"]

    @property
    def rival(self) -> tuple[ScoredRow, ...]:
        """Return the baseline that was fitted as the planner was."""
        return self.baseline_left_out if self.leave_one_out else self.baseline

    @property
    def oom_missed(self) -> list[OomCall]:
        return [call for call in self.calls if call.oom and call.fits]

    @property
    def oom_false(self) -> list[OomCall]:
        return [call for call in self.calls if not call.oom and not call.fits]

    def to_json(self) -> dict[str, object]:
        head = block(self.scored)
        return {
            "kind": self.kind,
            "leave_one_out": self.leave_one_out,
            "predicted": self.predicted,
            "skipped": [{"row": number, "reason": reason} for number, reason in self.skipped],
            **head,
            "rows": self.rows,
            "scored_rows": head["rows"],
            "by_accelerator": _scores(scores.by_accelerator(self.scored)),
            "regret": ranking.regret(self.sweeps),
            "kendall_tau": ranking.tau(self.sweeps),
            **(self._memory_json() if self.kind == "memory" else self._throughput_json()),
            "items": [_item(item) for item in self.items],
        }

    def _throughput_json(self) -> dict[str, object]:
        return {
            "sweeps": _sweeps(self.sweeps),
            "sweeps_fixed_software": _sweeps(self.fixed_sweeps),
            "baseline": {
                "in_sample": block(self.baseline),
                "leave_one_out": block(self.baseline_left_out),
            },
            "oom_missed": None,
            "oom_false": None,
        }

    def _memory_json(self) -> dict[str, object]:
        return {
            "small": block(self.small),
            "relative": block(self.relative),
            "oom_missed": len(self.oom_missed),
            "oom_false": len(self.oom_false),
            "oom_calls": [
                {"row": call.row.number, "oom": call.oom, "fits": call.fits} for call in self.calls
            ],
        }


def _gib(item: ScoredRow) -> bool:
    return item.unit == "GiB"


def _item(item: ScoredRow) -> dict[str, object]:
    return {
        "row": item.row.number,
        "predicted": item.predicted,
        "measured": item.measured,
        "unit": item.unit,
        "ape": item.ape,
        "source": item.source,
        "accelerator": item.accelerator,
        "assumed": list(item.row.assumed),
    }


def block(items: Sequence[ScoredRow]) -> dict[str, object]:
    """Return the errors of these rows: together, dense and MoE apart, and by source."""
    return {
        **asdict(score(items)),
        "dense": asdict(score([item for item in items if not item.moe])),
        "moe": asdict(score([item for item in items if item.moe])),
        "by_source": _scores(scores.by_source(items)),
    }


def _scores(groups: Mapping[str, Sequence[ScoredRow]]) -> dict[str, dict[str, float | int | None]]:
    return {name: asdict(score(items)) for name, items in groups.items()}


def _sweeps(found: Sequence[LayoutSweep]) -> dict[str, object]:
    regrets = [sweep.regret for sweep in found]
    return {
        "regret": ranking.regret(found),
        "kendall_tau": ranking.tau(found),
        "mean_regret": fmean(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
        "each": [
            {
                "source": sweep.source,
                "job": sweep.name,
                "layouts": len(sweep.measured_s),
                "regret": sweep.regret,
                "kendall_tau": sweep.tau,
            }
            for sweep in found
        ],
    }
