"""How the encoded difference of a round gets from every replica to every other.

Ranks that hold the same part of the model exchange among themselves. A message is one tensor of
bytes whose length all of them know. Every replica gets the bytes of all, its own among them, so all
of them compute the same mean in the same order.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.train.world.world import World


class Exchange(Protocol):
    """An exchange that is under way."""

    def wait(self) -> list[Tensor]:
        """Return the bytes of all replicas, in their order, when they are there."""


class OuterTransport(Protocol):
    """The link between replicas that take local steps."""

    replica: int  # which one this is
    replicas: int

    def begin(self, content: Tensor) -> Exchange:
        """Begin to send `content` and to receive that of the others; training may go on."""


class _Gathering:
    """An all-gather in a process group."""

    def __init__(self, content: Tensor, group: dist.ProcessGroup, replicas: int) -> None:
        self._sent = content  # it must stay until it is through
        self._every = [torch.empty_like(content) for _ in range(replicas)]
        self._work = dist.all_gather(self._every, content, group=group, async_op=True)

    def wait(self) -> list[Tensor]:
        assert self._work is not None
        self._work.wait()
        return self._every


class NoTransport:
    """A site: all its ranks are one replica, whose bytes go through a bucket and not from here."""

    replica, replicas = 0, 1

    def begin(self, content: Tensor) -> Exchange:
        raise AssertionError("a site exchanges through its bucket")


class GroupTransport:
    """Replicas that see each other, in torch's process group between them."""

    def __init__(self, world: World) -> None:
        self.replica, self.replicas = world.index("replicate"), world.size("replicate")
        self._group = world.group("replicate")

    def begin(self, content: Tensor) -> Exchange:
        return _Gathering(content, self._group, self.replicas)
