"""What is settled before anything starts: the data, every choice the file leaves open, the layout.

What can be refused is refused here, before the folder says that there is a run. The layout can be
asked for again, for other numbers of hosts and ranks: all the rest of a run does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.data.build.open import open_built, open_for_launch
from penstock.data.build.rejected import cut_documents_note, rejected_rows_note
from penstock.data.format.locate import built_here, datasets_home
from penstock.data.format.manifest import Manifest
from penstock.data.read.dataset import Dataset
from penstock.data.read.open import PlanEntry, open_planned, plan_entry
from penstock.errors import PenstockError
from penstock.launch.prepare import launch_plan, open_model, own_code
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.replan import kept as kept_layout
from penstock.meter.devices import Devices
from penstock.meter.precision import measure
from penstock.model.open.files import check_local_open_model
from penstock.plan.built import BuiltDataset, find_built
from penstock.plan.cost import rates
from penstock.plan.dataset import (
    DatasetSizes,
    fitted,
    ids_of,
    refuse_epochs_of_a_mixture,
    usable_sizes,
)
from penstock.plan.hardware.precision import decided
from penstock.plan.job import legal
from penstock.plan.job.layout import Layout
from penstock.plan.search import choose
from penstock.run.diff import with_choices
from penstock.run.paths import KEY as PATHS
from penstock.run.paths import located_paths
from penstock.run.schema.budget import BudgetSection
from penstock.run.schema.code import loss_code
from penstock.run.schema.run import Run

SOME_STEPS = 1000  # of a run whose length only its dataset will tell


@dataclass(frozen=True)
class Prepared:
    run: Run  # with every choice made
    data: DatasetSizes
    machine: Devices  # of each host
    ids: str  # of the datasets, for messages
    tokenizer: str = ""  # its hash; all parts of a mixture have the same
    dataset: PlanEntry = ""  # what the plan keeps, so that the data can be opened again
    precision_why: str = ""  # why "auto" means what it does here; "" where the file says it
    warnings: tuple[str, ...] = ()  # of the trial of the user's own code
    masked: bool = False  # some tokens are no targets of the loss
    datasets: list[Dataset] = field(default_factory=list)  # opened; `check` opens none

    def planned(self, before: dict[str, Any]) -> tuple[Layout, dict[str, Any]]:
        """The layout of the whole run on hosts like this one, and its plan; `before` is the plan of
        an earlier launch."""
        run, nodes = self.run, self.run.cluster.nodes
        ranks = nodes * self.machine.ranks(run.cluster.accelerators)
        if choose.takes_all(run):
            ranks = choose.usable_ranks(run, ranks)
        machine = self._machine(nodes)
        self._refuse_vocabulary(run)
        layout = choose.choose_for_launch(run, self.data.vocab, machine, ranks)
        layout = kept_layout(before, layout, _words(machine, nodes))
        return layout, self._plan(run, layout, machine, before)

    def planned_for(
        self, slots: Sequence[int], before: dict[str, Any]
    ) -> tuple[Layout, dict[str, Any]]:
        """The same for the hosts that are there, with so many ranks each at the most."""
        ranks = sum(slots)
        if self.run.layout is None:
            ranks = choose.usable_ranks(self.run, ranks)
        here = {"nodes": len(slots), "accelerators": min(slots)}
        run = self.run.model_copy(update={"cluster": self.run.cluster.model_copy(update=here)})
        if len(slots) < self.run.cluster.nodes:  # the last replica goes on alone in live mode too
            guard = run.guard.model_copy(update={"mode": "restart"})
            run = run.model_copy(update={"guard": guard})
        machine = self._machine(len(slots))
        self._refuse_vocabulary(run)
        run, layout = choose.choose_for_fewer_ranks(run, self.data.vocab, machine, ranks)
        layout = kept_layout(before, layout, _words(machine, len(slots)))
        return layout, self._plan(run, layout, machine, before)

    def _machine(self, nodes: int) -> Devices:
        """All hosts as one: a CPU's memory is shared by its ranks, an accelerator's is its own."""
        machine = self.machine
        many = nodes if machine.kind == "cpu" else 1
        return replace(machine, memory_bytes=many * machine.memory_bytes)

    def _refuse_vocabulary(self, run: Run) -> None:
        """Refuse a model with fewer words than the dataset's tokenizer."""
        vocab = self.data.vocab
        shape = None if run.model.module else run.model.shape(vocab)
        if shape is not None and shape.vocab < vocab:
            what = f"the tokenizer of {self.ids} has {vocab} tokens"
            if run.model.from_:
                raise PenstockError(
                    f'model.from = "{run.model.from_}": {what}, and the embedding of the model '
                    f"{shape.vocab}. Name raw files in data.dataset, which are then read with the "
                    "model's own tokenizer"
                )
            raise PenstockError(
                f"model.vocab = {shape.vocab}: {what}; set model.vocab = {vocab} or more"
            )

    def _plan(
        self, run: Run, layout: Layout, machine: Devices, before: dict[str, Any]
    ) -> dict[str, Any]:
        """What was decided before the launch, kept with the run."""
        data = self.data
        shape = None if run.model.module else run.model.shape(data.vocab)
        adapter = run.model.adapter
        frozen = adapter is not None
        why = self.precision_why or before.get("precision_why")
        plan = {
            "device": machine.kind,
            "device_name": machine.name,
            "machine": _words(machine, run.cluster.nodes),
            "layout": layout.to_json(),
            "ranks": layout.ranks,
            "dataset": self.dataset,
            "vocab": data.vocab,
            "tokenizer": self.tokenizer,
            "masked": self.masked,
            "samples": data.samples,
            "held_out": data.held_out_tokens // run.sequence,
            "params": shape.params() if shape else None,
            **({"trained": adapter.trained(shape)} if shape and adapter else {}),
            "flops_per_token": shape.flops_per_token(run.sequence, frozen) if shape else None,
            "steps": run.steps(data.samples),
            "batch_tokens": run.batch_tokens,
            "sequence": run.sequence,
            "learning_rate": run.learning_rate,
            **({"precision_why": why} if why else {}),
            "rates": rates.written(run),
            **own_code.kept(run, before),
            PATHS: {**before.get(PATHS, {}), **located_paths(run)},
        }
        plan |= {name: before[name] for name in ("forked_from", "replanned") if name in before}
        return plan | {"predicted": launch_plan.predicted(run, layout, data)}


def prepare(run: Run, before: dict[str, Any], machine: Devices, listener: Listener) -> Prepared:
    """Refuse what can be refused, build the data where it has to be, and settle what follows."""
    run, why, warning = decided(run, measure(machine))
    if warning:
        listener.warning(warning)
    look(run, before, machine)  # building data may take hours
    open_model.fetch(run)
    datasets = _opened(run, before, listener)
    open_model.refuse_other_data(run, datasets)
    prepared = settle(run, [one.manifest for one in datasets], machine, plan_entry(datasets))
    for words in prepared.warnings:
        listener.warning(words)
    return replace(prepared, precision_why=why, datasets=datasets)


def _opened(run: Run, before: dict[str, Any], listener: Listener) -> list[Dataset]:
    """Open the data, and build it where it is not; tell once, when it is built, what it lacks."""
    there = built_here()
    datasets = open_for_launch(run, before, listener.progress)
    for dataset in datasets:
        built_now = dataset.folder.parent == datasets_home() and dataset.id not in there
        if built_now and (told := rejected_rows_note(dataset.manifest)):
            listener.warning(told)
        if not before and (told := cut_documents_note(dataset.manifest)):
            listener.warning(told)
    return datasets


@dataclass(frozen=True)
class Looked:
    """What is known of a run's data without building it."""

    data: tuple[Manifest, ...] = ()  # all of it, or nothing
    missing: tuple[str, ...] = ()  # why a part is not known, a sentence each
    assumed: dict[str, Any] | None = None  # a plan, with a guess for what is missing


def look(run: Run, before: dict[str, Any], machine: Devices) -> Looked:
    """Find the data of a run; refuse all that is known to be wrong before it is built.

    `before` is the plan of an earlier launch, whose data a run goes on with.
    """
    refuse_epochs_of_a_mixture(run)
    check_local_open_model(run.model.from_)
    if loss := loss_code(run.train.loss):
        loss.refuse_missing()
    own_code.kept(run, before)
    machine.ranks(run.cluster.accelerators)
    if run.model.module and not run.data.across_documents:
        raise PenstockError(
            "data.across_documents = false: only the models of Penstock keep documents apart, and "
            "model.module is your own; write true, or mark the borders inside your module"
        )
    if "dataset" in before:
        return Looked(tuple(one.manifest for one in open_planned(run, before["dataset"])))
    found = [find_built(run, spec, launch=True) for spec, _ in run.data.parts]
    there = [one for one in found if isinstance(one, BuiltDataset)]
    opened = [open_built(one.folder) for one in there if one.folder]  # are its files whole?
    open_model.refuse_other_data(run, opened)
    missing = tuple(one for one in found if isinstance(one, str))
    if not missing:
        return Looked(tuple(one.manifest for one in there))
    guess = _assumed(run, machine)
    plan = guess.planned({})[1] if guess else None
    _try_own_code(run, machine, None)
    return Looked((), missing, plan)


def settle(run: Run, data: Sequence[Manifest], machine: Devices, named: PlanEntry = "") -> Prepared:
    """Make every choice that the file leaves open; refuse what does not go with the data."""
    run = with_choices(fitted(run, data))
    sizes = usable_sizes(run, data)
    masked = any(shard.mask for manifest in data for shard in manifest.shards)
    prepared = Prepared(run, sizes, machine, ids_of(data), data[0].tokenizer, named, masked=masked)
    if run.model.module or run.train.loss:
        prepared.planned({})  # a layout that cannot be is told before the user's code runs
    return replace(prepared, warnings=tuple(_try_own_code(run, machine, prepared, masked)))


def _try_own_code(
    run: Run, machine: Devices, data: Prepared | None, masked: bool = False
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


def _assumed(run: Run, machine: Devices) -> Prepared | None:
    """Assume a vocabulary and a length where only the dataset tells them; None without a shape.

    What depends on the guess is not held against the run.
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
    return Prepared(with_choices(run), DatasetSizes(vocab, run.batch_samples, 0), machine, "")


def _words(machine: Devices, nodes: int) -> str:
    return str(machine) if nodes == 1 else f"{nodes} hosts with {machine}"
