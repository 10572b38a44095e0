"""The backtest of steps and memory: the planner's prediction beside the measurement.

Published tables and a user's own rows go the same way. A row that cannot be predicted is kept with
its reason, so that a good score cannot come from leaving rows out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.plan.backtest import baseline, memory_rows, ranking, rows
from penstock.plan.backtest.columns import check_cells
from penstock.plan.backtest.report import BacktestReport, OomCall, ScoredRow
from penstock.plan.backtest.rows import MeasuredRow, RowSkipped
from penstock.plan.job import constants
from penstock.plan.step import step

TimeOf = Callable[[MeasuredRow], float]  # seconds of a step
MemoryOf = Callable[
    [MeasuredRow], tuple[float, bool]
]  # GiB in the row's metric, and whether it fits


def run(
    path: Path,
    leave_one_out: bool = False,
    time_of: TimeOf | None = None,
    memory_of: MemoryOf | None = None,
) -> BacktestReport:
    """Predict every row of a throughput or memory table, by the planner unless another is given."""
    kind, found = rows.read(path)
    check_cells(path, found)
    if kind == "memory":
        report = _memory(found, leave_one_out, memory_of or _planned_memory(leave_one_out))
    else:
        report = _throughput(found, leave_one_out, time_of or _planned_time(leave_one_out))
    if not report.predicted:
        first, reason = report.skipped[0]
        raise PenstockError(
            f"none of the {report.rows} rows of {path} can be predicted; row {first}: {reason}. "
            "`penstock backtest --help` lists the columns"
        )
    return report


def _throughput(
    found: Sequence[MeasuredRow], leave_one_out: bool, time_of: TimeOf
) -> BacktestReport:
    items: list[ScoredRow] = []
    skipped: list[tuple[int, str]] = []
    for row in found:
        try:
            items.append(_timed(row, time_of))
        except (RowSkipped, PenstockError) as why:
            skipped.append((row.number, str(why)))
    timed = [(item.row, item.predicted, item.measured) for item in items]
    return BacktestReport(
        kind="throughput",
        leave_one_out=leave_one_out,
        rows=len(found),
        skipped=tuple(skipped),
        items=tuple(items),
        sweeps=tuple(ranking.sweeps(timed)),
        fixed_sweeps=tuple(ranking.sweeps(timed, fixed_software=True)),
        baseline=_constant_mfu(items, leave_one_out=False),
        baseline_left_out=_constant_mfu(items, leave_one_out=True),
    )


def _timed(row: MeasuredRow, time_of: TimeOf) -> ScoredRow:
    if row.job is None:
        raise RowSkipped(row.skipped)
    measured_s = row.step_s
    if not measured_s:
        raise RowSkipped("step_time_s and tokens_per_s_per_gpu are blank")
    return ScoredRow(time_of(row), measured_s, row.source, row.job.machine.accelerator, row, "s")


def _constant_mfu(items: Sequence[ScoredRow], leave_one_out: bool) -> tuple[ScoredRow, ...]:
    """Return the same rows as one constant MFU predicts them."""
    points = [baseline.MeasuredStep(i.row.job, i.measured, i.source) for i in items if i.row.job]
    times = baseline.predictions(points, leave_one_out)
    return tuple(
        replace(item, predicted=step_s)
        for item, step_s in zip(items, times, strict=True)
        if step_s is not None
    )


def _memory(
    found: Sequence[MeasuredRow], leave_one_out: bool, memory_of: MemoryOf
) -> BacktestReport:
    items: list[ScoredRow] = []
    calls: list[OomCall] = []
    skipped: list[tuple[int, str]] = []
    for row in found:
        try:
            item, call = _filled(row, memory_of)
        except (RowSkipped, PenstockError) as why:
            skipped.append((row.number, str(why)))
            continue
        items += [item] if item else []
        calls += [call] if call else []
    return BacktestReport(
        kind="memory",
        leave_one_out=leave_one_out,
        rows=len(found),
        skipped=tuple(skipped),
        items=tuple(items),
        calls=tuple(calls),
    )


def _filled(row: MeasuredRow, memory_of: MemoryOf) -> tuple[ScoredRow | None, OomCall | None]:
    """Record a row that ran out of memory only as a call, right or wrong: it has no peak to
    compare.
    """
    if row.job is None:
        raise RowSkipped(row.skipped)
    measured = memory_rows.measured(row)
    oom = _ran_out(row, measured)
    if oom is None and not measured:
        raise RowSkipped("peak_mem_gib, reserved_gib and oom are blank")
    predicted, fits = memory_of(row)
    item = None
    if measured and not oom:
        unit = "%" if "relative" in row.cells.get("component", "") else "GiB"
        item = ScoredRow(predicted, measured, row.source, row.job.machine.accelerator, row, unit)
    return item, None if oom is None else OomCall(row, oom, fits)


def _ran_out(row: MeasuredRow, measured: float | None) -> bool | None:
    """Tell whether the run ran out of memory; None where the row does not say."""
    stated = row.cells.get("oom", "").lower()
    if stated:
        return stated in ("1", "true", "yes", "oom")
    whole = row.cells.get("component", "") in ("", "total")
    return False if measured and whole else None


def _planned_memory(leave_one_out: bool) -> MemoryOf:
    if not leave_one_out:
        return memory_rows.predict_row
    return lambda row: memory_rows.predict_row(row, constants.stranded_without(row.source))


def _planned_time(leave_one_out: bool) -> TimeOf:
    def time_of(row: MeasuredRow) -> float:
        assert row.job
        if leave_one_out:
            return step.predict(row.job, constants.fitted_without(row.source)).step_s
        return step.predict(row.job).step_s

    return time_of
