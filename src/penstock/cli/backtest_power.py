"""`penstock backtest` of a table of metered nodes, on the screen."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from penstock.cli.show import grid, out, percent, say, show_skipped
from penstock.plan.backtest import scores
from penstock.plan.backtest.power import PowerReport, ScoredPowerRow
from penstock.plan.backtest.scores import ScoredPair, score
from penstock.plan.backtest.verdict import power_verdict
from penstock.style import plural


def show(report: PowerReport, worst: int) -> None:
    rows = plural(report.rows, "row")
    say(f"power of a node: {report.predicted:,} of {rows} predicted; errors in percent")
    say("no row's own meter was used: constants are fitted without it")
    _show_groups("source", scores.by_source(report.items))
    _show_groups("accelerator", scores.by_accelerator(report.items))
    _show_rivals(report)
    _show_worst(report.items, worst)
    show_skipped(report.skipped)
    say("")
    say(power_verdict(report))


def _cells(pairs: Sequence[ScoredPair]) -> tuple[str, ...]:
    found = score(pairs)
    errors = percent(found.mape), percent(found.median_ape), percent(found.bias, sign=True)
    return f"{found.rows:,}", *errors


def _show_groups(name: str, groups: Mapping[str, Sequence[ScoredPowerRow]]) -> None:
    table = grid(f"by {name}", "", "rows", "MAPE", "median", "bias", "in band")
    for label, items in groups.items():
        inside = sum(item.inside for item in items)
        table.add_row(Text(label), *_cells(items), f"{inside} of {len(items)}")
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
            table.add_row(label, *_cells(pairs))
    out.print(table)


def _show_worst(items: Sequence[ScoredPowerRow], count: int) -> None:
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


def _ranked(report: PowerReport) -> tuple[Sequence[ScoredPair], ...]:
    return report.items, report.tdp, report.constant
