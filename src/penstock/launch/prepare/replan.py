"""A run that ran out of memory: what the planner would change, and going on with that.

The layout that the ranks read is the one in plan.json; to re-plan is to write another one there and
start the ranks again from the last checkpoint. The ranks and the global batch stay.
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
from penstock.run.schema.run import Run

SHOWN = 3  # ways out in one message


@dataclass
class Replanner:
    run: Run
    folder: RunFolder
    journal: SupervisorJournal

    def take(self, attempt: int) -> Layout | None:
        """Puts the next smaller layout into plan.json, if the run may and there is one."""
        plan = self.folder.read_plan()
        ways = self._smaller(plan)
        if self.run.guard.on_oom != "replan" or not ways:
            return None
        old, new = plan["layout"], ways[0].layout
        plan["layout"] = new.to_json()
        made = plan.get("replanned", {})
        # One after the other, until one fits: what was asked for stays the first.
        asked = made["asked"] if made.get("layout") == old else old
        plan["replanned"] = {
            "asked": asked,
            "layout": plan["layout"],
            "machine": plan["machine"],
        }
        plan["predicted"] = self._predicted(plan, new)
        self.folder.write_plan(plan)
        self.journal.write(Replanned(attempt=attempt, old=old, layout=plan["layout"]))
        return new

    def advice(self) -> str:
        """What the planner would change, in the words of the run file."""
        plan = self.folder.read_plan()
        ways = self._smaller(plan)
        if not ways:
            return (
                "No layout of these ranks needs less memory. Use a smaller model, a shorter "
                'data.sequence, train.weights = "bf16" with train.states = "bf16", or more '
                "accelerators."
            )
        failed = Layout(**plan["layout"])
        kinds: dict[tuple[str, ...], oom.SmallerLayout] = {}
        for way in ways:  # the fastest of each kind
            kinds.setdefault(oom.changed_fields(failed, way.layout), way)
        said = ", or ".join(way.words(self.run, failed) for way in list(kinds.values())[:SHOWN])
        return (
            f'The planner would write {said}. With guard.on_oom = "replan" the run goes on with '
            "the first of these by itself."
        )

    def _smaller(self, plan: dict[str, Any]) -> list[oom.SmallerLayout]:
        layout = Layout(**plan["layout"])
        try:
            if self.run.model.module:
                return oom.halved_microbatch(self.run, layout)
            machine = machine_for(self.run).machine
            job = choose_layout(self.run, machine, plan["vocab"], layout).job
            return oom.smaller_layouts(job, trainable_space(self.run))
        except PenstockError:  # a device that nobody has measured
            return oom.halved_microbatch(self.run, layout)

    def _predicted(self, plan: dict[str, Any], layout: Layout) -> dict[str, Any]:
        held_out_tokens = plan["held_out"] * plan["sequence"]
        sizes = DatasetSizes(plan["vocab"], plan["samples"], held_out_tokens)
        try:
            return launch_plan.predicted(self.run, layout, sizes)
        except PenstockError as error:  # over the budget: it stops there, as any run does
            return {"none": str(error)}


def kept(before: dict[str, Any], layout: Layout, machine: str) -> Layout:
    """The layout that an earlier launch was re-planned to, where all is as it was then."""
    made = before.get("replanned")
    if made and made["asked"] == layout.to_json() and made["machine"] == machine:
        return Layout(**made["layout"])
    return layout
