"""The outcome of a backtest in a sentence or two."""

from penstock.plan.backtest import ranking, scores
from penstock.plan.backtest.power import PowerReport
from penstock.plan.backtest.report import SMALL_GIB, BacktestReport
from penstock.plan.backtest.run_report import RunsReport, p90
from penstock.plan.backtest.scores import score
from penstock.style import plural

# A source with fewer rows does not show which of the two is closer.
ENOUGH_ROWS = 10


def verdict(report: BacktestReport) -> str:
    """Sum up a backtest of steps or memory in a sentence or two."""
    return _memory_verdict(report) if report.kind == "memory" else _time_verdict(report)


def _time_verdict(report: BacktestReport) -> str:
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


def _memory_verdict(report: BacktestReport) -> str:
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


def runs_verdict(report: RunsReport) -> str:
    """Sum up a backtest of whole runs in a sentence or two."""
    best = [item for item in report.hours if item.headline]
    metered = [item for item in report.energies if item.headline]
    text = ""
    if best:
        text = (
            f"The planner's accelerator-hours are {score(best).median_ape:.1f} % off in the median "
            f"of {plural(len(best), 'row')} of grade A; nine of ten are within {p90(best):.1f} %."
        )
    if metered:
        text += (
            f" Its energy is {score(metered).median_ape:.1f} % off in the median of "
            f"{plural(len(metered), 'metered row')}."
        )
    left = plural(len({number for number, _, _ in report.skipped}), "row")
    return f"{text} {left} could not be planned, or not all of it.".strip()


def power_verdict(report: PowerReport) -> str:
    """Sum up a backtest of metered nodes in a sentence or two."""
    own, tdp, best = (
        score(pairs).mape or 0.0 for pairs in (report.items, report.tdp, report.constant)
    )
    inside = sum(item.inside for item in report.items)
    return (
        f"The planner's node power is {own:.1f} % off; TDP × time is {tdp:.1f} % off, and the best "
        f"single constant for these rows {best:.1f} %. {inside} of {report.predicted} rows lie in "
        "their band."
    )
