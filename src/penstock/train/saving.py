"""When a run saves: fast copies in memory every few steps, durable ones on the interval.

The rank that leads asks, the vote tells all ranks, and `guard/save/saver.py` saves.
"""

import contextlib
import os
import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from penstock.errors import RunFailed
from penstock.guard.checkpoints import CheckpointSearch, search_of_run
from penstock.guard.save.saver import Saver, SaveTiming
from penstock.guard.tiers import peers
from penstock.guard.tiers.locations import spill_folder, stores_of_run
from penstock.guard.tiers.slots import SLOTS
from penstock.ledger.journal.events import (
    CheckpointSpan,
    DiscardFailed,
    PeerFetchFailed,
    StepsTakenBack,
)
from penstock.meter.clock import StepClock, now
from penstock.meter.devices import cpu_cores
from penstock.policy import checkpoint as policy
from penstock.run.schema.quantity import Every
from penstock.train.rank_context import RankContext
from penstock.train.replicas.reduce import Vote
from penstock.train.state import TrainingState

TRIES = 3  # of the last save of a run: nothing comes after it that would try again
STEPS = 15  # whose median is how long a step takes


@dataclass
class CheckpointSaver:
    """The schedule of a run's saves. `state.py` has the saved state."""

    rank: RankContext
    state: TrainingState
    saved_step: int = 0  # of the last durable save that was begun
    saved_s: float = field(default_factory=now)
    staged_step: int = 0  # of the last save of any kind
    staged_s: float = field(default_factory=now)

    def __post_init__(self) -> None:
        rank = self.rank
        self.folder, self.run, self.world = rank.folder, rank.run, rank.world
        self.journal, self.pulse = rank.journal, rank.pulse
        self._saver: Saver | None = None
        self._by_request = False  # a file in `control/` asked for the save that is under way
        self._steps_s: deque[float] = deque(maxlen=STEPS)
        self._stepped_s = now()
        self._peers = peers.from_environment()

    def tiers(self) -> CheckpointSearch:
        """Return all places where a state of this run may be."""
        return search_of_run(self.folder, self.run, self.world, self._leads)

    @property
    def _leads(self) -> bool:
        """Return whether this rank works for its host."""
        return os.environ.get("PENSTOCK_HOST_RANK", os.environ.get("LOCAL_RANK", "0")) == "0"

    def fetch_from_peers(self) -> None:
        """Fetch what other hosts hold in memory and this one lacks. All ranks call it together."""
        if self._peers and self._leads:
            try:
                self._peers.fetch(self.folder.scratch)
            except OSError as error:  # a durable checkpoint is there for that
                self.journal.write(PeerFetchFailed(error=str(error)))
        if self._peers:
            self.world.gather(None)

    def resumed(self, step: int, durable: bool = True) -> None:
        """Note that the run continues from a save of `step`."""
        self.saved_step, self.staged_step = step if durable else 0, step
        self.saved_s = self.staged_s = self._stepped_s = now()

    def prepare(self) -> None:
        """Begin all that the first save need not do then. All ranks that save call it together."""
        self.state.scalars(self.state.batches.resumed_step)
        tiers, (state, _) = self.tiers(), self.state.tensors_to_save()
        kept = [found for found in tiers.memory() if found.step <= self.staged_step]
        self._saver = self._new_saver(tiers.identity)
        self._saver.prepare(state, kept[0] if kept else None)

    def wait_prepared(self) -> None:
        """Wait until `prepare` is through."""
        if self._saver:
            self._saver.wait_prepared()

    def _new_saver(self, run: str) -> Saver:
        first = self.journal.ranks[0] - self.world.rank  # of the ranks that save together
        threads = max(1, min(8, cpu_cores() // (2 * self.world.ranks))) if self.world.cuda else 1
        return Saver(
            self.folder.scratch / f"fast-{first}",
            stores_of_run(self.folder, self.run),
            self.world,
            self.journal,
            self.pulse,
            self.run.guard.keep,
            run,
            spill=spill_folder(self.folder),
            group=self.world.save_group,
            on_sealed=self._send if self._peers else None,
            threads=threads,
            slots=1 if self.run.guard.fast == "never" else SLOTS,
        )

    def _send(self, slot: Path, names: list[str], step: int) -> None:
        """Send a copy of a sealed slot to the next host, unless the slot had to go to the disk."""
        if self._peers and slot.is_relative_to(self.folder.scratch):
            self._peers.send(self.folder.scratch, slot, names)

    def requests(self, step: int) -> dict[str, bool]:
        """Return what the rank that leads asks for after `step`: by interval or by `control/`."""
        requests = self.folder.control_requests() | {"stage": False} | self.own_requests()
        if self._saver is None:  # this replica has not saved yet: its first save makes it
            requests["save"] |= self._due(step, None)
            requests["stage"] = self.run.guard.fast != "never"
            return requests
        by_file = self._file_asks(requests["save"], self._saver)
        requests["save"] = by_file or self._due(step, self._saver)
        requests["stage"] = self._fast_due(step, self._saver)
        return requests

    def _file_asks(self, asked: bool, saver: Saver) -> bool:
        """Return whether a file asks for a save: once, and the file is removed when it is made."""
        if saver.writing:
            return False
        if asked and self._by_request:
            self.folder.acknowledge("save")
        self._by_request = asked and not self._by_request
        return self._by_request

    def _due(self, step: int, saver: Saver | None) -> bool:
        every, spent = self.run.guard.checkpoint, saver.timing if saver else SaveTiming()
        steps, seconds = _limits(every)
        if saver and saver.writing and steps is None:
            return False
        cost_s = policy.cost_s(spent.stall_s, spent.write_s)
        last = policy.CheckpointState(
            step, now(), self.saved_step, self.saved_s, cost_s, self.run.cluster.nodes
        )
        return policy.due(last, steps, seconds)

    def due_by_number(self, step: int) -> bool:
        """Return whether the number of a step alone makes a durable save due after it."""
        steps, _ = _limits(self.run.guard.checkpoint)
        return steps is not None and step % steps == 0 and step != self.saved_step

    def _fast_due(self, step: int, saver: Saver) -> bool:
        every, spent = self.run.guard.fast, saver.timing
        if every == "never" or not saver.fast_tier:
            return False
        step_s = median(self._steps_s) if self._steps_s else 0.0
        last, last_s = self.staged_step, self.staged_s
        state = policy.FastSaveState(step, now(), last, last_s, step_s, spent.stall_s, spent.seal_s)
        return policy.fast_due(state, *_limits(every))

    def own_requests(self) -> dict[str, bool]:
        """Return what any rank may ask for, not rank 0 alone."""
        return {"busy": self._saver is not None and self._saver.busy}

    def save_if_due(self, step: int, vote: Vote, last: bool) -> None:
        """Begin the save that the vote asked for. The end of a run waits for its save."""
        self._steps_s.append(now() - self._stepped_s)
        if not self.world.saves:
            self.drop()
        elif vote.requests["stop"] or last:
            self._catch_up(vote)
            self._save_for_good(step)
        elif vote.requests["save"]:
            self._catch_up(vote)
            self._save(step, durable=True)
        elif vote.requests["stage"] and not vote.requests["busy"]:
            self._save(step, durable=False)
        self._stepped_s = now()

    def _catch_up(self, vote: Vote) -> None:
        """Wait until the last save is whole on every rank: the next one cannot be left out."""
        if vote.requests["busy"]:
            if self._saver:
                self._saver.wait_sealed()
            self.world.gather(None)

    def wait_until_copied(self, clock: StepClock) -> None:
        """Wait before weights change: what a save is still copying of them must be through."""
        with clock.part("held"):
            if self._saver:
                self._saver.before_update()

    def finish(self) -> None:
        """Wait until everything is safe, also a state that was only in memory at the start."""
        if self.world.saves and self.staged_step > self.saved_step:
            self._save_for_good(self.staged_step)
        self.drop()
        if self.world.lead:
            shutil.rmtree(spill_folder(self.folder), ignore_errors=True)

    def forget(self, after_step: int) -> None:
        """Delete saves of steps that were taken back. All ranks that save call it together."""
        if self._saver:
            self._saver.discard_after(after_step)
        if self._leads:
            peers.discard_after(self.folder.scratch, after_step)
        tiers = self.tiers()
        self._record_taken_back(after_step, tiers)
        for problem in tiers.discard_after(after_step):
            self.journal.write(DiscardFailed(error=problem))

    def _record_taken_back(self, after_step: int, tiers: CheckpointSearch) -> None:
        """Record what stays saved, before the rest is deleted: no later start may miss the rest."""
        if self.world.rank:
            return
        left: list[int] | None = None  # unknown
        with contextlib.suppress(OSError):
            left = [step for step in tiers.durable_steps() if step <= after_step]
        self.journal.write(StepsTakenBack(after_step=after_step, left=left))

    def drop(self) -> None:
        """Stop saving: another replica does from now on."""
        if self._saver:
            self._saver.close()
        self._saver = None

    def _save(self, step: int, durable: bool) -> None:
        if step == self.saved_step or (step == self.staged_step and not durable):
            return
        start = now()
        self.pulse.at("keep", step)
        self._begin(step, durable)
        self._record(start, step)

    def _record(self, start: float, step: int) -> None:
        end = now()
        self.pulse.at("saved", step)
        # Not synced: the disk is busy with the save itself, and the loop would wait for that.
        self.journal.write_span(CheckpointSpan(step=step), start, end, synced=False)

    def _begin(self, step: int, durable: bool) -> Saver:
        if self._saver is None:  # another replica saved until now
            self.pulse.at("stage", step)
            self.prepare()
        assert self._saver is not None, "prepared above"
        state, local_state = self.state.tensors_to_save()
        scalars, best = self.state.scalars(step), self.state.best_kept()
        self._saver.stage(step, state, local_state, scalars, durable, best)
        self.staged_step, self.staged_s = step, now()
        if durable:
            self.saved_step, self.saved_s = step, now()
        return self._saver

    def _save_for_good(self, step: int) -> None:
        """Make the last save of a run, or of this start: it is waited for and has to succeed."""
        start = now()
        self.pulse.at("save", step)
        for tried in range(TRIES):
            saver = self._begin(step, durable=True)
            saver.wait()
            if not saver.failed or (tried and saver.durable_step == step):
                break  # saved, if perhaps not in every place
        if self.world.lead:
            self.folder.acknowledge("save")
        self._record(start, step)
        if saver.durable_step != step:
            raise RunFailed(
                f"the state of step {step} could not be saved: {saver.failed}. It is still in "
                "memory: make room or restore access, and give the same command to go on from it"
            )


def _limits(every: Every | str) -> tuple[int | None, float | None]:
    return (every.steps, every.seconds) if isinstance(every, Every) else (None, None)
