"""`penstock check`: is the run file right, does it fit, and what will it do."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.plan.job.layout import IllegalLayout
from penstock.run.load import load
from penstock.run.summary import run_facts, run_lines
from penstock.run.unsupported import unsupported_lines
from penstock.secret import visible_override


def check(
    file: Annotated[Path, typer.Argument(readable=False, help="The run file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Fields that beat the file: train.tokens=2B")
    ] = None,
    json: show.Json = False,
) -> None:
    """Would `penstock train` start it, does it fit, and what will it do. Starts nothing."""
    from penstock.launch.verify import notes_of, verify
    from penstock.watch.outlets import process
    from penstock.watch.outlets.reach import unreachable

    loaded = load(file, overrides or [])
    process.check(loaded)
    found = verify(loaded)
    run, refused = found.run, found.refused
    notes = [*notes_of(found), *unreachable(loaded)]
    if json:
        told = {
            "ok": refused is None,
            "refused": str(refused) if refused else None,
            "fits": found.fits,
            "not_yet": unsupported_lines(run),
            "illegal": str(refused).splitlines() if isinstance(refused, IllegalLayout) else [],
            "not_built": found.missing,
            "notes": notes,
        }
        show.print_json({**told, **run_facts(run)})
    else:
        memory = [f"{'memory':<10} {found.memory}"] if found.memory else []
        for line in [*run_lines(run), *memory, *(f"{'note':<10} {why}" for why in notes)]:
            show.out.print(line, markup=False, soft_wrap=True)
    if refused:
        raise refused
    if not json:
        command = shlex.join(
            ["penstock", "train", str(file), *map(visible_override, overrides or [])]
        )
        show.out.print(f"The file is right. Next: {command}", markup=False, soft_wrap=True)
