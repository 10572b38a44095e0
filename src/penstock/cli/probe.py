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
    on: Annotated[
        Path | None,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            help="A cluster file with a launcher: measure its nodes and the links between them, "
            "and write it.",
        ),
    ] = None,
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
        load_cluster,
        refuse_unwritable,
        save_cluster,
        to_table,
    )
    from penstock.run.clusters.summary import probe_lines

    refuse_stdout(to, "--out", "name a file, or print what is measured with --json")
    path = to or on or here_file()
    before = load_cluster(on, unmeasured=True) if on else None
    refuse_unwritable(path)
    columns = (TextColumn("{task.description:<14}"), BarColumn(40), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        notes: list[str] = []
        if before is None:
            file = keep_stated_fields(measure(show, quick), path)
        else:
            from penstock.launch.doctor.probe_nodes import probe_nodes

            file, notes = probe_nodes(before, quick, show)
    save_cluster(file, path, "Measured by `penstock probe`; measure again after changes.")
    auto = choose_precision(speed_of(machine_of(file)))
    if json:
        chosen = {"precision": auto.precision, "why": auto.why}
        print_json({"file": str(path), "auto": chosen, "notes": notes, **to_table(file)})
        return
    chosen_line = f'precision "auto" is {auto.precision}: {auto.why}'
    notes = [f"note      {words}" for words in notes]
    for line in (*probe_lines(file), *notes, chosen_line, f"written to {path}"):
        out.print(line, markup=False, soft_wrap=True)
