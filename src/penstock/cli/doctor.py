"""`penstock doctor`: examine this machine, or every node of a cluster, before a run."""

from pathlib import Path
from typing import Annotated

import typer

from penstock import output
from penstock.cli.show import Json, err, out, print_json
from penstock.errors import RunFailed

MARKS = {"ok": "ok", "note": "note", "bad": "BAD"}


def doctor(
    run_file: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run file: its cluster, its data, its store and its layouts are examined.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: cluster.nodes=2", show_default=False),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option("--on", metavar="CLUSTER", help="A cluster file: all of its nodes."),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Seconds: without accelerators and layouts.")
    ] = False,
    json: Json = False,
) -> None:
    """Examine nodes: versions, clocks, disks, data, links, accelerators, layouts; a minute."""
    output.outlive()
    from penstock.launch.doctor.examine import examine
    from penstock.launch.doctor.target import find_target

    target, run, folder = find_target(run_file, overrides or [], on)
    with err.status("reaching the nodes") as status:
        found = examine(target, run, short, folder, lambda what: status.update(what))
    if json:
        print_json(found.to_json())
    else:
        for one in found.findings:
            out.print(f"{MARKS[one.level]:<5} {one.check:<13} {one}", markup=False, soft_wrap=True)
        count = len(found.nodes)
        words = f"{count} node{'s' if count > 1 else ''} examined in {found.took_s:.0f} s"
        out.print(words, markup=False, soft_wrap=True)
    if not found.ok:
        named = ", ".join(found.bad_nodes)
        raise RunFailed(
            f"{len(found.bad)} of the checks failed{f'; bad nodes: {named}' if named else ''}"
        )
