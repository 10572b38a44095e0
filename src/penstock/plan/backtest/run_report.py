"""The outcome of a backtest of whole runs: hours and energy, planned and published."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles

from penstock.plan.backtest.run_rows import WholeRunRow
from penstock.plan.backtest.scores import ScoredPair, score
from penstock.plan.job.job import Job

BEST = "A"  # grade of the rows that make the headline


@dataclass(frozen=True)
class ScoredHours(ScoredPair):
    """A predicted row, in accelerator-hours."""

    row: WholeRunRow
    job: Job
    planned: float  # hours of the plan, without what published runs took beyond theirs

    @property
    def headline(self) -> bool:
        return self.row.grade("time") == BEST


@dataclass(frozen=True)
class ScoredEnergy(ScoredPair):
    """A predicted row, in MWh."""

    row: WholeRunRow
    watts: float  # mean over the run, of one accelerator, as the row was metered
    given_hours: bool  # the hours are the published ones
    circular: bool  # the published energy is hours × a rating: nothing was metered

    @property
    def headline(self) -> bool:
        return not self.circular and self.row.grade("energy") == BEST


@dataclass(frozen=True)
class RunsReport:
    """The backtest of one table of whole runs."""

    rows: int
    skipped: tuple[tuple[int, str, str], ...]  # row number, model, reason
    hours: tuple[ScoredHours, ...]
    energies: tuple[ScoredEnergy, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "kind": "runs",
            "rows": self.rows,
            "skipped": [
                {"row": number, "model": model, "reason": reason}
                for number, model, reason in self.skipped
            ],
            "hours": {
                **block([i for i in self.hours if i.headline]),
                "other_grades": block([i for i in self.hours if not i.headline]),
                "items": [
                    _item(i, i.row) | {"planned": i.planned, "layout": i.job.layout.to_json()}
                    for i in self.hours
                ],
            },
            "energy": {
                **block([i for i in self.energies if i.headline]),
                "published_hours": block(
                    [i for i in self.energies if i.headline and i.given_hours]
                ),
                "other_grades": block(
                    [i for i in self.energies if not i.headline and not i.circular]
                ),
                "circular": block([i for i in self.energies if i.circular]),
                "items": [
                    _item(i, i.row)
                    | {
                        "watts": i.watts,
                        "published_hours": i.given_hours,
                        "circular": i.circular,
                    }
                    for i in self.energies
                ],
            },
        }


def block(items: Sequence[ScoredPair]) -> dict[str, float | int | None]:
    """Return the errors of these rows, with the ninth decile."""
    return {**asdict(score(items)), "p90_ape": p90(items)}


def p90(items: Sequence[ScoredPair]) -> float | None:
    """Return the error that nine rows of ten are within."""
    if len(items) < 2:
        return items[0].ape if items else None
    return quantiles([i.ape for i in items], n=10, method="inclusive")[-1]


def _item(item: ScoredPair, row: WholeRunRow) -> dict[str, object]:
    return {
        "row": row.number,
        "model": row.model,
        "predicted": item.predicted,
        "measured": item.measured,
        "ape": item.ape,
        "grade": row.cells.get("quality", ""),
        "source": item.source,
        "accelerator": item.accelerator,
        "assumed": list(row.assumed),
    }
