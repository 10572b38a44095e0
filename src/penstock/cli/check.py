"""`penstock check`: is the run file right, does it fit, and what will it do."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError, RunFailed
from penstock.plan.outcome import Memory
from penstock.run.file import Run
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
    """Is the file right, does it fit, and what will the run do. Starts nothing."""
    run = load(file, overrides or [])
    refused = not_yet(run)
    held, where = _memory(run)
    if json:
        fits = None if held is None else held.fits
        show.print_json({"ok": not refused, "fits": fits, "not_yet": refused, **facts(run)})
    else:
        for line in [*lines(run), *([f"{'memory':<10} {where}"] if where else [])]:
            show.out.print(line, markup=False, soft_wrap=True)
    refuse(run)
    if held is not None and not held.fits:
        raise RunFailed(f"the run does not fit: {where}; `penstock plan` looks for a layout")
    if not json:
        command = shlex.join(["penstock", "train", str(file), *(overrides or [])])
        show.out.print(f"The file is right. Next: {command}", markup=False, soft_wrap=True)


def _memory(run: Run) -> tuple[Memory | None, str]:
    """What the fullest accelerator would hold, and that in words; None where it cannot be said."""
    from penstock.plan.cluster import machine_for
    from penstock.plan.dataset import sizes
    from penstock.plan.make import choice
    from penstock.plan.memory import predict

    if run.model.module:
        return None, "not known for an own module"
    data = sizes(run)
    shape = run.model.base()
    if data is None and not (shape and shape.vocab):
        return None, "not known before the dataset, which gives the vocabulary, is built"
    try:
        machine = machine_for(run).machine
        held = predict(choice(run, machine, data.vocab if data else None).job)
    except PenstockError as error:  # no model of this device, or a layout that it cannot have
        return None, f"not known: {error}"
    used, there = held.peak_bytes / 2**30, held.capacity_bytes / 2**30
    which = f"the fullest of {machine.accelerators} × {machine.accelerator}"
    return held, f"{used:,.1f} of {there:,.1f} GiB on {which}"
