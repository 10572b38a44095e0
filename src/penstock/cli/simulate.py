"""`penstock simulate`: live a run many times before it is paid for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.run.clusters.file import FailuresSection
    from penstock.run.folder import RunFolder
    from penstock.run.schema.run import Run
    from penstock.simulate.result import Simulation
    from penstock.simulate.simulate import Question


def simulate(
    file: Annotated[Path, typer.Argument(metavar="RUN", readable=False, help="The run file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help='Fields to change: guard.spares=8, failures.stall="10 min"', show_default=False
        ),
    ] = None,
    lives: Annotated[int, typer.Option(metavar="N", help="How many lives.")] = 200,
    days: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="So many days of it, however long the run is."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar='"14 days"', help="The chance to finish within this time."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B,C", help="Every combination of values, as one table."),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(metavar="NAME", help="With the rate of one published fleet.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave a published fleet out of the rates."),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Narrow the rates by the journal of a run of this fleet."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Nodes over time (CSV: start_s, end_s, available)."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed lives the same.")] = 0,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it; - prints the picture alone.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Write the life in the middle as a run that `report` opens."
        ),
    ] = None,
    json: show.Json = False,
) -> None:
    """Simulate a run many times: failures, spares, checkpoints and cost. Starts nothing."""
    from penstock.plan.not_here import known_shape
    from penstock.run.load import load
    from penstock.run.schema.quantity import option_s
    from penstock.simulate import given
    from penstock.simulate.calibrate import read_journals
    from penstock.simulate.simulate import Question, stated_failures
    from penstock.simulate.traces import read_trace

    to = Destination(svg, show.is_stdout(svg, "--svg", json), out, json)
    of_run, of_failures = given.split(overrides or [])
    run, notes = known_shape(load(file, of_run))
    journals = read_journals(calibrate) if calibrate else None
    nodes = read_trace(trace) if trace else None
    left_out = tuple(without or ())
    asked = Question(lives, seed, days, option_s(by, "--by"), fleet, left_out, journals, nodes)
    failures = given.changed(stated_failures(run), of_failures)
    if vary:
        _compare(run, failures, asked, vary, to)
    else:
        _live(run, failures, asked, notes, to)


@dataclass(frozen=True)
class Destination:
    """The places to which the outcome is written."""

    svg: Path | None
    picture_alone: bool  # it is printed, and nothing else
    out: str | None  # the name of a run
    json: bool


def _compare(
    run: "Run", failures: "FailuresSection", asked: "Question", vary: list[str], to: Destination
) -> None:
    """Simulate every combination, and show them as one table."""
    from penstock.simulate import picture
    from penstock.simulate import vary as varying

    if to.out:
        raise PenstockError("--vary and --out: one life of which variant? Give one of the two")
    with show.err.status("living") as status:
        table = varying.vary(run, failures, asked, vary, lambda what: status.update(what))
    if to.svg:
        show.write_page(to.svg, picture.compared(table), "--svg")
    if to.picture_alone:
        return
    if to.json:
        show.print_json(table.to_json())
    else:
        show.print_table(table.table())


def _live(
    run: "Run",
    failures: "FailuresSection",
    asked: "Question",
    notes: "Sequence[str]",
    to: Destination,
) -> None:
    """Simulate the run, and show the outcome."""
    from penstock.simulate import picture
    from penstock.simulate.journal import write_run
    from penstock.simulate.simulate import simulate as live

    with show.err.status("living") as status:
        done = live(
            run,
            asked,
            failures,
            notes=notes,
            progress=lambda done: status.update(f"living: {done} of {asked.lives} lives"),
        )
    if to.svg:
        show.write_page(to.svg, picture.svg(done), "--svg")
    written = write_run(done, to.out) if to.out else None
    if not to.picture_alone:
        _print_lives(done, written, to.json)


def _print_lives(done: "Simulation", written: "RunFolder | None", json: bool) -> None:
    from penstock.simulate import screen

    if json:
        show.print_json(done.to_json() | ({"written": str(written.path)} if written else {}))
        return
    for line in screen.lines(done):
        show.out.print(line, markup=False, soft_wrap=True)
    if written:
        show.out.print(
            f"written        {written.path}: `penstock report {written.path}`",
            markup=False,
            soft_wrap=True,
        )
