"""`penstock backtest` of a table of utilisation, on the screen."""

from rich.text import Text

from penstock.cli.backtest_tables import grid, percent, say, show_skipped
from penstock.cli.show import out
from penstock.plan.backtest import scores
from penstock.plan.backtest.scores import score
from penstock.plan.backtest.utilization import CLOSE, UtilizationReport
from penstock.style import plural


def show(report: UtilizationReport, worst: int) -> None:
    rows = plural(report.rows, "row")
    say(f"utilisation: {len(report.items):,} of {rows} predicted; errors in percent")
    table = grid("by source", "", "rows", "MAPE", "median", "bias")
    for label, items in scores.by_source(report.items).items():
        found = score(items)
        numbers = (percent(found.mape), percent(found.median_ape), percent(found.bias, sign=True))
        table.add_row(Text(label), f"{found.rows:,}", *numbers)
    out.print(table)
    _show_worst(report, worst)
    show_skipped(report.skipped)
    say("")
    say(
        f"The planner's utilisation is {score(report.items).mape:.1f} % off; {report.close} of "
        f"{len(report.items)} are within {CLOSE:.0f} %."
    )


def _show_worst(report: UtilizationReport, count: int) -> None:
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
