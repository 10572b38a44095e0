"""The step at which a rank continues, after a start or a rollback: the newest good checkpoint."""

from dataclasses import dataclass

from penstock.ledger.journal.events import (
    CheckpointLoaded,
    CheckpointRejected,
    RecordMended,
    StoreUnreachable,
)
from penstock.meter.clock import now
from penstock.train.evaluate import Evaluator
from penstock.train.progress import Progress
from penstock.train.rank_context import RankContext
from penstock.train.replicas.rewind import Rewind
from penstock.train.saving import CheckpointSaver
from penstock.train.state import TrainingState


@dataclass
class Recovery:
    """Resume and rollback of a run that restarts after a fault. `live.py` has the other mode."""

    rank: RankContext
    state: TrainingState
    saver: CheckpointSaver
    evaluator: Evaluator
    progress: Progress

    def begin(self, steps: int) -> None:
        """Resume from the newest good checkpoint, or begin at step 0 of `steps`."""
        self.load_newest()

    def load_newest(self) -> None:
        """Load the newest good checkpoint, if there is one, and set the progress to its step."""
        at = self.progress
        at.step, at.has_state = self._load() or 0, True
        at.pending = self.evaluator.due_at_start(at.step)

    def rollback(self, before_step: int) -> int | None:
        """Load the newest good checkpoint from before a step. Return its step, or None.

        Later checkpoints are deleted: they hold what is being taken back.
        """
        self.saver.forget(before_step - 1)
        self.state.engine.replicas.load_local_state({})
        return self._load()

    def rewind(self, rewind: Rewind) -> None:
        """Set the progress to the step that the guard went back to; its state is loaded already."""
        self.progress.step, self.progress.pending = rewind.step, None

    def replica_waits(self) -> bool:
        """Return whether a replica waits to join; only live mode has such replicas."""
        return False

    def admit_replica(self) -> None:
        """Let a waiting replica join."""

    def _load(self) -> int | None:
        start, rank = now(), self.rank
        rank.pulse.at("load", 0)
        self.saver.fetch_from_peers()
        search = self.saver.tiers().newest_good()
        for words in search.notes:
            rank.journal.write(RecordMended(words=words))
        for problem in search.rejected:
            rank.journal.write(CheckpointRejected(problem=problem))
        for problem in search.unreachable:
            rank.journal.write(StoreUnreachable(problem=problem))
        found = search.checkpoint
        if found is None:
            return None
        self.state.load(found)
        self.saver.resumed(found.step, durable=found.tier != "memory")
        spent, path = now() - start, str(found.path)
        rank.journal.write(
            CheckpointLoaded(step=found.step, tier=found.tier, path=path, seconds=spent)
        )
        return found.step
