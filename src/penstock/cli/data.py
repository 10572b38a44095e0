"""`penstock data`: from raw files to versioned tokens, and what there is to see of them."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import output
from penstock.cli.show import Json, err, is_stdout, out, print_json, print_table, write_page
from penstock.errors import INTERRUPTED, PenstockError, RunFailed
from penstock.secret import redact
from penstock.watch.style.console import RedactedConsole

_CHATS = 12  # that a page shows
data = typer.Typer(no_args_is_help=True, help="Build, check and look at datasets.")
Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="A dataset's name, name@version, folder or URL.")
]

List = Annotated[
    bool, typer.Option("--json", help="Print one JSON list for programs, an object for each.")
]
Quietly = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@data.command()
def build(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="The recipe, a TOML file; or raw files as they are: a file, folder, glob, URL or "
            "hf:org/name.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: tokens.vocab=65536", show_default=False),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one a core.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="Build on a Ray cluster: ray (that of RAY_ADDRESS, or the one on this machine) or "
            "ray://HOST:PORT.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="With --on: a URL such as s3://bucket/datasets, or a folder that all nodes share, "
            "for the dataset and the files of the build.",
        ),
    ] = None,
    quiet: Quietly = False,
    json: Json = False,
) -> None:
    """Make a dataset from raw files. One that was interrupted goes on where it was."""
    output.outlive()
    refuse_wrong_options(on, to, workers)
    from penstock.data.recipe.load import recipe_of

    made_of = recipe_of(recipe, overrides or [])
    from penstock.data.build import (
        build as engine,
    )  # numpy and more: after the recipe has been checked
    from penstock.data.build.progress import WarningsOnly
    from penstock.data.store.object_path import place
    from penstock.watch.datasets.progress import BuildProgress
    from penstock.watch.datasets.screen import built
    from penstock.watch.datasets.summary import summarize

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with BuildProgress(RedactedConsole(stderr=json, highlight=False)) as progress:
            watcher = WarningsOnly() if quiet else progress
            start = None
            if on is not None:
                from penstock.data.build.on_ray import start_on_ray

                start = start_on_ray(on, watcher)
            home = place(to) if to else None
            dataset = engine.build(
                made_of, workers=workers, watcher=watcher, home=home, start=start
            )
    except KeyboardInterrupt:
        raise RunFailed(f"{made_of.name}: {INTERRUPTED}") from None
    summary = summarize(dataset)
    if json:
        print_json(summary.to_json(), documents=True)
    else:
        out.print(built(summary))


@data.command()
def verify(dataset: Name, json: Json = False) -> None:
    """Hash every file of a dataset and check every token; exits with 1 where one is wrong."""
    from penstock.watch.datasets.find import verify as verify_dataset

    found = verify_dataset(dataset)
    if json:
        print_json({"dataset": found.name, "where": found.where, "problems": found.problems})
    elif not found.problems:
        out.print(f"{found.name}: every file is as it was built", markup=False, soft_wrap=True)
    if found.problems:
        if not json:
            sys.stderr.write(redact("".join(f"{problem}\n" for problem in found.problems)))
        # A build would find the folder and use it as it is.
        raise RunFailed(
            f"{found.name}: {len(found.problems)} of its files are not as they were built. Delete "
            f"{found.where}, then build it or copy it there again."
        )


@data.command()
def show(
    dataset: Name,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one self-contained page; - prints it."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a dataset is, where its documents went, what they are like."""
    from penstock.watch.datasets.find import open_existing
    from penstock.watch.datasets.page import page
    from penstock.watch.datasets.sample import sample_documents
    from penstock.watch.datasets.screen import screen
    from penstock.watch.datasets.summary import summarize

    printed = is_stdout(html, "--html", json)
    there = open_existing(dataset)
    summary = summarize(there)
    if html:
        # The record has what is said in a conversation; tokens have who says it.
        chats = sample_documents(there, _CHATS, seed=0, where={}) if summary.chats else None
        write_page(html, page(summary, chats))
        if not printed:
            err.print(f"wrote {html}", markup=False, soft_wrap=True)
    if json:
        print_json(summary.to_json(), documents=True)
    elif not html:
        out.print(screen(summary))


@data.command()
def diff(before: Name, after: Name, json: Json = False) -> None:
    """Show what differs between two datasets, and what they share."""
    from penstock.watch.datasets.diff import compare
    from penstock.watch.datasets.diff_screen import comparison
    from penstock.watch.datasets.find import open_existing
    from penstock.watch.datasets.summary import summarize

    old, new = (summarize(open_existing(name)) for name in (before, after))
    found = compare(old, new)
    if json:
        print_json({"before": old.id, "after": new.id, **found.to_json()})
    else:
        out.print(comparison(old, new, found))


@data.command()
def sample(
    dataset: Name,
    count: Annotated[int, typer.Option("-n", min=1, help="How many documents.")] = 3,
    dropped: Annotated[
        str | None, typer.Option(metavar="REASON", help="Some that were dropped for this reason.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only such documents.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed shows others.")] = 0,
    json: List = False,
) -> None:
    """Show some documents as text, with their metadata."""
    from penstock.watch.datasets.dropped import dropped_documents
    from penstock.watch.datasets.find import open_existing
    from penstock.watch.datasets.sample import sample_documents
    from penstock.watch.datasets.screen import fewer_note
    from penstock.watch.datasets.screen import sample as drawn
    from penstock.watch.datasets.summary import sample_json

    there = open_existing(dataset)
    note = ""
    if dropped is not None:
        held = dropped_documents(there, dropped, count)
        found, note = held.samples, fewer_note(held, count)
    else:
        found = sample_documents(there, count, seed, _conditions(where or []))
    if json:
        print_json([sample_json(one) for one in found], documents=True)
    else:
        for one in found:
            out.print(drawn(one), soft_wrap=True)
    if note:
        err.print(note, markup=False, soft_wrap=True)


@data.command()
def copy(
    dataset: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/datasets.")],
    quiet: Quietly = False,
    json: Json = False,
) -> None:
    """Send a dataset to an object store; runs read it from there by its URL."""
    output.outlive()
    from penstock.data.build.copy import copy_dataset
    from penstock.data.build.progress import SilentWatcher
    from penstock.watch.datasets.find import open_existing
    from penstock.watch.datasets.progress import BuildProgress

    there = open_existing(dataset)
    with BuildProgress(RedactedConsole(stderr=json, highlight=False)) as progress:
        where = copy_dataset(there, url, SilentWatcher() if quiet else progress)
    if json:
        print_json({"dataset": there.id, "url": where})
    else:
        out.print(f"{there.id} is at {where}", markup=False, soft_wrap=True)


@data.command()
def ls(json: List = False) -> None:
    """List the datasets that are built, the newest first."""
    from penstock.data.format.locate import datasets_home
    from penstock.watch.datasets.find import list_datasets
    from penstock.watch.datasets.screen import listing

    found = list_datasets()
    if json:
        print_json([one.to_json() for one in found])
    elif found:
        print_table(listing(found))
        for one in found:
            if one.unreadable:
                sys.stderr.write(f"note: {one.problem}\n")
    else:
        out.print(
            f"no datasets in {datasets_home()}; `penstock data build RECIPE` makes one",
            markup=False,
            soft_wrap=True,
        )


def refuse_wrong_options(on: str | None, to: str | None, workers: int | None) -> None:
    if on is None and to is not None:
        raise PenstockError(
            f"--to {to!r}: only builds on a cluster have it (--on). A dataset of this machine is "
            "built in PENSTOCK_HOME; `penstock data copy` sends it on"
        )
    if to is not None and to.startswith(("http://", "https://")):
        raise PenstockError(
            f"--to {to!r}: a web server cannot be written to. Give an s3://, gs:// or az:// URL, "
            "or a folder"
        )
    if on is not None and workers is not None:
        raise PenstockError(
            f"--workers {workers}: on a cluster its CPUs decide how many tasks run at a time; "
            "leave it out"
        )


def _conditions(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not name or not equals:
            raise PenstockError(f"--where '{text}': not a condition; write COLUMN=VALUE")
    return {name: value for name, _, value in pairs}
