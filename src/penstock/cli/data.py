"""`penstock data`: from raw files to versioned tokens, and what there is to see of them."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.show import Json, err, out, print_json
from penstock.errors import PenstockError, RunFailed

data = typer.Typer(no_args_is_help=True, help="Build, check and look at datasets.")
Name = Annotated[
    str, typer.Argument(metavar="DATASET", help="A dataset's name, name@version, folder or URL.")
]

Quietly = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@data.command()
def build(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Fields to change: tokens.vocab=65536", show_default=False),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: one a core.")
    ] = None,
    quiet: Quietly = False,
    json: Json = False,
) -> None:
    """Make a dataset from raw files. One that was interrupted goes on where it was."""
    from penstock.data.recipe_load import load_recipe

    made_of = load_recipe(recipe, overrides or [])
    from penstock.data import build as engine  # numpy and more: after the recipe has been checked
    from penstock.data.build_watch import Quiet
    from penstock.watch.data_progress import BuildProgress
    from penstock.watch.data_screen import built
    from penstock.watch.data_story import story

    progress = BuildProgress(Console(stderr=json, highlight=False))
    try:
        dataset = engine.build(made_of, workers=workers, watcher=Quiet() if quiet else progress)
    finally:
        progress.close()
    told = story(dataset)
    if json:
        print_json(told.to_json())
    else:
        out.print(built(told))


@data.command()
def verify(dataset: Name, json: Json = False) -> None:
    """Hash every file of a dataset; exits with 1 where one has changed."""
    from penstock.watch.data_find import check

    name, problems = check(dataset)
    if json:
        print_json({"dataset": name, "problems": problems})
    elif not problems:
        out.print(f"{name}: every file is as it was built", markup=False, soft_wrap=True)
    if problems:
        if not json:
            sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        raise RunFailed(
            f"{name}: {len(problems)} of its files are not as they were built; "
            "build or copy it again"
        )


@data.command()
def show(
    dataset: Name,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.")
    ] = None,
    json: Json = False,
) -> None:
    """What a dataset is, where its documents went, what they are like."""
    from penstock.watch.data_find import open_there
    from penstock.watch.data_page import page
    from penstock.watch.data_screen import screen
    from penstock.watch.data_story import story

    told = story(open_there(dataset))
    if html:
        _write(html, page(told))
        err.print(f"wrote {html}", markup=False, soft_wrap=True)
    if json:
        print_json(told.to_json())
    elif not html:
        out.print(screen(told))


@data.command()
def diff(before: Name, after: Name, json: Json = False) -> None:
    """What is different between two datasets, and what they share."""
    from penstock.watch.data_diff import compare
    from penstock.watch.data_find import open_there
    from penstock.watch.data_screen import comparison
    from penstock.watch.data_story import story

    told = [story(open_there(name)) for name in (before, after)]
    found = compare(*told)
    if json:
        print_json({"before": told[0].id, "after": told[1].id, **found.to_json()})
    else:
        out.print(comparison(told[0], told[1], found))


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
    json: Json = False,
) -> None:
    """Some documents as text, with what is known of them."""
    from dataclasses import asdict

    from penstock.data.build_record import read_record
    from penstock.watch import data_sample
    from penstock.watch.data_find import open_there
    from penstock.watch.data_screen import sample as drawn

    there = open_there(dataset)
    if dropped is not None:
        found = data_sample.dropped(read_record(there.folder), there.id, dropped, count)
    else:
        found = data_sample.kept(there, count, seed, _conditions(where or []))
    if json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        out.print(drawn(one), soft_wrap=True)


@data.command()
def copy(
    dataset: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as s3://bucket/datasets.")],
    quiet: Quietly = False,
    json: Json = False,
) -> None:
    """Send a dataset to an object store; runs read it from there by its URL."""
    from penstock.data.build_watch import Quiet
    from penstock.data.remote_copy import copy as send
    from penstock.watch.data_find import open_there
    from penstock.watch.data_progress import BuildProgress

    there = open_there(dataset)
    progress = BuildProgress(Console(stderr=json, highlight=False))
    try:
        where = send(there, url, Quiet() if quiet else progress)
    finally:
        progress.close()
    if json:
        print_json({"dataset": there.id, "url": where})
    else:
        out.print(f"{there.id} is at {where}", markup=False, soft_wrap=True)


@data.command()
def ls(json: Json = False) -> None:
    """List the datasets that are built."""
    from penstock.data.home import datasets_home
    from penstock.run.quantity import show_about
    from penstock.watch.data_find import listed

    found = listed()
    if json:
        print_json([_row(one.folder, one.manifest, one.problem) for one in found])
        return
    if not found:
        out.print(
            f"no datasets in {datasets_home()}; `penstock data build RECIPE` makes one",
            markup=False,
            soft_wrap=True,
        )
        return
    table = Table("dataset", box=None, pad_edge=False)
    for title in ("tokens", "documents", "vocabulary", "shards"):
        table.add_column(title, justify="right")
    for one in found:
        made = one.manifest
        if made is None:
            table.add_row(Text(one.folder.name), Text("damaged", style="red"))
            continue
        numbers = (f"{made.documents:,}", f"{made.vocab:,}", f"{len(made.shards):,}")
        table.add_row(Text(one.folder.name), show_about(made.tokens), *numbers)
    out.print(table)


def _row(folder: Path, made: Any, problem: str) -> dict[str, Any]:
    row: dict[str, Any] = {"dataset": folder.name, "folder": str(folder)}
    if made is None:
        return row | {"problem": problem}
    return row | {"tokens": made.tokens, "documents": made.documents, "vocab": made.vocab}


def _conditions(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise PenstockError(f"--where {name}: not a condition; write COLUMN=VALUE")
    return {name: value for name, _, value in pairs}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PenstockError(
            f"{path}: cannot be written: {error.strerror}; name another file with --html"
        ) from None
