"""The objects that every part of a rank's training uses: the run, its folder, and this rank's place
in it.
"""

from dataclasses import dataclass

from penstock.guard.detect.pulse import Pulse
from penstock.ledger.journal.writer import Journal
from penstock.plan.job.layout import Layout
from penstock.run.folder import RunFolder
from penstock.run.schema.run import Run
from penstock.train.world.world import World


@dataclass(frozen=True)
class RankContext:
    """A run and this rank's place in it. Nothing here changes while the rank trains."""

    folder: RunFolder
    run: Run
    layout: Layout
    world: World
    journal: Journal
    pulse: Pulse

    def leads_steps(self) -> bool:
        """Return whether this rank writes down what the ranks that step together have decided."""
        return self.world.first_inside if self.world.apart else self.world.lead

    def leads(self) -> bool:
        """Return whether this rank writes down what all ranks have decided."""
        return self.world.lead
