"""The checks of `penstock check`: those that `penstock train` makes before it starts anything.

Both verbs call the functions of `launch/prepare/prepare.py`, so they refuse a run with the same
message. Nothing is built, fetched or started here.
"""

from dataclasses import dataclass, replace
from typing import Any

from penstock.catalog.open.models import family_of
from penstock.data.build.rejected import cut_documents_note, rejected_rows_note
from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines.engine import submits
from penstock.launch.engines.refuse import refuse_submission
from penstock.launch.prepare import launch_plan
from penstock.launch.prepare.nodes import devices_of_nodes, find_devices
from penstock.launch.prepare.prepare import LaunchData, find_data, settle_choices
from penstock.meter.clock import now
from penstock.plan import agreement
from penstock.plan.dataset import manifests
from penstock.plan.hardware import precision
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.job import legal
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.diff import with_fields
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import with_model_config
from penstock.run.schema.preference import preference_note
from penstock.run.schema.run import Run
from penstock.run.unsupported import refuse_unsupported


@dataclass(frozen=True)
class Findings:
    """The facts about a run that are known before it starts."""

    run: Run  # with what its model and its datasets decide
    refused: PenstockError | None = None
    missing: tuple[str, ...] = ()  # data that is still to be built
    fits: bool | None = None  # None: not known
    warnings: tuple[str, ...] = ()  # what `train` would warn of
    memory: str = ""  # how full the accelerators get, or why that is not known


def verify(run: Run, dry: bool = False) -> Findings:
    """Check a run as `train` does before its ranks start; an error is kept in the findings.

    `dry` is for a run that will only be shown: credentials of a bucket may be missing.
    """
    try:
        run = with_cluster_file(run)
        refuse_unsupported(run)
        launch_plan.refuse_over_site(run)
        run = with_model_config(run)
        if submits(run):
            refuse_submission(run, dry)
        machine = devices_of_nodes(run) if submits(run) else find_devices()
        folder = RunFolder(run.folder)
        if not submits(run):
            folder.refuse_unwritable()
        run = _as_resumed(run, folder)
        run, before = _with_precision(run), _launch_before(folder)
        known = find_data(run, before, machine)
        if known.missing:
            return _describe_assumed(run, known)
        run, agreed = agreement.settled_here(run, known.data[0].vocab)
        prepared = settle_choices(run, known.data, machine)
        run = prepared.run
        layout, plan = prepared.plan_launch(before)
        _refuse_other_weights(run, folder, prepared.data.vocab)
        launch_plan.budget_limit(run, folder, layout.ranks, now())
    except PenstockError as error:
        return Findings(run, error)
    told = (agreed.words(),) if agreed else ()
    return _with_memory(Findings(run, warnings=(*told, *prepared.warnings)), plan)


def _as_resumed(run: Run, folder: RunFolder) -> Run:
    """Compare the run with what its folder holds, as `train` does for a run that exists."""
    if not folder.exists():
        return run
    from penstock.launch.prepare.resume import decide_resume  # torch, which a new run does without

    return decide_resume(folder, run).run


def _launch_before(folder: RunFolder) -> LaunchRecord:
    """Return the record of the last launch, as `train` will mend it where it is damaged."""
    try:
        return folder.read_launch_record()
    except RunFailed:
        from penstock.launch.prepare.recover import (
            read_or_recover_plan,  # torch, which a new run does without
        )

        return read_or_recover_plan(folder).record


def _with_precision(run: Run) -> Run:
    """Choose what "auto" means by the figures of the machine; `train` measures it with torch."""
    if run.train.precision != "auto":
        return run
    try:
        return precision.settled(run, machine_for(run).machine)[0]
    except PenstockError:  # no figures: told below, if it is worth it
        return with_fields(run, {"train.precision": "bf16"})


def _refuse_other_weights(run: Run, folder: RunFolder, vocab: int) -> None:
    if folder.exists():
        from penstock.launch.prepare.resume import refuse_other_weights

        refuse_other_weights(folder, run, vocab)


def _describe_assumed(run: Run, known: LaunchData) -> Findings:
    """Say what can be said before the data is built."""
    found = Findings(run, missing=known.missing)
    shape = run.model.base()
    if run.model.module or known.assumed is None or (shape and not shape.vocab):
        return replace(found, memory="not known before the dataset is built")
    return _with_memory(found, known.assumed)


def _with_memory(found: Findings, plan: dict[str, Any]) -> Findings:
    """Add what a plan says of memory."""
    predicted = LaunchRecord.from_json(plan).predicted
    if "none" in predicted:
        return replace(found, memory=f"not known: {predicted['none']}")
    found = replace(found, warnings=(*found.warnings, *launch_plan.hour_notes(predicted)))
    held = predicted["memory"]
    used, there = held["peak_bytes"] / 2**30, held["capacity_bytes"] / 2**30
    which = (
        f"the fullest of {predicted['accelerators']} × {predicted['uncalibrated']['accelerator']}"
    )
    memory = f"{used:,.1f} of {there:,.1f} GiB on {which}"
    if used <= there:  # the upper end of the band may not fit: the run may be tried
        return replace(found, fits=predicted["fits"], memory=memory)
    error = RunFailed(f"the run does not fit: {memory}; `penstock plan` looks for a layout")
    return replace(found, refused=error, fits=False, memory=memory)


def notes_of(found: Findings) -> list[str]:
    """Return everything that a person should know of a run, whether it would start or not."""
    rows = [] if found.refused else _missing_rows(found.run)
    train = found.run.train
    note = preference_note(train.objective, train.preference)
    settings = [note] if note else []
    return [*found.missing, *found.warnings, *settings, *rows, *_not_exported(found.run)]


def _missing_rows(run: Run) -> list[str]:
    """Say what a build could not read of the run's data or cut: nothing is lost quietly."""
    every = [say(one) for one in manifests(run) for say in (rejected_rows_note, cut_documents_note)]
    return [told for told in every if told]


def _not_exported(run: Run) -> list[str]:
    """Say why `penstock export` would refuse what is trained, while it can still be changed."""
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
