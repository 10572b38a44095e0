"""The prediction of a launch, and the moment when [budget] is spent.

A run also trains where no prediction can be made (the user's own module, a device that nobody has
measured); the plan then holds the reason.
"""

from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, RunFailed
from penstock.ledger.merge import merge
from penstock.plan import calibration
from penstock.plan.cost.cost import no_price, price_at_work
from penstock.plan.dataset import DatasetSizes
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.job.layout import Layout
from penstock.plan.make import make
from penstock.plan.power.site import site_limits
from penstock.plan.step import step
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class BudgetLimit:
    """The moment when the budget is spent, and which line of it."""

    at_s: float  # on the run's clock
    words: str  # such as "budget.hours = 12"


def predict(run: Run, layout: Layout, data: DatasetSizes) -> dict[str, Any]:
    """Return what `penstock plan` says of this launch, or `{"none": why}`.

    A plan over [budget] is refused.
    """
    if run.model.module:
        return {"none": "the model is the user's own module"}
    try:
        found = machine_for(run)
    except PenstockError as error:  # a device that nobody has measured
        return {"none": str(error)}
    refuse_over_site(run)
    plan = make(run, found.machine, found.warnings, layout, data)
    if plan.over_budget:
        raise RunFailed(
            "\n".join(plan.over_budget)
            + "\nNothing was started. Raise [budget], or train on fewer tokens"
        )
    # By the model alone: a calibration compares the measured step with it.
    alone = {
        "accelerator": found.machine.accelerator,
        "basis": calibration.basis(found.machine),
        "step_s": step.predict(plan.job).step_s,
        **calibration.uncalibrated_life(run, plan.job, plan.step, plan.life.steps),
    }
    return {**plan.to_json(), "uncalibrated": alone}


def hour_notes(predicted: dict[str, Any]) -> list[str]:
    """Return what the power of its hours does to a run that was planned."""
    return [str(note) for note in predicted.get("hours", {}).get("notes", [])]


def refuse_over_site(run: Run) -> None:
    """Refuse a run whose machines their site cannot feed, cool or hold."""
    try:
        machine = machine_for(run).machine
    except PenstockError:  # nothing is known of the machine; what is wrong is told elsewhere
        return
    over = [limit.line() for limit in site_limits(machine) if not limit.fits]
    if over:
        raise RunFailed("\n".join(over))


def budget_limit(run: Run, folder: RunFolder, ranks: int, began: float) -> BudgetLimit | None:
    """Return when [budget] is spent, counting what earlier invocations of the run have used."""
    limits: list[tuple[float, str]] = []
    if run.budget.hours is not None:
        limits.append((run.budget.hours * 3600, f"budget.hours = {run.budget.hours:g}"))
    if run.budget.usd is not None:
        price = price_at_work(run, machine_for(run).machine)
        if price is None:
            raise PenstockError(no_price(run.budget.usd))
        hours = run.budget.usd / (price.usd * ranks)
        limits.append((hours * 3600, f"budget.usd = {run.budget.usd:g}"))
    if not limits:
        return None
    seconds, words = min(limits)
    spent = merge(folder.journal).wall_s if folder.journal.is_dir() else 0.0
    if spent >= seconds:
        raise RunFailed(
            f"{words}: the run has used it ({spent / 3600:,.2f} h so far). Raise it to go on"
        )
    return BudgetLimit(began + seconds - spent, words)
