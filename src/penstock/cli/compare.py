"""`penstock compare`: clusters side by side for one run."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.errors import RunFailed


def compare(
    file: Annotated[Path, typer.Argument(metavar="RUN", readable=False, help="The run file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help='Fields to change: train.tokens=2B, failures.repair="1 h"', show_default=False
        ),
    ] = None,
    clusters: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help='Cluster files, names of the catalog, or a number of them: "16 x RTX 5090".',
        ),
    ] = "",
    deadline: Annotated[
        str | None,
        typer.Option(metavar='"30 days"', help="Finish within this time, or by 2027-03-01."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="When machines are ordered: 2026-12-01; else today."),
    ] = None,
    lives: Annotated[
        int, typer.Option(metavar="N", help="How many lives on each, 1 to 1000.")
    ] = 50,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed lives the same.")] = 0,
    detail: Annotated[
        bool, typer.Option("--detail", help="Also every price by its parts, with sources.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw days against USD; - prints the picture alone."),
    ] = None,
    json: show.Json = False,
) -> None:
    """Compare clusters for a run: finish, USD, energy, carbon, risk, and what flips the choice."""
    from penstock.plan.not_here import known_shape
    from penstock.run.load import load
    from penstock.simulate import given
    from penstock.simulate.compare import picture, screen
    from penstock.simulate.compare.asked import question
    from penstock.simulate.compare.compare import compare as side_by_side

    alone = show.is_stdout(svg, "--svg", json)
    asked = question(start, deadline, lives, seed)
    of_run, of_failures = given.split(overrides or [])
    run, _ = known_shape(load(file, of_run))
    with show.err.status("living") as status:
        found = side_by_side(
            run, clusters.split(","), asked, of_failures, lambda what: status.update(what)
        )
    if svg is not None:
        show.write_page(svg, picture.svg(found), "--svg")
    if json:
        show.print_json(found.to_json())
    elif not alone:
        show.print_table(screen.table(found))
        for line in [*screen.lines(found), *(screen.detail(found) if detail else ())]:
            show.out.print(line, markup=False, soft_wrap=True)
    if found.best is None:
        why = "; ".join(f"{name}: {reason}" for name, reason in found.left_out)
        raise RunFailed(f"no cluster can hold the run: {why}")
