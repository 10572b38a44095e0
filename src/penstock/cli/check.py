"""`penstock check`: is the run file right, does it fit, and what will it do."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.catalog.open_models import family_of
from penstock.cli import show
from penstock.errors import PenstockError, RunFailed
from penstock.plan import legal
from penstock.plan.layout import IllegalLayout
from penstock.plan.plan import Plan
from penstock.run.diff import with_fields
from penstock.run.file import Run
from penstock.run.load import load
from penstock.run.notyet import not_yet, refuse
from penstock.run.settle import settled
from penstock.run.summary import facts, lines
from penstock.secret import visible_override

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
    from penstock.launch.open_model import refuse_other_built
    from penstock.model.open_files import look_here
    from penstock.plan.built import refuse_unusable
    from penstock.plan.dataset import look
    from penstock.watch import outlets

    loaded = settled(load(file, overrides or []))
    outlets.check(loaded)
    look_here(loaded.model.from_)
    refuse_unusable(loaded)
    refuse_other_built(loaded)
    known = look(loaded)
    run, refused = known.run, not_yet(known.run)
    illegal: IllegalLayout | None = None
    try:
        planned, where = _planned(known)
    except IllegalLayout as error:  # told last, below what the run is
        illegal, planned, where = error, None, ""
    if planned:  # what "auto" means there
        run = with_fields(run, {"train.precision": planned.job.precision})
    held = planned.memory if planned else None
    notes = [*known.missing, *missing_rows(run), *_not_exported(run)]
    if json:
        told = {
            "ok": not refused and not illegal,
            "fits": None if held is None else held.fits,
            "not_yet": refused,
            "illegal": str(illegal).splitlines() if illegal else [],
            "not_built": known.missing,
            "notes": notes,
        }
        show.print_json({**told, **facts(run)})
    else:
        memory = [f"{'memory':<10} {where}"] if where else []
        for line in [*lines(run), *memory, *(f"{'note':<10} {why}" for why in notes)]:
            show.out.print(line, markup=False, soft_wrap=True)
    refuse(run)
    if illegal:
        raise illegal
    if held is not None and not held.fits:
        raise RunFailed(f"the run does not fit: {where}; `penstock plan` looks for a layout")
    if planned and planned.over_budget:
        raise RunFailed("; ".join(planned.over_budget))
    if not json:
        command = shlex.join(
            ["penstock", "train", str(file), *map(visible_override, overrides or [])]
        )
        show.out.print(f"The file is right. Next: {command}", markup=False, soft_wrap=True)


def refuse_wrong(run: Run) -> None:
    """Raise an error for a run that `penstock train` would refuse, or that does not fit."""
    from penstock.plan.built import refuse_unusable
    from penstock.plan.dataset import look

    refuse(run)
    run = settled(run)
    refuse_unusable(run)
    planned, where = _planned(look(run))
    if planned and not planned.memory.fits:
        raise RunFailed(f"the run does not fit: {where}; `penstock plan` looks for a layout")
    if planned and planned.over_budget:
        raise RunFailed("; ".join(planned.over_budget))


def missing_rows(run: Run) -> list[str]:
    """What a build could not read of the run's data, as it is now: nothing is lost quietly."""
    from penstock.data.aside import rows_aside
    from penstock.data.manifest import Manifest
    from penstock.plan.built import built

    found = [built(run, spec) for spec, _ in run.data.parts]
    return [told for one in found if isinstance(one, Manifest) and (told := rows_aside(one))]


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


def _planned(known: "Known") -> tuple[Plan | None, str]:
    """The plan and what it says of memory in words; None where it cannot be said."""
    from penstock.meter.glance import glance
    from penstock.plan.cluster import machine_for
    from penstock.plan.make import make

    run, data, shape = known.run, known.sizes, known.run.model.base()
    if run.model.module:
        legal.refuse(run, None, legal.asked(run))
        return None, "not known for an own module"
    if data is None and shape is None:
        return None, "not known before the model is fetched"
    no_vocab = data is None and shape is not None and not shape.vocab
    if no_vocab:  # whether the layout can be does not depend on it
        run = run.model_copy(
            update={"model": run.model.model_copy(update={"vocab": legal.SOME_VOCAB})}
        )
    unknown = data is None and run.train.epochs  # how long it is; memory does not depend on it
    if unknown:
        some = run.train.model_copy(update={"epochs": None, "steps": SOME_STEPS})
        run = run.model_copy(update={"train": some})
    try:
        found = machine_for(run)
        plan = make(run, found.machine, found.warnings, data=data)
        if run.cluster.use == "here":  # as the launch asks, of the device itself
            device = glance().devices
            legal.refuse(run, shape, plan.job.layout, device.name or device.kind)
    except IllegalLayout:
        raise
    except PenstockError as error:
        if not not_yet(run) and str(error).startswith("budget"):
            raise
        # No model of this device: the file may still be right.
        return None, f"not known: {error}"
    if no_vocab:
        return None, "not known before the dataset is built"
    held, machine = plan.memory, found.machine
    used, there = held.peak_bytes / 2**30, held.capacity_bytes / 2**30
    which = f"the fullest of {machine.accelerators} × {machine.accelerator}"
    if unknown:
        plan = replace(plan, over_budget=())
    return plan, f"{used:,.1f} of {there:,.1f} GiB on {which}"
