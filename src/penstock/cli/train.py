"""`penstock train RUN`: plan, launch, feed, guard, account; goes on with a run that exists."""

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import output
from penstock.cli.show import Json, err, out, print_json, print_table
from penstock.errors import PenstockError, RunFailed, system_error
from penstock.meter.clock import now

if TYPE_CHECKING:
    from penstock.launch.supervisor.head_start import HeadStart
    from penstock.run.folder import RunFolder
    from penstock.run.schema.run import Run

BEGAN = now()  # the run's clock starts with the command, imports included


def train(
    run_file: Annotated[
        str,
        typer.Argument(metavar="RUN", help="The run file; of a run that exists, also its name."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: train.tokens=2B", show_default=False),
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A new run from the last checkpoint of this one."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; the old run folder is kept aside.")
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=A,B,C",
            help="Train once with each value, one run after the other, and compare them; several "
            "--vary are combined. Given again, it goes on where it was.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check it, print exactly what would be submitted or started, and end."
        ),
    ] = False,
    setup: Annotated[
        bool,
        typer.Option(
            "--setup",
            help="With launcher ssh: first make the venv of cluster.ssh.python on each host, with "
            "the versions that are installed here.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train a model. A run that exists goes on where it was."""
    output.outlive()
    if dry_run:
        _dry_run(run_file, overrides or [], fork or fresh or vary, json)
        return
    if vary:
        if fork:
            raise PenstockError("--fork and --vary: a sweep starts runs of its own; give one")
        _sweep(run_file, overrides or [], vary, fresh, json)
        return
    from penstock.run.load import load

    run = load(run_file, overrides or [])
    from penstock.launch.engines.engine import on_a_node, submits, takes_part
    from penstock.launch.supervisor import head_start
    from penstock.run.clusters.apply import with_cluster_file

    run = with_cluster_file(run)
    if setup:
        _set_up(run)
    # The fork server imports while this process does.
    with nullcontext() if submits(run) else head_start.begin(run, takes_part(run)) as early:
        folder, failed = _train(run, fork, fresh, json, early)
    if not on_a_node():  # else the machine that submitted the run shows its report, once
        _report(folder, json)
    if problem := output.problem():
        sys.stderr.write(f"note: {problem}; the run went on without a display\n")
    if failed:
        raise failed


def _report(folder: "RunFolder", json: bool) -> None:
    from penstock.watch.report.screen import screen, summary  # not before the launch

    try:
        if json:
            print_json(summary(folder))
        else:
            out.print(screen(folder))
    except OSError as error:  # the report failed, but the outcome of the run counts
        sys.stderr.write(f"note: the report cannot be shown: {system_error(error)}\n")


def _set_up(run: "Run") -> None:
    from penstock.launch.ssh.setup import set_up

    set_up(run, lambda words: err.print(words, markup=False, soft_wrap=True))


def _train(
    run: "Run", fork: str | None, fresh: bool, json: bool, early: "HeadStart | None"
) -> "tuple[RunFolder, RunFailed | None]":
    """Train a run; return its folder, and why it failed if it did."""
    from penstock.run.folder import RunFolder
    from penstock.watch.outlets import process as outlets
    from penstock.watch.terminal.display import close_at_the_end, display_for_stdout

    outlets.check(run)
    display = display_for_stdout(quiet=json)
    if run.log.outlets:
        from penstock.watch.outlets.reach import unreachable

        for words in unreachable(run):
            display.warning(words)
    from penstock.launch.start import start

    try:
        with close_at_the_end([display]):
            return start(run, fork, fresh, display, BEGAN, early), None
    except RunFailed as error:  # printed last, below the report
        if display.folder is None:  # nothing was started, so there is nothing to report
            raise
        return RunFolder(run.folder.with_name(fork or run.name)), error


def _dry_run(file: str, overrides: list[str], more: object, json: bool) -> None:
    from penstock.launch.dry_run import dry_run
    from penstock.run.load import load

    if more:
        raise PenstockError("--dry-run: with a run file and overrides alone; leave the rest out")
    found = dry_run(load(file, overrides))
    for note in found.notes:
        sys.stderr.write(f"note: {note}\n")
    if json:
        print_json({"engine": found.engine, "text": found.text, "notes": list(found.notes)})
    else:
        out.print(found.text, markup=False, soft_wrap=True, highlight=False)


def _sweep(file: str, overrides: list[str], vary: list[str], fresh: bool, json: bool) -> None:
    from penstock.launch.vary import VariantOutcome, train_all, variants
    from penstock.watch.outlets import process as outlets
    from penstock.watch.report.sweep import sweep_summary, table
    from penstock.watch.terminal.display import (
        TerminalDisplay,
        close_at_the_end,
        display_for_stdout,
    )

    every = variants(file, overrides, vary)
    for variant in every:
        outlets.check(variant.run)
    shown: list[TerminalDisplay] = []

    def display() -> TerminalDisplay:
        shown.append(display_for_stdout(quiet=json))
        shown[-1].console.print(f"run {len(shown)} of {len(every)}")
        return shown[-1]

    ended: list[VariantOutcome] = []
    with close_at_the_end(shown):
        for end in train_all(every, display, fresh, BEGAN):
            shown[-1].close()
            if end.error:
                said = f"{end.variant.run.name}: {end.error}"
                shown[-1].console.print(said, markup=False, soft_wrap=True)
            ended.append(end)
    found = sweep_summary(every, ended)
    if json:
        print_json(found)
    else:
        print_table(table(found))
        if found["note"]:
            out.print(found["note"], markup=False, soft_wrap=True)
    failed = [end.variant.run.name for end in ended if end.error]
    if failed:
        raise RunFailed(f"{len(failed)} of {len(every)} runs failed: {', '.join(failed)}")
