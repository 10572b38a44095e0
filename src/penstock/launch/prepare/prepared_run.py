"""A run that is ready to launch: its layout and its plan, for the hosts that are there.

The layout can be planned again for other numbers of hosts and ranks; nothing else of a run depends
on it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.data.read.dataset import Dataset
from penstock.data.read.open import PlanEntry
from penstock.errors import PenstockError
from penstock.launch.prepare import launch_plan, own_code
from penstock.launch.prepare.replan import replanned_layout
from penstock.meter.devices import Devices
from penstock.plan.cost import rates
from penstock.plan.dataset import DatasetSizes
from penstock.plan.job.layout import Layout
from penstock.plan.search import choose
from penstock.run.launch_record import LaunchRecord
from penstock.run.paths import KEY as PATHS
from penstock.run.paths import located_paths
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class PreparedRun:
    """A run whose data and choices are settled; only its layout may still change."""

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

    def plan_launch(self, before: LaunchRecord) -> tuple[Layout, dict[str, Any]]:
        """Return the layout of the whole run on hosts like this one, and the content of plan.json.

        `before` is the record of an earlier launch; the defaults where there was none.
        """
        run, nodes = self.run, self.run.cluster.nodes
        ranks = nodes * self.machine.ranks(run.cluster.accelerators)
        if choose.takes_all(run):
            ranks = choose.usable_ranks(run, ranks)
        machine = self._machine(nodes)
        self._refuse_vocabulary(run)
        layout = choose.choose_for_launch(run, self.data.vocab, machine, ranks)
        layout = replanned_layout(before, layout, _describe_machine(machine, nodes))
        return layout, self._plan(run, layout, machine, before)

    def plan_for_hosts(
        self, slots: Sequence[int], before: LaunchRecord
    ) -> tuple[Layout, dict[str, Any]]:
        """Return the same for the hosts that are there; `slots` is how many ranks each can hold."""
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
        layout = replanned_layout(before, layout, _describe_machine(machine, len(slots)))
        return layout, self._plan(run, layout, machine, before)

    def _machine(self, nodes: int) -> Devices:
        """Return all hosts as one machine.

        Ranks share the memory of a CPU host; each accelerator has its own.
        """
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
        self, run: Run, layout: Layout, machine: Devices, before: LaunchRecord
    ) -> dict[str, Any]:
        """Return what was decided before the launch: the content of plan.json."""
        data = self.data
        shape = None if run.model.module else run.model.shape(data.vocab)
        adapter = run.model.adapter
        frozen = adapter is not None
        why = self.precision_why or before.precision_why
        plan = {
            "device": machine.kind,
            "device_name": machine.name,
            "machine": _describe_machine(machine, run.cluster.nodes),
            "layout": layout.to_json(),
            "ranks": layout.ranks,
            "dataset": self.dataset,
            "vocab": data.vocab,
            "tokenizer": self.tokenizer,
            "masked": self.masked,
            "samples": data.samples,
            "held_out": data.held_out_tokens // run.sample_tokens,
            "params": shape.params() if shape else None,
            **({"trained": run.model.trained_params(shape)} if shape and adapter else {}),
            "flops_per_token": shape.flops_per_token(run.sequence, frozen) if shape else None,
            "steps": run.steps(data.samples),
            "batch_tokens": run.batch_tokens // (run.sites.count if run.sites else 1),
            "sequence": run.sequence,
            **({"pairs": True} if run.train.on_pairs else {}),
            "learning_rate": run.learning_rate,
            **({"precision_why": why} if why else {}),
            "rates": rates.written(run),
            **own_code.check_code_unchanged(run, before),
            PATHS: {**before.paths, **located_paths(run)},
        }
        if before.forked_from is not None:
            plan["forked_from"] = asdict(before.forked_from)
        if before.replanned:
            plan["replanned"] = before.replanned
        return plan | {"predicted": launch_plan.predict(run, layout, data)}


def _describe_machine(machine: Devices, nodes: int) -> str:
    return str(machine) if nodes == 1 else f"{nodes} hosts with {machine}"
