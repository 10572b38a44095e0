"""`penstock backtest FILE.csv`: the planner against measured runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.backtest_tables import (
    grid,
    percent,
    say,
    show_power,
    show_runs,
    show_skipped,
    show_utilization,
)
from penstock.cli.show import Json, out, print_json
from penstock.errors import PenstockError
from penstock.plan.backtest import (
    power,
    power_columns,
    power_rows,
    run_rows,
    runs,
    scores,
    utilization,
)
from penstock.plan.backtest.columns import listing
from penstock.plan.backtest.report import SMALL_GIB, BacktestReport, ScoredRow
from penstock.plan.backtest.row_file import lines
from penstock.plan.backtest.scores import score
from penstock.plan.backtest.steps import run
from penstock.plan.backtest.verdict import verdict
from penstock.plan.job.constants import has_fit
from penstock.style import plural


def backtest(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.csv", readable=False, help="Measured runs, one row each."),
    ],
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out",
            help="Predict each source with constants fitted without it (throughput).",
        ),
    ] = False,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst rows to show.")] = 5,
    json: Json = False,
) -> None:
    if power_rows.is_power(lines(file)):
        _power(file, leave_one_out, worst, json)
        return
    if run_rows.is_runs(lines(file)):
        _runs(file, leave_one_out, worst, json)
        return
    if utilization.is_utilization(lines(file)):
        _utilization(file, leave_one_out, worst, json)
        return
    report = run(file, leave_one_out)
    if json:
        print_json(report.to_json())
        return
    what = "step time" if report.kind == "throughput" else "peak memory"
    say(
        f"{what}: {report.predicted:,} of {plural(report.rows, 'row')} predicted; errors in percent"
    )
    if report.leave_one_out:
        sources = scores.by_source(report.scored)
        own = sum(has_fit(source) for source in sources)
        say(
            f"for {own} of {len(sources)} sources the constants were fitted without it; "
            "the others are not among the fitted ones by name, so all constants are used"
            if own < len(sources)
            else "constants fitted without the source being scored, for the planner and its rival"
        )
    _show_groups("source", scores.by_source(report.scored), report, totals=True)
    _show_groups("accelerator", scores.by_accelerator(report.scored), report)
    _show_sweeps(report)
    _show_worst(report, worst)
    show_skipped(report.skipped)
    say("")
    say(verdict(report))


def _power(file: Path, leave_one_out: bool, worst: int, json: bool) -> None:
    if leave_one_out:
        raise PenstockError(
            f"{file} is a power table: every row is predicted with constants fitted without it "
            "already; drop --leave-one-out"
        )
    report = power.run(file)
    if json:
        print_json(report.to_json())
    else:
        show_power(report, worst)


def _runs(file: Path, leave_one_out: bool, worst: int, json: bool) -> None:
    if leave_one_out:
        raise PenstockError(
            f"{file} is a table of whole runs: every row is predicted with the factor of whole "
            "runs fitted without its source already; drop --leave-one-out"
        )
    report = runs.run(file)
    if json:
        print_json(report.to_json())
    else:
        show_runs(report, worst)


def _utilization(file: Path, leave_one_out: bool, worst: int, json: bool) -> None:
    if leave_one_out:
        raise PenstockError(
            f"{file} is a table of utilisation: nothing is fitted to it; drop --leave-one-out"
        )
    report = utilization.run(file, lines(file))
    if json:
        print_json(report.to_json())
    else:
        show_utilization(report, worst)


def _help() -> str:
    text = [
        "The planner against measured runs: your own, or published ones.",
        "",
        "FILE.csv has a header and one row per run. A column mean_node_w makes it a power",
        "table, tokens_b with gpu_hours or energy_mwh one of whole runs, peak_mem_gib a memory",
        "table, utilization one of replicas over slow links; otherwise step times are compared.",
        "Further columns are ignored.",
    ]
    more = (
        ("Tables of whole runs have (* needed), and may have those of both:", run_rows.COLUMNS),
        ("Power tables have (* needed):", power_columns.COLUMNS),
        ("Tables of utilisation have (* needed):", utilization.COLUMNS),
    )
    for heading, columns in (*listing(), *more):
        text += ["", "\b", heading]
        text += [f"{'*' if c.needed else ' '} {c.name:<23} {c.about}" for c in columns]
    return "\n".join(text)


backtest.__doc__ = _help()


def _show_groups(
    name: str,
    groups: Mapping[str, Sequence[ScoredRow]],
    report: BacktestReport,
    totals: bool = False,
) -> None:
    timed = report.kind == "throughput"
    rival = (scores.by_source if name == "source" else scores.by_accelerator)(report.rival)
    headings = ("rows", "MAPE", "median", "bias", *(("constant MFU",) if timed else ()))
    table = grid(f"by {name}", "", *headings)

    def line(
        label: str, items: Sequence[ScoredRow], other: Sequence[ScoredRow], macro: bool = False
    ) -> None:
        own, theirs = score(items), score(other)
        table.add_row(
            Text(label),
            f"{own.rows:,}",
            percent(own.macro_mape if macro else own.mape),
            percent(own.median_ape),
            percent(own.bias, sign=True),
            *([percent(theirs.macro_mape if macro else theirs.mape)] if timed else []),
        )

    for label, items in groups.items():
        line(label, items, rival.get(label, []))
    if totals:
        for moe, kind in ((False, "dense"), (True, "MoE")):
            items = [i for i in report.scored if i.moe is moe]
            if items:
                other = [i for i in report.rival if i.moe is moe]
                line(f"mean over sources, {kind}", items, other, macro=True)
        line("mean over sources", report.scored, report.rival, macro=True)
        if report.small:
            line(f"below {SMALL_GIB:.0f} GiB (apart)", report.small, [])
        if report.relative:
            line("shares of another layout (apart)", report.relative, [])
    out.print(table)


def _show_sweeps(report: BacktestReport) -> None:
    if not report.sweeps:
        return
    table = grid("choosing a layout", "job", "layouts", "regret", "Kendall tau")
    for sweep in report.sweeps:
        counts = (str(len(sweep.measured_s)), percent(sweep.regret), f"{sweep.tau:.2f}")
        table.add_row(Text(f"{sweep.name} ({sweep.source})"), *counts)
    out.print(table)


def _show_worst(report: BacktestReport, count: int) -> None:
    worst = scores.worst(report.items, count)
    if not worst:
        return
    table = grid("worst rows", "row", "error", "predicted", "measured")
    table.add_column("what, and what was assumed", overflow="fold")
    for item in worst:
        cells, job = item.row.cells, item.row.job
        what = f"{cells.get('model_name')}, {cells.get('gpu')}: {job.layout if job else ''}"
        assumed = f"; assumed: {', '.join(item.row.assumed)}" if item.row.assumed else ""
        numbers = (f"{item.predicted:.4g} {item.unit}", f"{item.measured:.4g} {item.unit}")
        table.add_row(
            str(item.row.number), percent(item.error, sign=True), *numbers, Text(what + assumed)
        )
    out.print(table)
