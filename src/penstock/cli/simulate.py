"""`penstock simulate`: live a run many times before it is paid for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.run.folder import RunFolder
    from penstock.simulate.result import Simulation


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
    """Live a run many times: failures, spares, checkpoints, cost, as a range. Starts nothing."""
    from penstock.plan.not_here import known_shape
    from penstock.run.load import load
    from penstock.run.schema.quantity import BadQuantity, duration_s
    from penstock.simulate import given, picture
    from penstock.simulate import vary as varying
    from penstock.simulate.calibrate import seen_in
    from penstock.simulate.journal import write_run
    from penstock.simulate.simulate import Question, stated_failures
    from penstock.simulate.simulate import simulate as live
    from penstock.simulate.traces import read_trace

    printed = show.is_stdout(svg, "--svg", json)
    of_run, of_failures = given.split(overrides or [])
    run, notes = known_shape(load(file, of_run))
    try:
        by_s = None if by is None else duration_s(by)
    except BadQuantity as error:
        raise PenstockError(f"--by: {error}") from None
    asked = Question(
        lives,
        seed,
        days,
        by_s,
        fleet,
        tuple(without or ()),
        seen_in(calibrate) if calibrate else None,
        read_trace(trace) if trace else None,
    )
    failures = given.changed(stated_failures(run), of_failures)
    if vary:
        if out:
            raise PenstockError("--vary and --out: one life of which variant? Give one of the two")
        with show.err.status("living") as status:
            table = varying.vary(run, failures, asked, vary, lambda what: status.update(what))
        if svg:
            show.write_page(svg, picture.compared(table), "--svg")
        if not printed:
            if json:
                show.print_json(table.to_json())
            else:
                show.print_table(table.table())
        return
    with show.err.status("living") as status:
        done = live(
            run,
            asked,
            failures,
            notes=notes,
            progress=lambda done: status.update(f"living: {done} of {lives} lives"),
        )
    if svg:
        show.write_page(svg, picture.svg(done), "--svg")
    written = write_run(done, out) if out else None
    if not printed:
        _print_lives(done, written, json)


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
