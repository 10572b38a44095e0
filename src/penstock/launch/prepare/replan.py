"""Replanning of a run that ran out of memory: a smaller layout, or advice about one.

Ranks read their layout from plan.json. Replanning writes another one there; the ranks then start
again from the last checkpoint. The number of ranks and the global batch stay.
"""

from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.launch.prepare import launch_plan
from penstock.ledger.journal.events import Replanned
from penstock.ledger.journal.writer import SupervisorJournal
from penstock.plan.dataset import DatasetSizes
from penstock.plan.hardware.cluster import machine_for
from penstock.plan.job.layout import Layout
from penstock.plan.search import oom
from penstock.plan.search.choose import choose_layout
from penstock.plan.search.search import trainable_space
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.run.schema.run import Run

SHOWN = 3  # ways out in one message


@dataclass
class Replanner:
    """The planner of smaller layouts for one run."""

    run: Run
    folder: RunFolder
    journal: SupervisorJournal

    def apply_smaller_layout(self, attempt: int) -> Layout | None:
        """Write the next smaller layout to plan.json, if guard.on_oom allows it and one exists."""
        launch = self.folder.read_launch_record()
        ways = self._smaller(launch)
        if self.run.guard.on_oom != "replan" or not ways:
            return None
        old, new = launch.layout, ways[0].layout
        made = launch.replanned
        # Several layouts may be tried; `asked` stays the one of the run file.
        asked = made["asked"] if made.get("layout") == old else old
        changed = {
            "layout": new.to_json(),
            "replanned": {"asked": asked, "layout": new.to_json(), "machine": launch.machine},
            "predicted": self._predicted(launch, new),
        }
        self.folder.write_plan(self.folder.read_plan() | changed)
        self.journal.write(Replanned(attempt=attempt, old=old, layout=new.to_json()))
        return new

    def advice(self) -> str:
        """Return what the planner would change, in terms of the run file."""
        launch = self.folder.read_launch_record()
        ways = self._smaller(launch)
        if not ways:
            return (
                "No layout of these ranks needs less memory. Use a smaller model, a shorter "
                'data.sequence, train.weights = "bf16" with train.states = "bf16", or more '
                "accelerators."
            )
        failed = Layout(**launch.layout)
        kinds: dict[tuple[str, ...], oom.SmallerLayout] = {}
        for way in ways:  # the fastest of each kind
            kinds.setdefault(oom.changed_fields(failed, way.layout), way)
        said = ", or ".join(way.words(self.run, failed) for way in list(kinds.values())[:SHOWN])
        return (
            f'The planner would write {said}. With guard.on_oom = "replan" the run goes on with '
            "the first of these by itself."
        )

    def _smaller(self, launch: LaunchRecord) -> list[oom.SmallerLayout]:
        layout = Layout(**launch.layout)
        try:
            if self.run.model.module:
                return oom.halved_microbatch(self.run, layout)
            machine = machine_for(self.run).machine
            job = choose_layout(self.run, machine, launch.vocab, layout).job
            return oom.smaller_layouts(job, trainable_space(self.run))
        except PenstockError:  # a device that nobody has measured
            return oom.halved_microbatch(self.run, layout)

    def _predicted(self, launch: LaunchRecord, layout: Layout) -> dict[str, Any]:
        held_out_tokens = launch.held_out * launch.sequence
        sizes = DatasetSizes(launch.vocab, launch.samples, held_out_tokens)
        try:
            return launch_plan.predict(self.run, layout, sizes)
        except PenstockError as error:  # over the budget: it stops there, as any run does
            return {"none": str(error)}


def replanned_layout(before: LaunchRecord, layout: Layout, machine: str) -> Layout:
    """Return the layout that an earlier launch was replanned to, on the same machine."""
    made = before.replanned
    if made and made["asked"] == layout.to_json() and made["machine"] == machine:
        return Layout(**made["layout"])
    return layout
