"""The output of `penstock plan --within 5000usd --days 10`: the best model for a budget."""

from pathlib import Path

from penstock.catalog.shapes import ModelShape
from penstock.cli import show
from penstock.plan.hardware.cluster import ResolvedMachine, machine_for
from penstock.plan.within import ladder, words
from penstock.plan.within.adapting import adaptation
from penstock.plan.within.best import BudgetPlanner
from penstock.plan.within.limits import SpendingLimits, known_price, parse
from penstock.run.load import load, load_table
from penstock.run.schema.run import Run
from penstock.style import format_count

# Where no run file is given: every field at its default. Only the vocabulary of the model counts.
ANY_RUN = {
    "name": "within",
    "model": {"preset": "llama-1b", "vocab": ladder.VOCAB},
    "train": {"tokens": "1B"},
}


def within(
    file: Path | None, overrides: list[str], money: str | None, days: float | None, json: bool
) -> None:
    """Print the best model that the money and the days can train on the run's machine."""
    limits = parse(money, days)
    if file is not None and "=" in str(file):  # an override, not a file
        file, overrides = None, [str(file), *overrides]
    run = load(file, overrides) if file else load_table(ANY_RUN, overrides)
    _answer(run, machine_for(run), limits, json)


def _answer(run: Run, found: ResolvedMachine, limits: SpendingLimits, json: bool) -> None:
    price = known_price(run, found.machine, limits)
    with show.err.status("planning") as status:

        def progress(shape: ModelShape) -> None:
            status.update(f"planning a model of {format_count(shape.params())} parameters")

        planner = BudgetPlanner(run, found.machine, price, limits, progress)
        answer = planner.answer()
        adapted = adaptation(planner, answer.best.loss_band()[0])
    if json:
        show.print_json(words.to_json(planner, answer, adapted, found.warnings))
        return
    for line in words.lines(planner, answer, adapted, found.warnings):
        show.out.print(line, markup=False, soft_wrap=True)
