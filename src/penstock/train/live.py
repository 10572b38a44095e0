"""Recovery in live mode: replicas enter a generation, heal or are healed, and go on at one step.

A lost step is discarded. Then the replicas that are there tell each other how far they came. A
replica that is behind, or new, gets the state of one that is not, from memory to memory: weights,
moments and buffers as tensors, the rest as JSON. So a healed replica equals its donor in every bit.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from penstock.ledger.journal.events import LostStepSpan, RankRegrouped, RegroupSpan
from penstock.meter.clock import now
from penstock.policy.quorum import HealingPlan, ReplicaStanding, plan_healing
from penstock.train.parallel.parts import local_tensor
from penstock.train.recovery import Recovery
from penstock.train.replicas.live_world import LiveWorld, PeerLost, RunFinished
from penstock.train.replicas.reduce import LiveReplicaReducer, Vote
from penstock.train.replicas.rewind import Rewind
from penstock.train.world.world import STORAGE_S


@dataclass
class LiveRecovery(Recovery):
    """Recovery of a run whose replicas go on without a lost one and heal it when it is back."""

    def __post_init__(self) -> None:
        assert isinstance(self.rank.world, LiveWorld)
        self.world = self.rank.world

    def begin(self, steps: int) -> None:
        """Join the run: at its start with all others, or later after a restart of this replica."""
        self.world.gather(None)  # all ranks of this replica are ready
        group = self.world.replica_group
        if self.world.life and self.world.rank == 0:
            group.membership.announce_ready(group.replica, self.world.life)
        self.regroup()
        if self.world.saves and self.progress.step < steps:
            self.saver.prepare()
            self.saver.wait_prepared()

    def replica_waits(self) -> bool:
        """Return whether a replica waits to join."""
        return self.world.replica_group.newer()

    def admit_replica(self) -> None:
        """End this generation on all its members after the same step: the next has one more."""
        raise PeerLost("a replica comes back")

    def rewind(self, rewind: Rewind) -> None:
        """Agree with the replicas that are left where to continue."""
        noticed, journal = now(), self.rank.journal
        # Work since the last record is lost.
        journal.write_span(LostStepSpan(), min(journal.busy_until, noticed), noticed)
        if isinstance(rewind, PeerLost):
            self.state.engine.stepper.discard()
            self.regroup()
        else:
            try:
                self.level()
            except PeerLost:
                self.regroup()
        journal.write_span(RegroupSpan(why=rewind.why), noticed, now())

    def regroup(self) -> None:
        """Enter the next generation, where all replicas continue after one step."""
        while True:
            self.rank.pulse.at("regroup", self.progress.step)
            try:
                self.world.enter(self.progress.step)
                return self.level()
            except PeerLost:
                continue
            except RunFinished as over:
                if over.step != self.progress.step:
                    raise RuntimeError(f"the other replicas ended at step {over.step}") from None
                self.progress.pending, self.progress.finished = None, True
                return None

    def level(self) -> None:
        """Bring all members to one step and one state. Raises `PeerLost` if one is lost."""
        start, at, group = now(), self.progress, self.world.replica_group
        replicas = self.state.engine.replicas
        assert isinstance(replicas, LiveReplicaReducer)
        replicas.drop_residuals()
        standings, owing = self._compare()
        plan = plan_healing(standings)
        if plan.load and plan.donor == group.replica:
            self.load_newest()
        self._exchange(plan, owing)
        self.rank.journal.write(
            RankRegrouped(
                generation=group.generation.number,
                members=list(group.members),
                step=at.step,
                donor=plan.donor,
                healed=list(plan.healed),
                seconds=now() - start,
            )
        )

    def rollback(self, before_step: int) -> int | None:
        """Load, in one replica, the checkpoint from before a step; `level` heals the others."""
        at = self.progress
        at.has_state = not self.world.saves  # what it loads is of a step that nobody knows of yet
        found = super().rollback(before_step) if self.world.saves else None
        loaded = torch.zeros(1, dtype=torch.int64, device=self.world.device)
        if self.world.lead and found is not None:
            loaded += found + 1
        step = int(self.world.sum_(loaded).item()) - 1
        if step < 0:  # nothing was loaded
            at.has_state = True
            return None
        at.step, at.pending, at.has_state = step, None, self.world.saves
        return step

    def _compare(self) -> tuple[dict[int, ReplicaStanding], int | None]:
        """Return how far each member came, and the first of the furthest that still has something
        to do after its step."""
        at = self.progress
        said = torch.tensor([at.step, at.has_state, at.pending is not None])
        every = self.world.replica_group.all_gather(said)
        self.world.agree()
        rows = dict(zip(self.world.replica_group.members, every.tolist(), strict=True))
        standings = {n: ReplicaStanding(step, bool(whole)) for n, (step, whole, _) in rows.items()}
        furthest = max((s.step for s in standings.values() if s.whole), default=-1)
        owing = (n for n, s in standings.items() if s.whole and s.step == furthest and rows[n][2])
        return standings, next(owing, None)

    def _exchange(self, plan: HealingPlan, owing: int | None) -> None:
        """Send the donor's state to those who need it, and what is still to be done to all."""
        group, at = self.world.replica_group, self.progress
        healed = group.replica in plan.healed
        at.has_state = at.has_state and not healed  # not before it is through
        source = plan.donor if owing is None else owing
        about = self._broadcast_json(self._about() if group.replica == source else {}, source)
        if plan.healed:
            self.rank.pulse.at("heal", about["step"])
            for tensor in self._tensors():
                group.broadcast_(tensor, plan.donor)
                self.rank.pulse.beat()
        self.world.agree()
        if healed:
            self.state.from_json(about)
            self.saver.resumed(about["saved_step"])
        at.step, at.has_state = about["step"], True
        at.pending = Vote(**about["pending"]) if about["pending"] else None

    def _tensors(self) -> list[torch.Tensor]:
        return [
            local_tensor(tensor) for _, tensor in sorted(self.state.tensors(copies=True).items())
        ]

    def _about(self) -> dict[str, Any]:
        """Return what a replica needs besides tensors to continue from this one's state."""
        pending = self.progress.pending
        return {
            "step": self.progress.step,
            "pending": asdict(pending) if pending else None,
            "saved_step": self.saver.saved_step,
            **self.state.to_json(),
        }

    def _broadcast_json(self, about: dict[str, Any], source: int) -> dict[str, Any]:
        """Return what one replica says, on all of them. It may have had to load it first."""
        group = self.world.replica_group
        text = json.dumps(about).encode()
        size = torch.tensor([len(text)])
        group.broadcast_(size, source, STORAGE_S)
        self.world.agree()
        content = torch.zeros(int(size), dtype=torch.uint8)
        if group.replica == source:
            content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        group.broadcast_(content, source)
        self.world.agree()
        return json.loads(content.numpy().tobytes())
