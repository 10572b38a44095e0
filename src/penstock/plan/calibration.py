"""Calibration: what runs on this hardware really took, folded into the next plan for it.

Each folded run is one line in $PENSTOCK_HOME/calibration.jsonl: what was predicted before any
calibration and what was measured. A plan for the same accelerator is multiplied by the geometric
mean of measured over predicted, held to 1 by half a run's weight, so that one odd run cannot turn
the planner around. Runs count by how alike they are: one of a model ten times smaller, or on eight
times fewer ranks, counts for a third.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.files import write_atomic
from penstock.home import home
from penstock.plan.hardware.machine import Machine
from penstock.plan.job.job import Job
from penstock.plan.job.outcome import Band, StepTime
from penstock.plan.life import life
from penstock.run.schema.run import Run

# The weight of "the model is right", in runs.
PRIOR_RUNS = 0.5
# Runs of one machine vary by about this much between days and releases (facts: about 5 %).
FLOOR = 0.05
ALIKE = 0.3
ENOUGH = 5  # runs, before their scatter says more than the usual band


@dataclass(frozen=True)
class CalibrationRecord:
    """One run that was measured."""

    run: str  # folder of the run: folding it again replaces its line
    accelerator: str
    ranks: int
    precision: str
    params: int
    sequence: int
    layout: str
    basis: str  # what the model stood on then: the catalog, a cluster file, or the probe of a date
    predicted_s: float  # step, by the model alone
    measured_s: float
    # Measured over what the model alone predicts; None where nothing was recorded of it.
    startup_ratio: float | None = None  # of a start
    evaluate_ratio: float | None = None  # of an evaluation

    @property
    def ratio(self) -> float:
        return self.measured_s / self.predicted_s


def file() -> Path:
    return home() / "calibration.jsonl"


def load(path: Path | None = None) -> list[CalibrationRecord]:
    """Read all folded runs; a line that cannot be read is an error."""
    path = path or file()
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            records.append(CalibrationRecord(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise PenstockError(
                f"{path}, line {number}: not a calibration record ({error}); remove the line"
            ) from error
    return records


def fold(record: CalibrationRecord, path: Path | None = None) -> list[CalibrationRecord]:
    """Add a run, or replace its line; return the records of the same accelerator."""
    path = path or file()
    if not (record.predicted_s > 0 and record.measured_s > 0):
        raise PenstockError(f"{record.run}: no step was measured; there is nothing to fold in")
    records = [old for old in load(path) if old.run != record.run] + [record]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(json.dumps(asdict(r)) + "\n" for r in records))
    return [r for r in records if r.accelerator == record.accelerator]


def matching(job: Job, records: Sequence[CalibrationRecord]) -> list[CalibrationRecord]:
    """Return the runs on the same accelerator at the same precision, predicted from the same
    readings.
    """
    own = (job.machine.accelerator, job.precision, basis(job.machine))
    return [r for r in records if (r.accelerator, r.precision, r.basis) == own]


def basis(machine: Machine) -> str:
    """Identify the readings that a prediction is made from: after a new probe, earlier runs no
    longer count.
    """
    return machine.sources.get("matmul_flops" if machine.curves else "", "given")


def likeness(job: Job, record: CalibrationRecord) -> float:
    """Weigh a run: 1 for the same model size and number of ranks, less the farther they are."""
    size = abs(math.log(job.shape.params() / record.params)) / math.log(10)
    ranks = abs(math.log(job.layout.ranks / record.ranks)) / math.log(8)
    return math.exp(-size - ranks)


def factor(job: Job, records: Sequence[CalibrationRecord]) -> float:
    """Return measured over predicted step time, weighted by likeness and shrunk towards 1."""
    return _blended(job, [(record, record.ratio) for record in records])


def life_factors(job: Job, records: Sequence[CalibrationRecord]) -> tuple[float, float]:
    """Return the same for starts and for evaluations. They do not depend on precision or on a
    probe: all runs on this accelerator count.
    """
    here = [r for r in records if r.accelerator == job.machine.accelerator]
    starts = [(r, r.startup_ratio) for r in here if r.startup_ratio]
    evaluations = [(r, r.evaluate_ratio) for r in here if r.evaluate_ratio]
    return _blended(job, starts), _blended(job, evaluations)


def _blended(job: Job, found: Sequence[tuple[CalibrationRecord, float]]) -> float:
    weights = [likeness(job, record) for record, _ in found]
    summed = sum(w * math.log(ratio) for w, (_, ratio) in zip(weights, found, strict=True))
    return math.exp(summed / (sum(weights) + PRIOR_RUNS))


def band(job: Job, records: Sequence[CalibrationRecord], usual: Band) -> Band:
    """Return the band by the scatter of similar runs, once there are enough of them."""
    alike = [record for record in records if likeness(job, record) > ALIKE]
    if len(alike) < ENOUGH:
        return usual
    middle = math.log(factor(job, alike))
    off = max(FLOOR, max(abs(math.log(r.ratio) - middle) for r in alike))
    return Band(math.exp(-off), math.exp(off))


def applied(step: StepTime, by: float) -> StepTime:
    """Scale every part of the step: one factor cannot say which part was off.

    Except the exchange between replicas that take local steps: that is the link's.
    """
    if by == 1.0:
        return step
    exchange_s = step.parts.get("exchange", 0.0)
    parts = {name: seconds * by for name, seconds in step.parts.items()}
    causes = {name: seconds * by for name, seconds in step.causes.items()}
    if exchange_s:
        parts["exchange"] = exchange_s
        causes["communicate"] += exchange_s * (1 - by)
    return replace(
        step, parts=parts, causes=causes, step_s=step.step_s * by + exchange_s * (1 - by)
    )


def uncalibrated_life(run: Run, job: Job, step: StepTime, steps: int) -> dict[str, float]:
    """Return the seconds of a start and of one evaluation by the model alone."""
    plain = replace(job, machine=replace(job.machine, start_factor=1.0, evaluate_factor=1.0))
    lived = life.predict(run, plain, step, steps)
    return {
        "startup_s": lived.recovery.startup_s,
        "evaluate_s": lived.evaluate_s / max(1, lived.evaluations),
    }
