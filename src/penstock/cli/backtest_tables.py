"""The tables that `penstock backtest` shows: of metered nodes, whole runs and utilisation."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from penstock.cli.show import out
from penstock.plan.backtest import scores
from penstock.plan.backtest.power import PowerReport, ScoredPowerRow
from penstock.plan.backtest.run_report import RunsReport, ScoredEnergy, ScoredHours, p90
from penstock.plan.backtest.scores import ScoredPair, score
from penstock.plan.backtest.utilization import CLOSE, UtilizationReport
from penstock.plan.backtest.verdict import power_verdict, runs_verdict
from penstock.style import plural


def say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def grid(title: str, first: str, *numbers: str) -> Table:
    """Print a table under its title: words on the left, then columns of numbers."""
    out.print(f"\n[bold]{title}[/]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def percent(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}"


def show_skipped(skipped: Sequence[tuple[int, str]]) -> None:
    reasons: dict[str, list[int]] = {}
    for number, reason in skipped:
        reasons.setdefault(reason, []).append(number)
    for reason, numbers in reasons.items():
        more = ", …" if len(numbers) > 5 else ""
        which = ", ".join(map(str, numbers[:5])) + more
        say(f"skipped {plural(len(numbers), 'row')}: {reason} (row {which})")


def show_power(report: PowerReport, worst: int) -> None:
    rows = plural(report.rows, "row")
    say(f"power of a node: {report.predicted:,} of {rows} predicted; errors in percent")
    say("no row's own meter was used: constants are fitted without it")
    _show_groups_of_power("source", scores.by_source(report.items))
    _show_groups_of_power("accelerator", scores.by_accelerator(report.items))
    _show_rivals(report)
    _show_worst_of_power(report.items, worst)
    show_skipped(report.skipped)
    say("")
    say(power_verdict(report))


def _cells_of_power(pairs: Sequence[ScoredPair]) -> tuple[str, ...]:
    found = score(pairs)
    errors = percent(found.mape), percent(found.median_ape), percent(found.bias, sign=True)
    return f"{found.rows:,}", *errors


def _show_groups_of_power(name: str, groups: Mapping[str, Sequence[ScoredPowerRow]]) -> None:
    table = grid(f"by {name}", "", "rows", "MAPE", "median", "bias", "in band")
    for label, items in groups.items():
        inside = sum(item.inside for item in items)
        table.add_row(Text(label), *_cells_of_power(items), f"{inside} of {len(items)}")
    out.print(table)


def _show_rivals(report: PowerReport) -> None:
    table = grid("beside simple rules", "", "rows", "MAPE", "median", "bias")
    for label, pairs in (
        ("the planner", report.items),
        ("TDP of the accelerators × time", report.tdp),
        ("rated power of the node × time", report.rated),
        ("the best single share of the TDP, chosen on these rows", report.constant),
    ):
        if pairs:
            table.add_row(label, *_cells_of_power(pairs))
    out.print(table)


def _show_worst_of_power(items: Sequence[ScoredPowerRow], count: int) -> None:
    found = scores.worst(items, count)
    if not found:
        return
    table = grid("worst rows", "row", "error", "predicted", "measured", "band")
    table.add_column("what, and what was assumed", overflow="fold")
    for item in found:
        config = item.row.config
        assert config
        what = f"{config.nodes} × {config.per_node} {item.accelerator}, {config.benchmark or '?'}"
        table.add_row(
            str(item.row.number),
            percent(item.error, sign=True),
            f"{item.predicted:,.0f} W",
            f"{item.measured:,.0f} W",
            f"{item.low:,.0f}–{item.high:,.0f}",
            Text(f"{what}; assumed: {', '.join(item.assumed)}"),
        )
    out.print(table)


def show_runs(report: RunsReport, worst: int) -> None:
    say(f"whole runs: {plural(report.rows, 'row')}; errors in percent")
    say("hours are of the program that trained each model, not of Penstock's; see docs/backtest.md")
    _show_groups_of_runs(report)
    _show_hours(report.hours, worst)
    _show_energies(report.energies, worst)
    for number, model, reason in report.skipped:
        say(f"not planned: row {number}, {model}: {reason}")
    say("")
    say(runs_verdict(report))


def _show_groups_of_runs(report: RunsReport) -> None:
    table = grid(
        "accelerator-hours and energy", "", "rows", "median", "nine of ten", "MAPE", "bias"
    )
    groups: tuple[tuple[str, Sequence[ScoredPair]], ...] = (
        ("hours, grade A", [i for i in report.hours if i.headline]),
        ("hours, other grades (apart)", [i for i in report.hours if not i.headline]),
        ("energy, metered, grade A", [i for i in report.energies if i.headline]),
        (
            "of these: published hours × watts",
            [i for i in report.energies if i.headline and i.given_hours],
        ),
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


def show_utilization(report: UtilizationReport, worst: int) -> None:
    rows = plural(report.rows, "row")
    say(f"utilisation: {len(report.items):,} of {rows} predicted; errors in percent")
    table = grid("by source", "", "rows", "MAPE", "median", "bias")
    for label, items in scores.by_source(report.items).items():
        found = score(items)
        numbers = (percent(found.mape), percent(found.median_ape), percent(found.bias, sign=True))
        table.add_row(Text(label), f"{found.rows:,}", *numbers)
    out.print(table)
    _show_worst_of_utilization(report, worst)
    show_skipped(report.skipped)
    say("")
    say(
        f"The planner's utilisation is {score(report.items).mape:.1f} % off; {report.close} of "
        f"{len(report.items)} are within {CLOSE:.0f} %."
    )


def _show_worst_of_utilization(report: UtilizationReport, count: int) -> None:
    found = scores.worst(report.items, count)
    if not found:
        return
    table = grid("worst rows", "row", "error", "predicted", "published")
    table.add_column("what", overflow="fold")
    for item in found:
        row = item.row
        what = f"{row.system}, every {plural(row.local_steps, 'step')}"
        over = f"over {row.bytes_per_s * 8 / 1e9:.3g} Gbit/s"
        table.add_row(
            str(row.number),
            percent(item.error, sign=True),
            f"{item.predicted:.3f}",
            f"{item.measured:.3f}",
            Text(f"{what} {over}"),
        )
    out.print(table)
