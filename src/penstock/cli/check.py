"""`penstock check`: is the run file right, does it fit, and what will it do."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import show
from penstock.errors import PenstockError, RunFailed
from penstock.plan import legal
from penstock.plan.layout import IllegalLayout
from penstock.plan.plan import Plan
from penstock.run.load import load
from penstock.run.notyet import not_yet, refuse
from penstock.run.settle import settled
from penstock.run.summary import facts, lines

if TYPE_CHECKING:
    from penstock.plan.dataset import Known

SOME_STEPS = 1000  # of a run whose length only its dataset will tell


def check(
    file: Annotated[Path, typer.Argument(help="The run file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Fields that beat the file: train.tokens=2B")
    ] = None,
    json: show.Json = False,
) -> None:
    """Is the file right, does it fit, and what will the run do. Starts nothing."""
    from penstock.model.open_files import look_here
    from penstock.plan.built import refuse_unusable
    from penstock.plan.dataset import look

    loaded = settled(load(file, overrides or []))
    look_here(loaded.model.from_)
    refuse_unusable(loaded)
    known = look(loaded)
    run, refused = known.run, not_yet(known.run)
    illegal: IllegalLayout | None = None
    try:
        planned, where = _planned(known)
    except IllegalLayout as error:  # told last, below what the run is
        illegal, planned, where = error, None, ""
    held = planned.memory if planned else None
    if json:
        told = {
            "ok": not refused and not illegal,
            "fits": None if held is None else held.fits,
            "not_yet": refused,
            "illegal": str(illegal).splitlines() if illegal else [],
            "not_built": known.missing,
        }
        show.print_json({**told, **facts(run)})
    else:
        memory = [f"{'memory':<10} {where}"] if where else []
        for line in [*lines(run), *memory, *(f"{'note':<10} {why}" for why in known.missing)]:
            show.out.print(line, markup=False, soft_wrap=True)
    refuse(run)
    if illegal:
        raise illegal
    if held is not None and not held.fits:
        raise RunFailed(f"the run does not fit: {where}; `penstock plan` looks for a layout")
    if planned and planned.over_budget:
        raise RunFailed("; ".join(planned.over_budget))
    if not json:
        command = shlex.join(["penstock", "train", str(file), *(overrides or [])])
        show.out.print(f"The file is right. Next: {command}", markup=False, soft_wrap=True)


def _planned(known: "Known") -> tuple[Plan | None, str]:
    """The plan and what it says of memory in words; None where it cannot be said."""
    from penstock.plan.cluster import machine_for
    from penstock.plan.make import make

    run, data, shape = known.run, known.sizes, known.run.model.base()
    if run.model.module:
        legal.refuse(run, None, legal.asked(run))
        return None, "not known for an own module"
    if data is None and not (shape and shape.vocab):
        return None, "not known before the dataset is built"
    unknown = data is None and run.train.epochs  # how long it is; memory does not depend on it
    if unknown:
        some = run.train.model_copy(update={"epochs": None, "steps": SOME_STEPS})
        run = run.model_copy(update={"train": some})
    try:
        found = machine_for(run)
        plan = make(run, found.machine, found.warnings, data=data)
    except IllegalLayout:
        raise
    except PenstockError as error:
        if not not_yet(run) and str(error).startswith("budget"):
            raise
        # No model of this device: the file may still be right.
        return None, f"not known: {error}"
    held, machine = plan.memory, found.machine
    used, there = held.peak_bytes / 2**30, held.capacity_bytes / 2**30
    which = f"the fullest of {machine.accelerators} × {machine.accelerator}"
    if unknown:
        plan = replace(plan, over_budget=())
    return plan, f"{used:,.1f} of {there:,.1f} GiB on {which}"
