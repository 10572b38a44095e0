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
        plan = self.folder.read_plan()
        ways = self._smaller(plan)
        if self.run.guard.on_oom != "replan" or not ways:
            return None
        old, new = plan["layout"], ways[0].layout
        plan["layout"] = new.to_json()
        made = plan.get("replanned", {})
        # Several layouts may be tried; `asked` stays the one of the run file.
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
        """Return what the planner would change, in terms of the run file."""
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
            return launch_plan.predict(self.run, layout, sizes)
        except PenstockError as error:  # over the budget: it stops there, as any run does
            return {"none": str(error)}


def replanned_layout(before: dict[str, Any], layout: Layout, machine: str) -> Layout:
    """Return the layout that an earlier launch was replanned to, on the same machine."""
    made = before.get("replanned")
    if made and made["asked"] == layout.to_json() and made["machine"] == machine:
        return Layout(**made["layout"])
    return layout
