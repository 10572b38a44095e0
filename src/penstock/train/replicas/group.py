"""A process group between replicas that can be built again: ranks that hold the same part of the
model.

torch's own groups are permanent: one dead member and the process has to go. So this group is built
directly on the store, anew for every generation. After an operation has failed the group is
`broken` and all further ones do nothing: the ranks of a replica must first learn together, in their
next agreement, that they have to leave it (`live_world.py`).

Gloo notices a dead peer at once by its closed connection, and a rank leaves by closing its own,
which its peers notice. It takes tensors of a GPU too, by way of the host.
"""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
)

from penstock.train.replicas.membership import ReplicaGeneration, ReplicaMembership

CONNECT_S = 10.0  # to connect to peers that are known to be there
POLL_S = 0.01


class ReplicaGroup:
    """The ranks of all live replicas that hold the same part of the model."""

    def __init__(
        self,
        membership: ReplicaMembership,
        replica: int,
        replicas: int,
        place: int,
        timeout_s: float,
    ) -> None:
        self.membership, self.replica, self.place = membership, replica, place
        self.timeout = timedelta(seconds=timeout_s)
        # Before the first generation, what is built is built for all of them.
        self.generation = ReplicaGeneration(-1, tuple(range(replicas)))
        self.broken = True
        self._group: dist.ProcessGroupGloo | None = None

    @property
    def members(self) -> tuple[int, ...]:
        return self.generation.members

    @property
    def index(self) -> int:
        """Return this replica's index among the members."""
        return self.members.index(self.replica)

    def newer(self) -> bool:
        """Return whether a newer generation was published."""
        return self.membership.latest().number > self.generation.number

    def enter(self, generation: ReplicaGeneration, ranks: int) -> bool:
        """Meet the others of a generation, `ranks` in all. Return False if it ended before it
        began.
        """
        self.leave()
        self.generation = generation
        number = generation.number
        self.membership.register_arrival(number, ranks)
        while not self.membership.is_complete(number):
            if self.newer() or self.membership.finished_step() is not None:
                return False
            time.sleep(POLL_S)
        self.broken = False
        if len(generation.members) > 1:
            store = dist.PrefixStore(f"group/{number}/{self.place}", self.membership.store)
            connect = timedelta(seconds=CONNECT_S)
            try:
                self._group = dist.ProcessGroupGloo(store, self.index, len(self.members), connect)
            except RuntimeError:  # one of them died since it came
                self.broken = True
        return not self.broken

    def leave(self) -> None:
        """Close the connections, so that no peer waits for this rank any longer."""
        self.broken, self._group = True, None

    def all_reduce_(self, values: Tensor) -> None:
        """Sum over the members, in place."""
        options = AllreduceOptions()
        options.timeout = self.timeout
        self._try(lambda group: group.allreduce([values], options))

    def broadcast_(self, values: Tensor, donor: int, timeout_s: float | None = None) -> None:
        """Copy the values of member `donor` to all members, in place."""
        options = BroadcastOptions()
        options.rootRank = self.members.index(donor)
        options.timeout = timedelta(seconds=timeout_s) if timeout_s else self.timeout
        whole = values.contiguous()  # Gloo sends memory as it lies there
        self._try(lambda group: group.broadcast([whole], options))
        if whole is not values:
            values.copy_(whole)

    def all_gather(self, values: Tensor) -> Tensor:
        """Return the values of all members, in their order."""
        every = torch.stack([values] * len(self.members))
        options = AllgatherOptions()
        options.timeout = self.timeout
        self._try(lambda group: group.allgather([list(every.unbind())], [values], options))
        return every

    def all_to_all(self, values: Tensor) -> Tensor:
        """Send part i of the values to member i; return what they sent here, in order."""
        got = values.clone()
        options = AllToAllOptions()
        options.timeout = self.timeout
        self._try(lambda group: group.alltoall_base(got, values, [], [], options))
        return got

    def _try(self, operation: Callable[[dist.ProcessGroupGloo], dist.Work]) -> None:
        if self.broken or self._group is None:
            return  # alone, or about to find out
        try:
            operation(self._group).wait()
        except RuntimeError:
            self.leave()
