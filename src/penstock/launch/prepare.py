"""What is settled before anything starts: the data, every choice the file leaves open, the layout.

What can be refused is refused here, before the folder says that there is a run. The layout can be
asked for again, for other numbers of hosts and ranks: all the rest of a run does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.data.stream import Stream
from penstock.data.stream_open import kept, open_again, stream_of
from penstock.errors import PenstockError
from penstock.launch import foresee, open_model
from penstock.launch.listener import Listener
from penstock.launch.replan import kept as kept_layout
from penstock.meter.devices import Devices
from penstock.meter.precision import measure
from penstock.plan import legal, rates
from penstock.plan.built import refuse_unusable
from penstock.plan.dataset import Sizes, fitted, refuse_epochs_of_a_mixture
from penstock.plan.layout import IllegalLayout, Layout, choose
from penstock.policy import precision, shrink
from penstock.run.diff import closed, with_fields
from penstock.run.file import Run
from penstock.run.layout import LayoutSection
from penstock.run.paths import KEY as PATHS
from penstock.run.paths import found_paths


@dataclass(frozen=True)
class Prepared:
    run: Run  # with every choice made
    stream: Stream
    machine: Devices  # of each host
    precision_why: str = ""  # why "auto" means what it does here; "" where the file says it

    def planned(self, before: dict[str, Any]) -> tuple[Layout, dict[str, Any]]:
        """The layout of the whole run on hosts like this one, and its plan; `before` is the plan of
        an earlier launch."""
        run, nodes = self.run, self.run.cluster.nodes
        ranks = nodes * self.machine.ranks(run.cluster.accelerators)
        if run.cluster.accelerators == "all" and run.layout is None:
            ranks = min(ranks, run.batch_samples)  # more would only add up zeros
        machine = self._machine(nodes)
        layout = kept_layout(before, self._layout(run, machine, ranks), _words(machine, nodes))
        return layout, self._plan(run, layout, machine, before)

    def planned_for(
        self, slots: Sequence[int], before: dict[str, Any]
    ) -> tuple[Layout, dict[str, Any]]:
        """The same for the hosts that are there, with so many ranks each at the most.

        A layout that was asked for gives up replicas first; see `policy/shrink.py`.
        """
        ranks = sum(slots)
        if self.run.layout is None:
            ranks = min(ranks, self.run.batch_samples)  # more would only add up zeros
        here = {"nodes": len(slots), "accelerators": min(slots)}
        run = self.run.model_copy(update={"cluster": self.run.cluster.model_copy(update=here)})
        if len(slots) < self.run.cluster.nodes:  # the last replica goes on alone in live mode too
            guard = run.guard.model_copy(update={"mode": "restart"})
            run = run.model_copy(update={"guard": guard})
        machine = self._machine(len(slots))
        try:
            layout = self._layout(run, machine, ranks)
        except IllegalLayout:
            asked = (run.layout or LayoutSection()).model_dump()
            sizes = shrink.fitted({name: asked[name] for name in shrink.WAYS}, ranks)
            if sizes is None:
                raise
            section = LayoutSection(**asked | sizes)
            run = run.model_copy(update={"layout": section})
            layout = self._layout(run, machine, section.per_replica * sizes["replicate"])
        layout = kept_layout(before, layout, _words(machine, len(slots)))
        return layout, self._plan(run, layout, machine, before)

    def _machine(self, nodes: int) -> Devices:
        """All hosts as one: a CPU's memory is shared by its ranks, an accelerator's is its own."""
        machine = self.machine
        many = nodes if machine.kind == "cpu" else 1
        return replace(machine, memory_bytes=many * machine.memory_bytes)

    def _layout(self, run: Run, machine: Devices, ranks: int) -> Layout:
        stream = self.stream
        shape = None if run.model.module else run.model.shape(stream.vocab)
        if shape is not None and shape.vocab < stream.vocab:
            what = f"the tokenizer of {stream.id} has {stream.vocab} tokens"
            if run.model.from_:
                raise PenstockError(
                    f'model.from = "{run.model.from_}": {what}, and the embedding of the model '
                    f"{shape.vocab}. Name raw files in data.dataset, which are then read with the "
                    "model's own tokenizer"
                )
            raise PenstockError(
                f"model.vocab = {shape.vocab}: {what}; set model.vocab = {stream.vocab} or more"
            )
        planned = foresee.layout_of(run, stream.vocab) if shape is not None else None
        layout = planned or choose(
            run, shape, run.sequence, ranks, machine.kind, machine.memory_bytes
        )
        legal.refuse(run, shape, layout, machine.name or machine.kind)
        return layout

    def _plan(
        self, run: Run, layout: Layout, machine: Devices, before: dict[str, Any]
    ) -> dict[str, Any]:
        """What was decided before the launch, kept with the run."""
        stream = self.stream
        shape = None if run.model.module else run.model.shape(stream.vocab)
        adapter = run.model.adapter
        frozen = adapter is not None
        why = self.precision_why or before.get("precision_why")
        plan = {
            "device": machine.kind,
            "device_name": machine.name,
            "machine": _words(machine, run.cluster.nodes),
            "layout": layout.to_json(),
            "ranks": layout.ranks,
            "dataset": kept([part.dataset for part in stream.parts]),
            "vocab": stream.vocab,
            "tokenizer": stream.parts[0].dataset.manifest.tokenizer,  # all parts have the same
            "samples": stream.samples,
            "held_out": stream.held_out,
            "params": shape.params() if shape else None,
            **({"trained": adapter.trained(shape)} if shape and adapter else {}),
            "flops_per_token": shape.flops_per_token(run.sequence, frozen) if shape else None,
            "steps": run.steps(stream.samples),
            "batch_tokens": run.batch_tokens,
            "sequence": run.sequence,
            "learning_rate": run.learning_rate,
            **({"precision_why": why} if why else {}),
            "rates": rates.written(run),
            PATHS: {**before.get(PATHS, {}), **found_paths(run)},
        }
        plan |= {name: before[name] for name in ("forked_from", "replanned") if name in before}
        sizes = Sizes(stream.vocab, stream.samples, stream.held_out * run.sequence)
        return plan | {"predicted": foresee.predicted(run, layout, sizes)}


def prepare(run: Run, before: dict[str, Any], machine: Devices, listener: Listener) -> Prepared:
    """Opens the data, builds it where it has to be, and settles what follows from it."""
    refuse_epochs_of_a_mixture(run)
    run, why = _with_precision(run, machine, listener)
    open_model.fetch(run)
    if not before:  # building data may take hours
        _refuse_early(run, machine)
    datasets = open_again(run, before, listener.progress)
    open_model.refuse_other_data(run, datasets)
    run = closed(fitted(run, [dataset.manifest for dataset in datasets]))
    stream = stream_of(run, datasets)
    if run.batch_samples > stream.samples:
        raise PenstockError(
            f"train.batch_tokens = {run.batch_tokens}: more than {stream.id} has, which is "
            f"{stream.samples * run.sequence} tokens; write less"
        )
    if run.model.module and not run.data.across_documents:
        raise PenstockError(
            "data.across_documents = false: only the models of Penstock keep documents apart, and "
            "model.module is your own; write true, or mark the borders inside your module"
        )
    return Prepared(run, stream, machine, why)


def _with_precision(run: Run, machine: Devices, listener: Listener) -> tuple[Run, str]:
    """Choose what "auto" means on this machine; warn of a given precision that is slow here."""
    speed = measure(machine)
    if run.train.precision != "auto":
        if warning := precision.warning(run.train.precision, speed):
            listener.warning(warning)
        return run, ""
    chosen = precision.choose(speed, run.train.weights)
    return with_fields(run, {"train.precision": chosen.precision}), chosen.why


def _refuse_early(run: Run, machine: Devices) -> None:
    """What can be known to be wrong before there is data."""
    refuse_unusable(run)
    shape = None if run.model.module else run.model.base()
    if run.layout is None or run.data.sequence is None or not (shape or run.model.module):
        return
    if shape is not None and not shape.vocab:
        shape = shape.with_vocab(legal.SOME_VOCAB)
    ranks = run.cluster.nodes * machine.ranks(run.cluster.accelerators)
    layout = choose(run, shape, run.sequence, ranks, machine.kind, machine.memory_bytes)
    legal.refuse(run, shape, layout, machine.name or machine.kind)


def _words(machine: Devices, nodes: int) -> str:
    return str(machine) if nodes == 1 else f"{nodes} hosts with {machine}"
