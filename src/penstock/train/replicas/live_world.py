"""The world of a rank in live mode: a torch world for each replica, and a group between them.

Inside a replica everything is as in a run of one replica; when one of its ranks dies the whole
replica is lost. Between replicas nothing is permanent. A rank that cannot reach a peer must not act
on that alone, since its neighbours may have reached theirs: all ranks of a replica learn it in the
next `sum_`, and leave the generation together by `PeerLost`.
"""

import os
import time
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.plan.job.layout import Layout
from penstock.train.replicas.group import POLL_S, ReplicaGroup
from penstock.train.replicas.membership import ReplicaGeneration, ReplicaMembership
from penstock.train.replicas.rewind import Rewind
from penstock.train.world.world import DIMENSIONS, STORAGE_S, World, build_world, supervisor_store


class PeerLost(Rewind):
    """The end of a generation: a replica is lost, or another has joined."""

    def __init__(self, why: str = "a replica was lost") -> None:
        super().__init__(-1, why)


class RunFinished(Rewind):
    """The end of the run after `step`, which the other replicas decided."""

    def __init__(self, step: int) -> None:
        super().__init__(step, "the run is over")


@dataclass(frozen=True)
class LiveWorld(World):
    """A world whose `rank`, `ranks`, `mesh` and collectives belong to this replica alone."""

    replica_group: ReplicaGroup = field(kw_only=True)
    life: int = field(default=0, kw_only=True)  # how often the replica was started again

    def size(self, dimension: str) -> int:
        return (
            len(self.replica_group.members) if dimension == "replicate" else super().size(dimension)
        )

    def index(self, dimension: str) -> int:
        return self.replica_group.index if dimension == "replicate" else super().index(dimension)

    @property
    def lead(self) -> bool:
        return self.rank == 0 and self.saves

    @property
    def saves(self) -> bool:
        """Return whether this replica saves: the lowest that lives does."""
        return self.replica_group.index == 0

    @property
    def first_copy(self) -> bool:
        return all(self.index(d) == 0 for d in DIMENSIONS if d not in ("pipeline", "replicate"))

    @property
    def same_data_ranks(self) -> int:
        return self.ranks // super().size("shard")

    def sum_(self, values: Tensor) -> Tensor:
        """Sum over all ranks of all members, in place; all ranks of a replica get it, or none."""
        flat = values.reshape(-1)
        if self.ranks > 1:
            # One exchange for both: the sum inside the replica, and whether all of it got here.
            flat = torch.cat((flat, torch.full_like(flat[:1], self.replica_group.broken)))
            dist.all_reduce(flat)
            if flat[-1].item():
                self.replica_group.leave()
            flat = flat[:-1]
        self.replica_group.all_reduce_(flat)
        self.agree()
        values.copy_(flat.view_as(values))
        return values

    def agree(self) -> None:
        """Raise `PeerLost` on all ranks of the replica if the group of any of them is broken."""
        broken = self.replica_group.broken
        if self.ranks > 1:
            told = torch.tensor([float(broken)], device=self.device)
            dist.all_reduce(told)
            broken = told.item() > 0
        if broken:
            self.replica_group.leave()
            raise PeerLost

    def sum_replicas_(self, values: Tensor) -> Tensor:
        """Sum over the replicas, in place. The result of this and the two below is valid only after
        the next `sum_` or `agree`.
        """
        self.replica_group.all_reduce_(values)
        return values

    def all_to_all_replicas(self, values: Tensor) -> Tensor:
        return self.replica_group.all_to_all(values)

    def gather_replicas(self, values: Tensor) -> Tensor:
        return self.replica_group.all_gather(values)

    def finish_together(self, step: int) -> None:
        self.sum_(torch.zeros(1))
        if self.rank == 0:
            self.replica_group.membership.mark_finished(step)

    def enter(self, step: int) -> ReplicaGeneration:
        """Enter the next generation: all ranks of this replica meet those of the others."""
        membership = self.replica_group.membership
        while True:
            if self.rank == 0 and self.replica_group.generation.number >= 0:
                membership.report_broken(self.replica_group.generation.number, step)
            over, number, members = self.broadcast(self._next() if self.rank == 0 else None)
            if over is not None:
                raise RunFinished(over)
            found = ReplicaGeneration(number, members)
            met = self.replica_group.enter(found, len(found.members) * self.ranks)
            if all(self.gather(met)):
                return found
            self.replica_group.leave()

    def _next(self) -> tuple[int | None, int, tuple[int, ...]]:
        """Wait for a later generation with this replica in it, or for the end of the run.

        Returns the step after which the run ended, or None; then number and members of the
        generation.
        """
        membership, deadline = self.replica_group.membership, time.monotonic() + STORAGE_S
        while time.monotonic() < deadline:
            over = membership.finished_step()
            if over is not None:
                return over, -1, ()
            found = membership.latest()
            if (
                found.number > self.replica_group.generation.number
                and self.replica_group.replica in found.members
            ):
                return None, found.number, found.members
            time.sleep(POLL_S)
        raise RuntimeError(
            f"no generation after {self.replica_group.generation} within {STORAGE_S:g} s"
        )


def join_live(layout: Layout, kind: str, timeout_s: float, backend: str | None = None) -> LiveWorld:
    """Meet the ranks of this replica. The other replicas are met later, in `LiveWorld.enter`."""
    inner = replace(layout, replicate=1)
    replica, place = divmod(int(os.environ["RANK"]), inner.ranks)
    attempt, life = os.environ["PENSTOCK_ATTEMPT"], int(os.environ.get("PENSTOCK_LIFE", "0"))
    store = supervisor_store(timeout_s)
    prefix = f"{attempt}/replica-{replica}/{life}"
    world = build_world(store, prefix, place, inner, kind, timeout_s, backend)
    group = ReplicaGroup(
        ReplicaMembership(store, attempt), replica, layout.replicate, place, timeout_s
    )
    return LiveWorld(**vars(world), replica_group=group, life=life)
