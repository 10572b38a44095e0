"""`penstock check`: is the run file right, does it fit, and what will it do."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.catalog.open.models import family_of
from penstock.cli import show
from penstock.errors import PenstockError
from penstock.plan.job import legal
from penstock.plan.job.layout import IllegalLayout
from penstock.run.load import load
from penstock.run.schema.run import Run
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
    from penstock.launch.verify import verify
    from penstock.watch.outlets import process

    loaded = load(file, overrides or [])
    process.check(loaded)
    found = verify(loaded)
    run, refused = found.run, found.refused
    rows = [] if refused else _missing_rows(run)
    notes = [*found.missing, *found.warnings, *rows, *_not_exported(run)]
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


def _missing_rows(run: Run) -> list[str]:
    """Say what a build could not read of the run's data or cut: nothing is lost quietly."""
    from penstock.data.build.rejected import cut_documents_note, rejected_rows_note
    from penstock.plan.dataset import manifests

    every = [say(one) for one in manifests(run) for say in (rejected_rows_note, cut_documents_note)]
    return [told for told in every if told]


def _not_exported(run: Run) -> list[str]:
    """Why `penstock export` would refuse what is trained: better known before than after."""
    shape = run.model.base()
    if run.model.from_ or shape is None:
        return []
    try:
        family = family_of(replace(shape, vocab=shape.vocab or legal.SOME_VOCAB))
    except PenstockError as error:
        return [f"`penstock export` cannot write this model. {error}"]
    if shape.moe and run.balance_rate and shape.router != "sigmoid":
        return [
            f"`penstock export` would write {family}, which has no place for the balance of "
            'experts, and refuse: write router = "sigmoid", qk_norm = true and shared_experts in '
            "[model], or train.balance_rate = 0"
        ]
    return []
