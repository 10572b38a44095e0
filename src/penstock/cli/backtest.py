"""`penstock backtest FILE.csv`: the planner against measured runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.show import Json, out, print_json
from penstock.plan import ranking, scores
from penstock.plan.backtest import run
from penstock.plan.backtest_report import SMALL_GIB, Item, Report
from penstock.plan.columns import listing
from penstock.plan.constants import has_fit
from penstock.plan.scores import score
from penstock.watch.words import plural

# A source with fewer rows says little about who is closer.
ENOUGH_ROWS = 10


def backtest(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured runs, one row each.")],
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
    report = run(file, leave_one_out)
    if json:
        print_json(report.to_json())
        return
    what = "step time" if report.kind == "throughput" else "peak memory"
    _say(
        f"{what}: {report.predicted:,} of {plural(report.rows, 'row')} predicted; errors in percent"
    )
    if report.leave_one_out:
        sources = scores.by_source(report.scored)
        own = sum(has_fit(source) for source in sources)
        _say(
            f"for {own} of {len(sources)} sources the constants were fitted without it; "
            "the others are not among the fitted ones by name, so all constants are used"
            if own < len(sources)
            else "constants fitted without the source being scored, for the planner and its rival"
        )
    _show_groups("source", scores.by_source(report.scored), report, totals=True)
    _show_groups("accelerator", scores.by_accelerator(report.scored), report)
    _show_sweeps(report)
    _show_worst(report, worst)
    _show_skipped(report)
    _say("")
    _say(verdict(report))


def _help() -> str:
    lines = [
        "The planner against measured runs: your own, or published ones.",
        "",
        "FILE.csv has a header and one row per run. A column peak_mem_gib makes it a",
        "memory table; otherwise step times are compared. Further columns are ignored.",
    ]
    for heading, columns in listing():
        lines += ["", "\b", heading]
        lines += [f"{'*' if c.needed else ' '} {c.name:<23} {c.about}" for c in columns]
    return "\n".join(lines)


backtest.__doc__ = _help()


def _say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def _grid(title: str, first: str, *numbers: str) -> Table:
    out.print(f"\n[bold]{title}[/]")
    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column(first, overflow="fold")
    for heading in numbers:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _percent(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}"


def _show_groups(
    name: str, groups: Mapping[str, Sequence[Item]], report: Report, totals: bool = False
) -> None:
    timed = report.kind == "throughput"
    rival = (scores.by_source if name == "source" else scores.by_accelerator)(report.rival)
    headings = ("rows", "MAPE", "median", "bias", *(("constant MFU",) if timed else ()))
    grid = _grid(f"by {name}", "", *headings)

    def line(label: str, items: Sequence[Item], other: Sequence[Item], macro: bool = False) -> None:
        own, theirs = score(items), score(other)
        grid.add_row(
            Text(label),
            f"{own.rows:,}",
            _percent(own.macro_mape if macro else own.mape),
            _percent(own.median_ape),
            _percent(own.bias, sign=True),
            *([_percent(theirs.macro_mape if macro else theirs.mape)] if timed else []),
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
    out.print(grid)


def _show_sweeps(report: Report) -> None:
    if not report.sweeps:
        return
    grid = _grid("choosing a layout", "job", "layouts", "regret", "Kendall tau")
    for sweep in report.sweeps:
        counts = (str(len(sweep.measured_s)), _percent(sweep.regret), f"{sweep.tau:.2f}")
        grid.add_row(Text(f"{sweep.name} ({sweep.source})"), *counts)
    out.print(grid)


def _show_worst(report: Report, count: int) -> None:
    worst = scores.worst(report.items, count)
    if not worst:
        return
    grid = _grid("worst rows", "row", "error", "predicted", "measured")
    grid.add_column("what, and what was assumed", overflow="fold")
    for item in worst:
        cells, job = item.row.cells, item.row.job
        what = f"{cells.get('model_name')}, {cells.get('gpu')}: {job.layout if job else ''}"
        assumed = f"; assumed: {', '.join(item.row.assumed)}" if item.row.assumed else ""
        numbers = (f"{item.predicted:.4g} {item.unit}", f"{item.measured:.4g} {item.unit}")
        grid.add_row(
            str(item.row.number), _percent(item.error, sign=True), *numbers, Text(what + assumed)
        )
    out.print(grid)


def _show_skipped(report: Report) -> None:
    reasons: dict[str, list[int]] = {}
    for number, reason in report.skipped:
        reasons.setdefault(reason, []).append(number)
    for reason, numbers in reasons.items():
        more = ", …" if len(numbers) > 5 else ""
        which = ", ".join(map(str, numbers[:5])) + more
        _say(f"skipped {plural(len(numbers), 'row')}: {reason} (row {which})")


def verdict(report: Report) -> str:
    """The whole report in a sentence or two."""
    return _memory_verdict(report) if report.kind == "memory" else _time_verdict(report)


def _time_verdict(report: Report) -> str:
    sources = scores.by_source(report.scored)
    over = f", mean over {plural(len(sources), 'source')}" if len(sources) > 1 else ""
    own, rival = score(report.scored), score(report.rival)
    text = f"The planner's step times are {own.macro_mape:.1f} % off{over}"
    if rival.macro_mape is not None:
        text += f"; one constant MFU per accelerator and precision is {rival.macro_mape:.1f} % off"
    text += "."
    if report.sweeps:
        worst = max(sweep.regret for sweep in report.sweeps)
        text += (
            f" Its choice of layout costs {ranking.regret(report.sweeps):.1f} % over the best "
            f"measured one (worst of {plural(len(report.sweeps), 'sweep')}: {worst:.1f} %)."
        )
    if report.fixed_sweeps and report.fixed_sweeps != report.sweeps:
        fixed = ranking.regret(report.fixed_sweeps)
        text += f" Among layouts with the same software options it costs {fixed:.1f} %."
    theirs = scores.by_source(report.rival)
    lost = [
        source
        for source, items in sources.items()
        if len(items) >= ENOUGH_ROWS
        and source in theirs
        and (score(theirs[source]).mape or 0) < (score(items).mape or 0)
    ]
    return text + (f" The constant MFU is closer on {', '.join(lost)}." if lost else "")


def _memory_verdict(report: Report) -> str:
    large, small = score(report.scored).mape, score(report.small).mape
    sizes = [
        f"{error:.1f} % off on runs {which} {SMALL_GIB:.0f} GiB"
        for error, which in ((large, "of at least"), (small, "below"))
        if error is not None
    ]
    text = f"The planner's peak memory is {' and '.join(sizes)}." if sizes else ""
    if not report.calls:
        return text
    ran_out = sum(call.oom for call in report.calls)
    ran = len(report.calls) - ran_out
    missed, false = len(report.oom_missed), len(report.oom_false)
    calls = f"It missed {missed} of {plural(ran_out, 'run')} that ran out of memory"
    wrong = f"and turned down {false} of {plural(ran, 'run')} that ran"
    return f"{text} {calls}, {wrong}.".strip()
