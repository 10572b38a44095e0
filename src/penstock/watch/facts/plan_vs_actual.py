"""The plan of a run against its actual time, by cause, and the calibration of the planner by it."""

from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.ledger import Ledger, Row
from penstock.plan import calibration
from penstock.plan.calibration import CalibrationRecord
from penstock.run.folder import RunFolder
from penstock.style import format_against_plan, format_change, format_duration, format_step_time
from penstock.watch.facts.run_view import RunView

# A cause is named as the largest gap from this share of the planned time on.
WORTH_SAYING = 0.02
FEWEST_STEPS = 10  # of a calibration; fewer measure the warm-up rather than the machine
WORTH_A_ROW_S = 0.05  # of planned time on each rank


@dataclass(frozen=True)
class CauseTime:
    """The time of one cause on each rank, in seconds."""

    cause: Cause
    planned_s: float | None  # None for a run without a plan
    actual_s: float
    share: float  # of all time

    @property
    def worth_a_row(self) -> bool:
        """True if a table shows it: it took time, was planned, or is `unexplained`."""
        planned = (self.planned_s or 0.0) >= WORTH_A_ROW_S
        return self.actual_s > 0 or planned or self.cause is Cause.UNEXPLAINED


def time_by_cause(view: RunView, plan: "PlanVsActual | None") -> list[CauseTime]:
    """Return planned and actual seconds per rank and the share of every cause, in their order."""
    ledger, ranks = view.account.ledger, max(1, view.account.ranks)
    planned = {row.cause: (row.predicted or 0.0) / ranks for row in plan.rows} if plan else {}
    return [
        CauseTime(
            cause, planned.get(cause), ledger.seconds[cause] / ranks, ledger.share(cause) or 0.0
        )
        for cause in Cause
    ]


@dataclass(frozen=True)
class PlanVsActual:
    """The plan for the steps that were made, and what they took."""

    rows: list[Row]  # rank-seconds by cause
    steps: int
    planned_step_s: float
    step_s: float | None  # the median
    band: tuple[float, float] | None  # of the planned step, seconds
    ranks: int
    batch_tokens: int | None

    @property
    def planned_s(self) -> float:
        return sum(row.predicted or 0.0 for row in self.rows)

    @property
    def actual_s(self) -> float:
        return sum(row.actual or 0.0 for row in self.rows)

    @property
    def step_deviation(self) -> float | None:
        """Measured over planned step time, less one."""
        return None if self.step_s is None else self.step_s / self.planned_step_s - 1

    @property
    def within_band(self) -> bool:
        """True if the measured step time is in the band of the plan."""
        return bool(self.band and self.step_s and self.band[0] <= self.step_s <= self.band[1])

    @property
    def planned_tokens_per_s(self) -> float | None:
        return self.batch_tokens / self.planned_step_s if self.batch_tokens else None

    @property
    def tokens_per_s_band(self) -> tuple[float, float] | None:
        """The slowest and the fastest speed within the band of the plan."""
        if not self.batch_tokens or not self.band:
            return None
        return self.batch_tokens / self.band[1], self.batch_tokens / self.band[0]

    @property
    def largest_gap(self) -> Row:
        """The cause that is farthest from its plan."""
        return max(self.rows, key=lambda row: abs(row.difference or 0.0))

    def sentence(self) -> str:
        """Say how far the run is from its plan, and which cause is farthest."""
        planned = format_step_time(self.planned_step_s)
        if self.step_deviation is None or self.step_s is None:
            return f"planned {planned} a step; no step was measured"
        took = f"a step took {format_step_time(self.step_s)}, planned {planned}"
        if self.within_band:
            verdict = f"within the plan's band: {took} ({format_change(1 + self.step_deviation)})"
        else:
            verdict = f"{format_against_plan(1 + self.step_deviation)}: {took}"
        gap = self.largest_gap.difference or 0.0
        if abs(gap) < WORTH_SAYING * self.planned_s:
            return f"{verdict}; every cause is near its plan"
        more = "more" if gap > 0 else "less"
        gap_text = format_duration(abs(gap) / self.ranks)
        return f"{verdict}; largest gap: {gap_text} {more} {self.largest_gap.cause}"

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "step_s": {
                "predicted": self.planned_step_s,
                "measured": self.step_s,
                "deviation": self.step_deviation,
            },
            "rank_s": {"predicted": self.planned_s, "measured": self.actual_s},
            "by_cause": {
                str(row.cause): {
                    "predicted": row.predicted,
                    "measured": row.actual,
                    "difference": row.difference,
                }
                for row in self.rows
            },
            "says": self.sentence(),
        }


def plan_vs_actual(view: RunView) -> PlanVsActual | None:
    """Compare a run with its plan; None for a run without one.

    A run has no plan if its model is an own module, its device is unknown or its version older.
    """
    plan = view.launch.predicted
    if "ledger" not in plan or not view.account.ranks:
        return None
    whole = Ledger.from_json(plan["ledger"])
    # The first steps of a fork belong to another run.
    fork = view.launch.forked_from
    steps = max(0, view.step - ((fork.step or 0) if fork else 0))
    done = steps / plan["steps"] if plan["steps"] else 0.0
    # The start takes the same time however many steps follow it.
    part = {c: s * (1.0 if c is Cause.STARTUP else done) for c, s in whole.seconds.items()}
    band = plan.get("bands", {}).get("step_s")
    return PlanVsActual(
        rows=Ledger(part).compare(view.account.ledger),
        steps=steps,
        planned_step_s=plan["step_s"],
        step_s=view.whole_step_s,
        band=(band["low"], band["high"]) if band else None,
        ranks=view.account.ranks,
        batch_tokens=view.launch.batch_tokens or None,
    )


def _life_ratios(view: RunView, alone: dict[str, Any]) -> dict[str, float]:
    """Return a start and an evaluation of the run, over what the model alone predicted."""
    seconds, ranks = view.account.ledger.seconds, max(1, view.account.ranks)
    counts = {
        "startup": (Cause.STARTUP, len(view.account.invocations)),
        "evaluate": (Cause.EVALUATE, len(view.validation)),
    }
    found: dict[str, float] = {}
    for name, (cause, times) in counts.items():
        predicted_s, measured_s = alone.get(f"{name}_s"), seconds[cause] / ranks
        if predicted_s and times and measured_s > 0:
            found[f"{name}_ratio"] = measured_s / times / predicted_s
    return found


def add_to_calibration(folder: RunFolder) -> tuple[CalibrationRecord, list[CalibrationRecord]]:
    """Add a run to the calibration; return its record, and all records of its accelerator."""
    if not folder.run_file.exists():
        raise PenstockError(f"no run '{folder.name}' in {folder.path.parent}; train it first")
    view = RunView(folder)
    plan = view.launch.predicted
    if "uncalibrated" not in plan:
        why = plan.get("none", "it was not planned when it started")
        raise PenstockError(f"run '{folder.name}' has no plan to compare with: {why}")
    if view.step < FEWEST_STEPS or not view.whole_step_s:
        raise PenstockError(
            f"run '{folder.name}' has made {view.step} steps; a calibration needs at least "
            f"{FEWEST_STEPS}: train it longer"
        )
    record = CalibrationRecord(
        run=str(folder.path.resolve()),
        accelerator=plan["uncalibrated"]["accelerator"],
        ranks=view.launch.ranks,
        precision=view.run.train.precision,
        params=view.launch.params or 0,
        sequence=view.launch.sequence,
        layout=str(view.launch.layout),
        basis=plan["uncalibrated"]["basis"],
        predicted_s=plan["uncalibrated"]["step_s"],
        measured_s=view.whole_step_s,
        **_life_ratios(view, plan["uncalibrated"]),
    )
    return record, calibration.fold(record)
