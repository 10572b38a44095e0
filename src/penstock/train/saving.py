"""When a run saves, and what: fast copies in memory every few steps, durable ones on the interval.

The rank that leads asks, and the vote tells all; `guard/save/saver.py` does it.
"""

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from penstock.errors import RunFailed
from penstock.guard.detect.pulse import Pulse
from penstock.guard.save.saver import Saver, SaveTiming
from penstock.guard.tiers import peers
from penstock.guard.tiers.search import CheckpointSearch, search_of_run, spill_folder, stores_of_run
from penstock.guard.tiers.slots import SLOTS
from penstock.guard.tiers.stores import NONE_PROTECTED, ProtectedSteps
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import now
from penstock.meter.devices import cpu_cores
from penstock.policy import checkpoint as policy
from penstock.run.folder import RunFolder
from penstock.run.schema.quantity import Every
from penstock.run.schema.run import Run
from penstock.train.replicas.reduce import Vote
from penstock.train.world.world import World

TRIES = 3  # of the last save of a run: nothing comes after it that would try again
STEPS = 15  # whose median is how long a step takes


@dataclass
class Saving:
    folder: RunFolder
    run: Run
    world: World
    journal: Journal
    pulse: Pulse
    state: Callable[[], tuple[dict[str, Tensor], dict[str, Tensor]]]  # reshardable, replica-local
    scalars: Callable[[int], dict[str, Any]]  # of a step
    best: Callable[[], ProtectedSteps] = lambda: (
        NONE_PROTECTED
    )  # checkpoints that rotation leaves alone
    saved_step: int = 0  # of the last durable save that was begun
    saved_s: float = field(default_factory=now)
    staged_step: int = 0  # of the last save of any kind
    staged_s: float = field(default_factory=now)

    def __post_init__(self) -> None:
        self._saver: Saver | None = None
        self._granting = False  # a file in `control/` asked for the save that is under way
        self._steps_s: deque[float] = deque(maxlen=STEPS)
        self._stepped_s = now()
        self._peers = peers.from_environment()

    def tiers(self) -> CheckpointSearch:
        """Everywhere that a state of this run may be."""
        return search_of_run(self.folder, self.run, self.world, self._leads)

    @property
    def _leads(self) -> bool:
        """Whether this rank works for its host."""
        return os.environ.get("PENSTOCK_HOST_RANK", os.environ.get("LOCAL_RANK", "0")) == "0"

    def bring(self) -> None:
        """What other hosts hold in memory and this one lacks. All ranks together."""
        if self._peers and self._leads:
            try:
                self._peers.fetch(self.folder.scratch)
            except OSError as error:  # a durable checkpoint is there for that
                self.journal.event("fetch_failed", error=str(error))
        if self._peers:
            self.world.gather(None)

    def resumed(self, step: int, durable: bool = True) -> None:
        """The run goes on from a save of `step`."""
        self.saved_step, self.staged_step = step if durable else 0, step
        self.saved_s = self.staged_s = self._stepped_s = now()

    def prepare(self) -> None:
        """Begins all that the first save need not do then. All ranks that save, together."""
        tiers, (state, _) = self.tiers(), self.state()
        kept = [found for found in tiers.memory() if found.step <= self.staged_step]
        self._saver = self._made(tiers.run)
        self._saver.prepare(state, kept[0] if kept else None)

    def prepared(self) -> None:
        if self._saver:
            self._saver.prepared()

    def _made(self, run: str) -> Saver:
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
        """A copy of a sealed slot for the next host; not of one that had to go to the disk."""
        if self._peers and slot.is_relative_to(self.folder.scratch):
            self._peers.send(self.folder.scratch, slot, names)

    def wishes(self, step: int) -> dict[str, bool]:
        """What the rank that leads asks for after `step`."""
        wishes = self.folder.wishes() | {"stage": False}
        if self._saver is None:  # of a replica that has not saved yet: the first time makes it
            wishes["save"] |= self._due(step, None)
            wishes["stage"] = self.run.guard.fast != "never"
            return wishes
        by_file = self._by_file(wishes["save"], self._saver)
        wishes["save"] = by_file or self._due(step, self._saver)
        wishes["stage"] = self._fast_due(step, self._saver)
        return wishes

    def _by_file(self, asked: bool, saver: Saver) -> bool:
        """Somebody asks for a save: once, and the file goes when it is made."""
        if saver.writing:
            return False
        if asked and self._granting:
            self.folder.granted("save")
        self._granting = asked and not self._granting
        return self._granting

    def _due(self, step: int, saver: Saver | None) -> bool:
        every, spent = self.run.guard.checkpoint, saver.timing if saver else SaveTiming()
        steps, seconds = _limits(every)
        if saver and saver.writing and steps is None:
            return False
        cost_s = policy.cost_s(spent.stall_s, spent.write_s)
        last = policy.State(step, now(), self.saved_step, self.saved_s, cost_s)
        return policy.due(last, steps, seconds)

    def _fast_due(self, step: int, saver: Saver) -> bool:
        every, spent = self.run.guard.fast, saver.timing
        if every == "never" or not saver.fast_tier:
            return False
        step_s = median(self._steps_s) if self._steps_s else 0.0
        last, last_s = self.staged_step, self.staged_s
        state = policy.Fast(step, now(), last, last_s, step_s, spent.stall_s, spent.seal_s)
        return policy.fast_due(state, *_limits(every))

    def own_wishes(self) -> dict[str, bool]:
        return {"busy": self._saver is not None and self._saver.busy}

    def after(self, step: int, vote: Vote, last: bool) -> None:
        """Begins what the vote asked for, and the end of the run."""
        self._steps_s.append(now() - self._stepped_s)
        if not self.world.saves:
            self.drop()
        elif vote.wishes["stop"] or last:
            self._catch_up(vote)
            self._save_for_good(step)
        elif vote.wishes["save"]:
            self._catch_up(vote)
            self._save(step, durable=True)
        elif vote.wishes["stage"] and not vote.wishes["busy"]:
            self._save(step, durable=False)
        self._stepped_s = now()

    def _catch_up(self, vote: Vote) -> None:
        """A save that cannot wait: nobody begins it before the last one is whole on every rank."""
        if vote.wishes["busy"]:
            if self._saver:
                self._saver.wait_sealed()
            self.world.gather(None)

    def before_update(self) -> None:
        if self._saver:
            self._saver.before_update()

    def settle(self) -> None:
        """Everything is safe: also a state that the run began with in memory, and ends with."""
        if self.world.saves and self.staged_step > self.saved_step:
            self._save_for_good(self.staged_step)
        self.drop()
        if self.world.lead:
            shutil.rmtree(spill_folder(self.folder), ignore_errors=True)

    def forget(self, after_step: int) -> None:
        """Later steps were taken back. All ranks that save, together."""
        if self._saver:
            self._saver.forget(after_step)
        if self._leads:
            peers.discard_after(self.folder.scratch, after_step)
        tiers = self.tiers()
        self._record_taken_back(after_step, tiers)
        for problem in tiers.forget(after_step):
            self.journal.event("forget_failed", error=problem)

    def _record_taken_back(self, after_step: int, tiers: CheckpointSearch) -> None:
        """Record what stays saved, before the rest is deleted: no later start may miss the rest."""
        if self.world.rank:
            return
        left: list[int] | None = None  # unknown
        with contextlib.suppress(OSError):
            left = [step for step in tiers.durable_steps() if step <= after_step]
        self.journal.event("taken_back", after_step=after_step, left=left)

    def drop(self) -> None:
        """Somebody else saves from now on."""
        if self._saver:
            self._saver.close()
        self._saver = None

    def _save(self, step: int, durable: bool) -> None:
        if step == self.saved_step or (step == self.staged_step and not durable):
            return
        start = now()
        self.pulse.at("keep", step)
        self._begin(step, durable)
        self._told(start, step)

    def _told(self, start: float, step: int) -> None:
        end = now()
        self.pulse.at("saved", step)
        # Not synced: the disk is busy with the save itself, and the loop would wait for that.
        self.journal.span("checkpoint", start, end, synced=False, step=step)

    def _begin(self, step: int, durable: bool) -> Saver:
        if self._saver is None:  # another replica saved until now
            self.pulse.at("stage", step)
            self.prepare()
        assert self._saver is not None, "prepared above"
        state, local_state = self.state()
        self._saver.stage(step, state, local_state, self.scalars(step), durable, self.best())
        self.staged_step, self.staged_s = step, now()
        if durable:
            self.saved_step, self.saved_s = step, now()
        return self._saver

    def _save_for_good(self, step: int) -> None:
        """The last of a run, or of this start: it is waited for, and has to succeed."""
        start = now()
        self.pulse.at("save", step)
        for tried in range(TRIES):
            saver = self._begin(step, durable=True)
            saver.wait()
            if not saver.failed or (tried and saver.durable_step == step):
                break  # saved, if perhaps not in every place
        if self.world.lead:
            self.folder.granted("save")
        self._told(start, step)
        if saver.durable_step != step:
            raise RunFailed(
                f"the state of step {step} could not be saved: {saver.failed}. It is still in "
                "memory: make room or restore access, and give the same command to go on from it"
            )


def _limits(every: Every | str) -> tuple[int | None, float | None]:
    return (every.steps, every.seconds) if isinstance(every, Every) else (None, None)
