"""`penstock backtest` of a table of whole runs, on the screen."""

from collections.abc import Sequence

from rich.text import Text

from penstock.cli.backtest_tables import grid, percent, say
from penstock.cli.show import out
from penstock.plan.backtest import scores
from penstock.plan.backtest.run_report import RunsReport, ScoredEnergy, ScoredHours, p90
from penstock.plan.backtest.scores import ScoredPair, score
from penstock.plan.backtest.verdict import runs_verdict
from penstock.style import plural


def show(report: RunsReport, worst: int) -> None:
    say(f"whole runs: {plural(report.rows, 'row')}; errors in percent")
    say("hours are of the program that trained each model, not of Penstock's; see docs/backtest.md")
    _show_groups(report)
    _show_hours(report.hours, worst)
    _show_energies(report.energies, worst)
    for number, model, reason in report.skipped:
        say(f"not planned: row {number}, {model}: {reason}")
    say("")
    say(runs_verdict(report))


def _show_groups(report: RunsReport) -> None:
    table = grid(
        "accelerator-hours and energy", "", "rows", "median", "nine of ten", "MAPE", "bias"
    )
    groups: tuple[tuple[str, Sequence[ScoredPair]], ...] = (
        ("hours, grade A", [i for i in report.hours if i.headline]),
        ("hours, other grades (apart)", [i for i in report.hours if not i.headline]),
        ("energy, metered, grade A", [i for i in report.energies if i.headline]),
        (
            "energy, metered, other grades (apart)",
            [i for i in report.energies if not i.headline and not i.circular],
        ),
        (
            "energy, hours × a rating (circular, apart)",
            [i for i in report.energies if i.circular],
        ),
    )
    for label, items in groups:
        if items:
            found = score(items)
            errors = (found.median_ape, p90(items), found.mape)
            table.add_row(
                label, str(found.rows), *map(percent, errors), percent(found.bias, sign=True)
            )
    out.print(table)


def _show_hours(items: Sequence[ScoredHours], count: int) -> None:
    if not items or not count:
        return
    table = grid("worst rows, hours", "row", "grade", "error", "predicted", "published")
    table.add_column("what, and what was assumed", overflow="fold")
    for item in scores.worst(items, count):
        what = f"{item.row.model}, {item.accelerator}, {item.job.software.name}: {item.job.layout}"
        table.add_row(
            str(item.row.number),
            item.row.grade("time") or "–",
            percent(item.error, sign=True),
            f"{item.predicted:,.0f} h",
            f"{item.measured:,.0f} h",
            Text(what + _assumed(item.row.assumed)),
        )
    out.print(table)


def _show_energies(items: Sequence[ScoredEnergy], count: int) -> None:
    items = [item for item in items if not item.circular]
    if not items or not count:
        return
    table = grid("metered energy", "row", "grade", "error", "predicted", "published")
    table.add_column("what", overflow="fold")
    for item in scores.worst(items, count):
        hours = "published hours" if item.given_hours else "predicted hours"
        table.add_row(
            str(item.row.number),
            item.row.grade("energy") or "–",
            percent(item.error, sign=True),
            f"{item.predicted:,.4g} MWh",
            f"{item.measured:,.4g} MWh",
            Text(f"{item.row.model}: {hours} × {item.watts:,.0f} W"),
        )
    out.print(table)


def _assumed(lines: Sequence[str]) -> str:
    return f"; assumed: {', '.join(lines)}" if lines else ""
