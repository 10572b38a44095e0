"""Live mode in the loop of a rank: come to a generation, heal or be healed, go on at one step.

What a lost step left behind is taken back; then the replicas that are there tell each other how far
they came. Who is behind, or new, gets the state of one that is not, from memory to memory: weights,
moments and buffers over the circle, the rest as a few lines of text. So a replica that is healed is
equal to its donor in every bit.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from penstock.guard.detect.pulse import Pulse
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import now
from penstock.policy.quorum import Healing, Standing, healing
from penstock.train.engine import Engine
from penstock.train.keeper import Keeper
from penstock.train.parallel.parts import local
from penstock.train.progress import Progress
from penstock.train.replicas.live_reduce import LiveReplicas
from penstock.train.replicas.live_world import LiveWorld, Over, PeerLost
from penstock.train.replicas.reduce import Vote
from penstock.train.replicas.rewind import Again
from penstock.train.state import state
from penstock.train.world.world import STORAGE_S


@dataclass
class Live:
    world: LiveWorld
    engine: Engine
    keeper: Keeper
    journal: Journal
    pulse: Pulse
    progress: Progress
    first_due: Callable[[int], Vote | None] = lambda step: None

    def come(self, first_due: Callable[[int], Vote | None]) -> None:
        """Into the run: at its start with all others, or later as one that was started again.

        `first_due` says what is to be done before the first step of a run that begins at a step.
        """
        self.first_due = first_due
        self.world.gather(None)  # all ranks of this replica are ready
        if self.world.life and self.world.rank == 0:
            self.world.circle.board.announce(self.world.circle.replica, self.world.life)
        self.regroup()

    def comes(self) -> bool:
        """Whether a replica waits to be let in."""
        return self.world.circle.newer()

    def let_in(self) -> None:
        """All of a generation end it after the same step, for the next has one more."""
        raise PeerLost("a replica comes back")

    def go_back(self, again: Again, take_back: Callable[[], None]) -> None:
        """After the loss of a peer, or of what the guard took back."""
        noticed = now()
        # What was done since the last record comes to nothing.
        self.journal.span("lost", min(self.journal.busy_until, noticed), noticed)
        if isinstance(again, PeerLost):
            take_back()
            self.regroup()
        else:
            try:
                self.level()
            except PeerLost:
                self.regroup()
        self.journal.span("regroup", noticed, now(), why=again.why)

    def regroup(self) -> None:
        """Into the next generation, where all go on after one step."""
        while True:
            self.pulse.at("regroup", self.progress.step)
            try:
                self.world.enter(self.progress.step)
                return self.level()
            except PeerLost:
                continue
            except Over as over:
                if over.step != self.progress.step:
                    raise RuntimeError(f"the other replicas ended at step {over.step}") from None
                self.progress.due, self.progress.over = None, True
                return None

    def level(self) -> None:
        """All members to one step and one state; raises `PeerLost` when one is lost meanwhile."""
        start, at, circle = now(), self.progress, self.world.circle
        replicas = self.engine.replicas
        assert isinstance(replicas, LiveReplicas)
        replicas.regrouped()
        standings, owing = self._compare()
        plan = healing(standings)
        if plan.load and plan.donor == circle.replica:
            at.step, at.whole = self.keeper.resume(), True
            at.due = self.first_due(at.step)
        self._exchange(plan, owing)
        self.journal.event(
            "regrouped",
            generation=circle.generation.number,
            members=list(circle.members),
            step=at.step,
            donor=plan.donor,
            healed=list(plan.healed),
            seconds=now() - start,
        )

    def rollback(self, before_step: int) -> int | None:
        """One replica loads the checkpoint from before a step; `level` heals the others with it."""
        at = self.progress
        at.whole = not self.world.saves  # what it loads is of a step that nobody knows of yet
        found = self.keeper.rollback(before_step) if self.world.saves else None
        told = torch.zeros(1, dtype=torch.int64, device=self.world.device)
        if self.world.lead and found is not None:
            told += found + 1
        step = int(self.world.sum_(told).item()) - 1
        if step < 0:  # nothing was loaded
            at.whole = True
            return None
        at.step, at.due, at.whole = step, None, self.world.saves
        return step

    def _compare(self) -> tuple[dict[int, Standing], int | None]:
        """How far each member came, and the first of the furthest that has still to do something
        after its step."""
        at = self.progress
        said = torch.tensor([at.step, at.whole, at.due is not None])
        every = self.world.circle.gather(said)
        self.world.agree()
        rows = dict(zip(self.world.circle.members, every.tolist(), strict=True))
        standings = {n: Standing(step, bool(whole)) for n, (step, whole, _) in rows.items()}
        furthest = max((s.step for s in standings.values() if s.whole), default=-1)
        owing = (n for n, s in standings.items() if s.whole and s.step == furthest and rows[n][2])
        return standings, next(owing, None)

    def _exchange(self, plan: Healing, owing: int | None) -> None:
        """The donor's state to those who need it, and what is still to be done to all."""
        circle, at = self.world.circle, self.progress
        healed = circle.replica in plan.healed
        at.whole = at.whole and not healed  # not before it is through
        source = plan.donor if owing is None else owing
        about = self._told(self._about() if circle.replica == source else {}, source)
        if plan.healed:
            self.pulse.at("heal", about["step"])
            for tensor in self._tensors():
                circle.give_(tensor, plan.donor)
                self.pulse.beat()
        self.world.agree()
        if healed:
            self._adopt(about)
        at.step, at.whole = about["step"], True
        at.due = Vote(**about["due"]) if about["due"] else None

    def _tensors(self) -> list[torch.Tensor]:
        found = state(self.engine.parts, self.engine.optimizer, copies=True)
        return [local(tensor) for _, tensor in sorted(found.items())]

    def _about(self) -> dict[str, Any]:
        due = self.progress.due
        return {
            "step": self.progress.step,
            "due": asdict(due) if due else None,
            "updates": self.engine.optimizer.updates,
            **self.keeper.place(),
        }

    def _adopt(self, about: dict[str, Any]) -> None:
        self.engine.optimizer.updates = about["updates"]
        self.engine.optimizer.lower()
        self.keeper.take_place(about)

    def _told(self, about: dict[str, Any], source: int) -> dict[str, Any]:
        """What one replica says, on all. It may have had to load it first."""
        circle = self.world.circle
        text = json.dumps(about).encode()
        size = torch.tensor([len(text)])
        circle.give_(size, source, STORAGE_S)
        self.world.agree()
        content = torch.zeros(int(size), dtype=torch.uint8)
        if circle.replica == source:
            content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        circle.give_(content, source)
        self.world.agree()
        return json.loads(content.numpy().tobytes())
