"""`penstock check`: is the run file right, and what will it do."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.run.load import load
from penstock.run.notyet import not_yet, refuse
from penstock.run.summary import facts, lines


def check(
    file: Annotated[Path, typer.Argument(help="The run file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Fields that beat the file: train.tokens=2B")
    ] = None,
    json: show.Json = False,
) -> None:
    """Is the file right, and what will the run do. Starts nothing."""
    run = load(file, overrides or [])
    refused = not_yet(run)
    if json:
        show.print_json({"ok": not refused, "not_yet": refused, **facts(run)})
    else:
        for line in lines(run):
            show.out.print(line, markup=False, soft_wrap=True)
    refuse(run)
    if not json:
        command = shlex.join(["penstock", "train", str(file), *(overrides or [])])
        show.out.print(f"The file is right. Next: {command}", markup=False, soft_wrap=True)
