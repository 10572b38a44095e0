"""The calibration of the planner with the measured step time of a run."""

from penstock.errors import PenstockError
from penstock.plan import calibration
from penstock.plan.calibration import CalibrationRecord
from penstock.run.folder import RunFolder
from penstock.watch.facts.run_view import RunView

# Fewer steps measure the warm-up rather than the machine.
FEWEST_STEPS = 10


def fold(folder: RunFolder) -> tuple[CalibrationRecord, list[CalibrationRecord]]:
    """Add a run to the calibration; return its record, and all records of its accelerator."""
    if not folder.run_file.exists():
        raise PenstockError(f"no run '{folder.name}' in {folder.path.parent}; train it first")
    view = RunView(folder)
    plan = view.launch.predicted
    if "uncalibrated" not in plan:
        why = plan.get("none", "it was not planned when it started")
        raise PenstockError(f"run '{folder.name}' has no plan to compare with: {why}")
    if view.step < FEWEST_STEPS or not view.step_s:
        raise PenstockError(
            f"run '{folder.name}' has made {view.step} steps; {FEWEST_STEPS} or more say something "
            "about the machine"
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
        measured_s=view.step_s,
    )
    return record, calibration.fold(record)
