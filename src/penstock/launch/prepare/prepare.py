"""Preparation of a run: find or build its data, settle what the run file leaves open.

Everything that can be refused is refused here, before the run folder is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.data.build.open import open_built, open_for_launch
from penstock.data.build.rejected import cut_documents_note, rejected_rows_note
from penstock.data.format.locate import built_here, datasets_home
from penstock.data.format.manifest import Manifest
from penstock.data.read.dataset import Dataset
from penstock.data.read.open import PlanEntry, open_planned, plan_entry
from penstock.errors import PenstockError
from penstock.launch.prepare import open_model, own_code
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.nodes import refuse_other_machine
from penstock.launch.prepare.prepared_run import PreparedRun
from penstock.launch.prepare.tasks import refuse_impossible_tasks
from penstock.meter.devices import Devices
from penstock.meter.precision import measure
from penstock.model.open.files import check_local_open_model
from penstock.plan import agreement
from penstock.plan.built import BuiltDataset, find_built
from penstock.plan.dataset import (
    DatasetSizes,
    fitted,
    ids_of,
    refuse_epochs_of_a_mixture,
    usable_sizes,
)
from penstock.plan.hardware.precision import decided
from penstock.plan.hours.terms import curve_of
from penstock.plan.job import legal
from penstock.run.diff import with_choices
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.budget import BudgetSection
from penstock.run.schema.code import loss_code
from penstock.run.schema.model import NO_WEIGHTS
from penstock.run.schema.preference import preference_note
from penstock.run.schema.run import Run
from penstock.train.sites.objects import read_secret

SOME_STEPS = 1000  # of a run whose length only its dataset will tell


def prepare(run: Run, before: LaunchRecord, machine: Devices, listener: Listener) -> PreparedRun:
    """Refuse what can be refused, build the data where it is missing, and settle every choice.

    `before` is the record of an earlier launch; the defaults where there was none.
    """
    run, why, warning = decided(run, measure(machine))
    odd = preference_note(run.train.objective, run.train.preference)
    for words in filter(None, (warning, odd)):
        listener.warning(words)
    find_data(run, before, machine)  # building data may take hours
    open_model.fetch(run)
    datasets = _open_data(run, before, listener)
    open_model.refuse_other_data(run, datasets)
    run, agreed = agreement.settled_here(run, datasets[0].manifest.vocab)
    prepared = settle_choices(
        run, [one.manifest for one in datasets], machine, plan_entry(datasets)
    )
    if agreed:
        prepared = replace(prepared, warnings=(agreed.words(), *prepared.warnings))
    for words in prepared.warnings:
        listener.warning(words)
    return replace(prepared, precision_why=why, datasets=datasets)


def _open_data(run: Run, before: LaunchRecord, listener: Listener) -> list[Dataset]:
    """Open the data, and build it where it is missing; warn once of rejected rows."""
    there = built_here()
    datasets = open_for_launch(run, before.dataset, listener.progress)
    for dataset in datasets:
        built_now = dataset.folder.parent == datasets_home() and dataset.id not in there
        if built_now and (told := rejected_rows_note(dataset.manifest)):
            listener.warning(told)
        if before == LaunchRecord() and (told := cut_documents_note(dataset.manifest)):
            listener.warning(told)
    return datasets


@dataclass(frozen=True)
class LaunchData:
    """The data of a run as far as it is known without building it."""

    data: tuple[Manifest, ...] = ()  # of all parts, or none
    missing: tuple[str, ...] = ()  # why a part is not known, a sentence each
    assumed: dict[str, Any] | None = None  # a plan, with a guess for what is missing


def find_data(run: Run, before: LaunchRecord, machine: Devices) -> LaunchData:
    """Find the data of a run; refuse all that is known to be wrong before it is built.

    `before` is the record of an earlier launch, whose data a run goes on with.
    """
    refuse_epochs_of_a_mixture(run)
    curve_of(run.budget)
    if run.model.adapter and not run.model.from_:
        raise PenstockError(f"model.adapter: {NO_WEIGHTS}")
    check_local_open_model(run.model.from_)
    if loss := loss_code(run.train.loss):
        loss.refuse_missing()
    own_code.check_code_unchanged(run, before)
    refuse_impossible_tasks(run)
    refuse_other_machine(run, machine)
    machine.ranks(run.cluster.accelerators)
    if run.model.module and not run.data.across_documents:
        raise PenstockError(
            "data.across_documents = false: only the models of Penstock keep documents apart, and "
            "model.module is your own; write true, or mark the borders inside your module"
        )
    open_model.refuse_impossible(run)
    if before.dataset is not None:
        return LaunchData(tuple(one.manifest for one in open_planned(run, before.dataset)))
    found = [find_built(run, spec, launch=True) for spec, _ in run.data.parts]
    there = [one for one in found if isinstance(one, BuiltDataset)]
    opened = [open_built(one.folder) for one in there if one.folder]  # are its files whole?
    open_model.refuse_other_data(run, opened)
    missing = tuple(one for one in found if isinstance(one, str))
    if not missing:
        return LaunchData(tuple(one.manifest for one in there))
    guess = _assume_data(run, machine)
    plan = guess.plan_launch(LaunchRecord())[1] if guess else None
    _try_own_code(run, machine, None)
    return LaunchData((), missing, plan)


def settle_choices(
    run: Run, data: Sequence[Manifest], machine: Devices, named: PlanEntry = ""
) -> PreparedRun:
    """Make every choice that the file leaves open; refuse what does not go with the data."""
    if run.sites:
        read_secret(run.sites.secret)
    run = with_choices(fitted(run, data))
    sizes = usable_sizes(run, data)
    masked = any(shard.mask for manifest in data for shard in manifest.shards)
    prepared = PreparedRun(
        run, sizes, machine, ids_of(data), data[0].tokenizer, named, masked=masked
    )
    if run.model.module or run.train.loss:
        prepared.plan_launch(LaunchRecord())  # refuse an invalid layout before the user's code runs
    return replace(prepared, warnings=tuple(_try_own_code(run, machine, prepared, masked)))


def _try_own_code(
    run: Run, machine: Devices, data: PreparedRun | None, masked: bool = False
) -> list[str]:
    """Refuse own code that fails a trial; return what is worth a warning.

    Without `data` the vocabulary may not be known.
    """
    if not run.model.module and not run.train.loss:
        return []
    from penstock.train.trial import Vocabulary, try_loss, try_module  # torch

    if run.model.module:
        known = Vocabulary(data.data.vocab, data.ids, masked) if data else None
        return try_module(run, machine.kind, known)
    shape = run.model.shape(data.data.vocab) if data else run.model.base()
    vocab = shape.vocab if shape else 0
    try_loss(run, machine.kind, vocab or legal.SOME_VOCAB, certain=bool(vocab))
    return []


def _assume_data(run: Run, machine: Devices) -> PreparedRun | None:
    """Assume a vocabulary and a length where only the dataset tells them; None without a shape.

    Checks that depend on the guess do not refuse the run.
    """
    shape = None if run.model.module else run.model.base()
    if shape is None and not run.model.module:
        return None
    guessed = bool(run.train.epochs) or (shape is not None and not shape.vocab)
    if run.train.epochs:
        some = run.train.model_copy(update={"epochs": None, "steps": SOME_STEPS})
        run = run.model_copy(update={"train": some})
    if guessed:
        run = run.model_copy(update={"budget": BudgetSection()})
    vocab = (shape.vocab if shape else 0) or legal.SOME_VOCAB
    return PreparedRun(with_choices(run), DatasetSizes(vocab, run.batch_samples, 0), machine, "")
