"""`penstock plan`: predict a run before it is paid for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError, RunFailed
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run

if TYPE_CHECKING:
    from penstock.plan.hardware.cluster import Machine
    from penstock.plan.plan import Plan


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            readable=False,
            show_default=False,
            help="The run file; --within and --days do without.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: train.tokens=2B", show_default=False),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Also memory, step and time by part, and layouts.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How a number of the JSON came about: step_s, usd."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="8..131072",
            help="Over many numbers of accelerators: where each limit takes over.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --scale or budget.hours_csv: also draw it; - prints the picture alone.",
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar='"14 days"', help="The fewest nodes that finish in time in nine of ten cases."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="USD", help="The fastest number of nodes for this money."),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            metavar="2026-11-20T06:00", help="When the run begins, for budget.hours_csv; else now."
        ),
    ] = None,
    caps: Annotated[
        bool,
        typer.Option("--caps", help="Under power limits: their price in time, energy and money."),
    ] = False,
    within: Annotated[
        str | None,
        typer.Option(metavar="5000usd", help="The best model that this money can train here."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="The same for wall clock; with --within, both hold."),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="First fold in what the run of this file measured."),
    ] = False,
    json: show.Json = False,
) -> None:
    """Does it fit, how fast, how long, what does it cost, what limits it. Starts nothing."""
    from penstock.cli import scale as scaling
    from penstock.plan.hardware.cluster import machine_for
    from penstock.plan.not_here import known_shape

    given: dict[str, object] = {
        "deadline": deadline,
        "budget": budget,
        "explain": explain,
        "detail": detail or None,
        "begin": begin,
        "caps": caps or None,
    }
    if within is not None or days is not None:
        from penstock.cli.within import within as best_model

        more = {"scale": scale, "svg": svg, "calibrate": calibrate or None}
        _refuse_second_question(more | given, "--within and --days")
        best_model(file, overrides or [], within, days, json)
        return
    if file is None:
        raise PenstockError(
            "plan: no run file; give one, or ask for the best model of a budget: --within 5000usd"
        )
    run, notes = known_shape(load(file, overrides or []))
    if calibrate:
        _fold(run)
    cluster = machine_for(run)
    _refuse_without_hours(run, svg if scale is None else None, begin)
    if scale is not None:
        _refuse_second_question(given, "--scale")
        scaling.scale(run, cluster, scale, svg, json)
    elif caps:
        _refuse_second_question(given | {"caps": None}, "--caps")
        scaling.power_caps(run, cluster, json)
    elif deadline is not None or budget is not None:
        scaling.best_nodes(run, cluster, deadline, budget, json)
    else:
        printed = show.is_stdout(svg, "--svg", json)
        made = _make(run, cluster.machine, (*cluster.warnings, *notes), json, begin)
        if svg:
            _draw(made, svg)
        if not printed:
            _print(made, explain, detail, json)
        _refuse_unfit(made)


def _make(
    run: Run, machine: "Machine", warnings: tuple[str, ...], json: bool, begin: str | None
) -> "Plan":
    """Plan the run; where nothing fits, say so as JSON too."""
    from penstock.plan.hours.supply import read_begin
    from penstock.plan.job.layout import NothingFits
    from penstock.plan.make import make

    try:
        begins_s = None if begin is None else read_begin(begin, run.budget.hours_zone)
    except PenstockError as error:
        raise PenstockError(f"--begin {error}") from None
    try:
        return make(run, machine, warnings, begins_s=begins_s)
    except NothingFits as error:
        if json:
            why = {"run": run.name, "machine": machine.name, "fits": False, "why": str(error)}
            show.print_json(why | {"tried": error.tried, "warnings": list(warnings)})
        raise RunFailed(str(error)) from None


def _draw(made: "Plan", path: Path) -> None:
    """Write the picture of the plan's hours."""
    from penstock.plan.hours import picture

    assert made.hours is not None, "--svg without hours is refused above"
    show.write_page(path, picture.svg(made.name, made.hours), "--svg")


def _print(made: "Plan", explain: str | None, detail: bool, json: bool) -> None:
    """Print the plan, or how one of its numbers came about."""
    from penstock.plan import screen

    if explain is not None:
        table, lines = {"explain": made.explain(explain).split("\n  ")}, [made.explain(explain)]
    else:
        table, lines = made.to_json(), screen.lines(made)
    if json:
        show.print_json(table)
        lines = []
    elif detail:
        lines += ["", *screen.detail(made)]
    for line in lines:
        show.out.print(line, markup=False, soft_wrap=True)


def _refuse_unfit(made: "Plan") -> None:
    """Raise RunFailed for a plan that needs too much of the site, of memory or of money."""
    if made.limits.refused:
        raise RunFailed("\n".join(made.limits.refused))
    if not made.memory.fits:
        short = made.memory.short_bytes / 2**30
        raise RunFailed(f"it does not fit: out of memory by {short:,.1f} GiB")
    if made.over_budget:
        raise RunFailed("over the budget: " + "; ".join(made.over_budget))


def _refuse_without_hours(run: Run, svg: Path | None, begin: str | None) -> None:
    """Raise PenstockError for options that need the hours of a run without hours."""
    if run.budget.hours_csv is not None:
        return
    if svg is not None:
        raise PenstockError(
            "--svg draws what --scale finds, or the hours of budget.hours_csv; give one of them: "
            "--scale 8..1024 --svg FILE"
        )
    if begin is not None:
        raise PenstockError("--begin is for the hours of budget.hours_csv; write that, or leave it")


def _refuse_second_question(others: dict[str, object], first: str) -> None:
    clash = [f"--{name}" for name, given in others.items() if given is not None]
    if clash:
        raise PenstockError(f"{first} and {' and '.join(clash)}: two questions; ask one at a time")


def _fold(run: Run) -> None:
    """Fold the measured run of the file into the calibration, and say what that did."""
    from penstock.plan.calibration import file
    from penstock.watch.facts.plan_vs_actual import add_to_calibration

    record, own = add_to_calibration(RunFolder(run.folder))
    show.err.print(
        f"folded in: a step took {record.measured_s:.4g} s, the model alone says "
        f"{record.predicted_s:.4g} s (× {record.ratio:.3f}). {len(own)} "
        f"run{'s' if len(own) > 1 else ''} of {record.accelerator} now count for its plans, the "
        f"more the more alike ({file()})",
        markup=False,
        soft_wrap=True,
    )
