"""`penstock probe`: measure this machine, so that plans for it use its own numbers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock import output
from penstock.cli.show import Json, err, out, print_json, refuse_stdout


def probe(
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write; else what `here` reads."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of a minute, and coarser.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure this machine and write a cluster file of it; about a minute."""
    output.outlive()
    from penstock.meter.probe import probe as measure
    from penstock.plan.hardware.cluster import here_file, machine_of
    from penstock.plan.hardware.precision import speed_of
    from penstock.policy.precision import choose_precision
    from penstock.run.clusters.load import (
        keep_stated_fields,
        refuse_unwritable,
        save_cluster,
        to_table,
    )
    from penstock.run.clusters.summary import probe_lines

    refuse_stdout(to, "--out", "name a file, or print what is measured with --json")
    path = to or here_file()
    refuse_unwritable(path)
    columns = (TextColumn("{task.description:<14}"), BarColumn(40), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        measured = measure(show, quick)
    file = keep_stated_fields(measured, path)
    save_cluster(file, path, "Measured by `penstock probe`; measure again after changes.")
    auto = choose_precision(speed_of(machine_of(file)))
    if json:
        chosen = {"precision": auto.precision, "why": auto.why}
        print_json({"file": str(path), "auto": chosen, **to_table(file)})
        return
    chosen_line = f'precision "auto" is {auto.precision}: {auto.why}'
    for line in (*probe_lines(file), chosen_line, f"written to {path}"):
        out.print(line, markup=False, soft_wrap=True)
