"""`penstock rent`: which accelerators to rent for a run."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show


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
        int | None, typer.Option(metavar="N", help="So many accelerators.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="So many nodes; else four sizes that suit the run."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Spot nodes over time (CSV: start_s, end_s, available)."),
    ] = None,
    lives: Annotated[
        int, typer.Option(metavar="N", help="How many lives of each, 1 to 1000.")
    ] = 50,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed lives the same.")] = 0,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table.")] = 10,
    json: show.Json = False,
) -> None:
    """Rank offers of accelerators by what a useful token costs, with the chance to be late."""
    from penstock.plan.not_here import known_shape
    from penstock.run.load import load
    from penstock.run.schema.quantity import option_s
    from penstock.simulate import given
    from penstock.simulate.rent import screen
    from penstock.simulate.rent.offers import of_catalog, read_offers
    from penstock.simulate.rent.rank import REPLACING, Wanted, rank
    from penstock.simulate.traces import read_trace

    by_s = option_s(deadline, "--deadline")
    nodes_over_time = read_trace(trace) if trace else None
    wanted = Wanted(by_s, accelerators, nodes, lives, seed, nodes_over_time)
    of_run, of_failures = given.split(overrides or [])
    run, _ = known_shape(load(file, of_run))
    failures = given.changed(REPLACING, of_failures)
    listed = read_offers(offers) if offers else of_catalog()
    with show.err.status("living") as status:
        found = rank(run, listed, wanted, failures, lambda what: status.update(what))
    if json:
        show.print_json(found.to_json())
        return
    show.print_table(screen.table(found, top))
    for line in screen.lines(found):
        show.out.print(line, markup=False, soft_wrap=True)
