"""`penstock rent`: which accelerators to rent for a run."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError


def rent(
    file: Annotated[Path, typer.Argument(metavar="RUN", readable=False, help="The run file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help='Fields to change: train.tokens=2B, failures.repair="1 h"', show_default=False
        ),
    ] = None,
    offers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Offers (CSV: provider, accelerator, usd_per_hour of one accelerator, term "
            "on-demand|spot|reserved; may have per_node, nodes_available, region, "
            "interruptions_per_day, available, egress_usd_per_gb). Else the catalog's prices.",
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar='"10 days"', help="Finish within this time.")
    ] = None,
    accelerators: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many accelerators.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="So many nodes; else 1, 2, 4 and 8.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Spot nodes over time (CSV: start_s, end_s, available)."),
    ] = None,
    lives: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="How many lives of each.")
    ] = 50,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed lives the same.")] = 0,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table.")] = 10,
    json: show.Json = False,
) -> None:
    """Rank offers of accelerators by what a useful token costs, with the chance to be late."""
    from penstock.plan.not_here import known_shape
    from penstock.run.clusters.file import FailuresSection
    from penstock.run.load import load
    from penstock.run.schema.quantity import BadQuantity, duration_s
    from penstock.simulate import given
    from penstock.simulate.rent import screen
    from penstock.simulate.rent.offers import of_catalog, read_offers
    from penstock.simulate.rent.rank import REPLACED, Wanted, rank
    from penstock.simulate.traces import read_trace

    if accelerators and nodes:
        raise PenstockError("--accelerators and --nodes: both fix the size; give one of the two")
    try:
        by_s = None if deadline is None else duration_s(deadline)
    except BadQuantity as error:
        raise PenstockError(f"--deadline: {error}") from None
    if by_s is not None and by_s <= 0:
        raise PenstockError(f"--deadline {deadline}: write more than 0")
    of_run, of_failures = given.split(overrides or [])
    run, _ = known_shape(load(file, of_run))
    failures = given.changed(FailuresSection(repair=REPLACED), of_failures)
    wanted = Wanted(by_s, accelerators, nodes, lives, seed, read_trace(trace) if trace else None)
    listed = read_offers(offers) if offers else of_catalog()
    with show.err.status("living") as status:
        found = rank(run, listed, wanted, failures, lambda what: status.update(what))
    if json:
        show.print_json(found.to_json())
        return
    show.print_table(screen.table(found, top))
    for line in screen.lines(found):
        show.out.print(line, markup=False, soft_wrap=True)
