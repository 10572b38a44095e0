"""The ranks of a run: process group, device and mesh."""

import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from penstock.guard.save import exchange
from penstock.plan.job.layout import Layout
from penstock.train.world.tunnel_store import wrap_for_tunnels

# Ranks wait for each other in a checkpoint as long as storage takes. A rank that dies is noticed
# at once all the same: its connections close.
STORAGE_S = 3600.0
# Neighbours on the mesh are neighbours on the machine: what talks most stands last.
DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")


@dataclass(frozen=True)
class World:
    """The place of this rank among all ranks. `mesh` has the dimensions above.

    `experts` is another mesh over the same ranks, for weights that are split by whole experts:
    (pipeline, replicate, expert_shard, expert). It is None if nothing is laid out like that.
    """

    rank: int
    ranks: int
    device: torch.device
    mesh: DeviceMesh
    experts: DeviceMesh | None = None
    host_group: dist.ProcessGroup | None = None  # gloo, for what lives on the host
    save_group: dist.ProcessGroup | None = None  # gloo, for the thread that writes checkpoints
    apart: bool = False  # replicas take steps of their own, and agree after some of them
    inside_group: dist.ProcessGroup | None = None  # of this replica's ranks, if replicas are apart

    @property
    def cuda(self) -> bool:
        """Return whether this rank computes on a GPU."""
        return self.device.type == "cuda"

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Return the process group along a dimension."""
        return self.mesh.get_group(dimension)

    def size(self, dimension: str) -> int:
        """Return the number of ranks along a dimension."""
        return self.mesh.size(DIMENSIONS.index(dimension))

    def index(self, dimension: str) -> int:
        """Return this rank's index along a dimension."""
        return self.mesh.get_local_rank(dimension)

    @property
    def fsdp_mesh(self) -> DeviceMesh:
        """Return the mesh that one copy of the weights is sharded over: `shard` and `context`."""
        return _fsdp(self.mesh)

    @property
    def sharded(self) -> bool:
        """Return whether FSDP2 shards the weights."""
        return self.size("shard") * self.size("context") > 1

    @property
    def data_ranks(self) -> int:
        """Return the number of parts of a global batch. Other ranks share a part."""
        return self.size("replicate") * self.size("shard")

    @property
    def data_rank(self) -> int:
        """Return which part of a global batch this rank reads."""
        return self.index("replicate") * self.size("shard") + self.index("shard")

    @property
    def same_data_ranks(self) -> int:
        """Return how many ranks read the same samples."""
        return self.ranks // self.data_ranks

    @property
    def ranks_together(self) -> int:
        """Return how many ranks take a step together: all, or those of a replica."""
        return self.ranks // self.size("replicate") if self.apart else self.ranks

    @property
    def first_inside(self) -> bool:
        """Return whether this is the first rank of its replica."""
        return all(self.index(d) == 0 for d in DIMENSIONS if d != "replicate")

    @property
    def lead(self) -> bool:
        """Return whether this is the one rank that reports, and asks for what depends on a clock or
        a file.
        """
        return self.rank == 0

    @property
    def first_copy(self) -> bool:
        """Return whether this is the first of the ranks that hold equal weights."""
        return all(self.index(d) == 0 for d in DIMENSIONS if d != "pipeline")

    @property
    def saves(self) -> bool:
        """Return whether this rank takes part in checkpoints."""
        return True

    def sum_replicas_(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the replicas, in place."""
        if self.size("replicate") > 1:
            dist.all_reduce(values, group=self.group("replicate"))
        return values

    def all_to_all_replicas(self, values: torch.Tensor) -> torch.Tensor:
        """Send part i of the values to replica i; return what the replicas sent here, in their
        order.
        """
        got = torch.empty_like(values)
        dist.all_to_all_single(got, values, group=self.group("replicate"))
        return got

    def gather_replicas(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of all replicas, in their order."""
        every = torch.stack([values] * self.size("replicate"))
        dist.all_gather(list(every.unbind()), values, group=self.group("replicate"))
        return every

    def finish_together(self, step: int) -> None:
        """End the run after `step`: no rank leaves while another may still need its state."""

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def sum_together_(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks that take a step together, in place."""
        if not self.apart:
            return self.sum_(values)
        if self.inside_group is not None:
            dist.all_reduce(values, group=self.inside_group)
        return values

    def broadcast_(self, values: torch.Tensor) -> torch.Tensor:
        """Copy rank 0's values to all ranks, in place."""
        if self.ranks > 1:
            dist.broadcast(values, src=0)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank; small things only."""
        if self.ranks == 1:
            return value
        return exchange.broadcast(value, self.rank, self.host_group)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on every rank; small things only."""
        if self.ranks == 1:
            return [value]
        return exchange.gather(value, self.ranks, self.host_group)


def join(
    layout: Layout, kind: str, timeout_s: float, backend: str | None = None, apart: bool = False
) -> World:
    """Meet the other ranks. Raises within `timeout_s` when one of them does not come.

    With `apart`, replicas will take local steps. Several ranks can share one GPU only over another
    `backend` than NCCL: "gloo", for tests.
    """
    store, prefix = supervisor_store(timeout_s), os.environ["PENSTOCK_ATTEMPT"]
    rank = int(os.environ["RANK"])
    return build_world(store, prefix, rank, layout, kind, timeout_s, backend, apart)


def supervisor_store(timeout_s: float) -> dist.Store:
    """Connect to the supervisor's store."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=timeout_s)
    return wrap_for_tunnels(dist.TCPStore(address, port, is_master=False, timeout=timeout))


def build_world(
    store: dist.Store,
    prefix: str,
    rank: int,
    layout: Layout,
    kind: str,
    timeout_s: float,
    backend: str | None = None,
    apart: bool = False,
) -> World:
    """Build the world of all ranks of the layout, which meet under `prefix` in the store."""
    # It has advice for every gathering of a whole weight, which happens once a run.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    ranks, timeout = layout.ranks, timedelta(seconds=timeout_s)
    exchange.refuse_pickles()
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group(
        backend or ("cuda:nccl,cpu:gloo" if kind == "cuda" else "gloo"),
        store=dist.PrefixStore(prefix, store),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
    )
    mesh = _mesh(kind, {name: getattr(layout, name) for name in DIMENSIONS})
    _bounded(_fsdp(mesh), timeout)
    experts = None
    if layout.expert > 1 or layout.tensor > 1:
        inner = layout.shard * layout.context * layout.tensor
        sizes = {"pipeline": layout.pipeline, "replicate": layout.replicate}
        sizes |= {"expert_shard": inner // layout.expert, "expert": layout.expert}
        experts = _mesh(kind, sizes)
        _bounded(experts, timeout)
    _bounded(mesh, timeout)
    host, save = (
        dist.new_group(backend="gloo", timeout=timedelta(seconds=STORAGE_S)) for _ in range(2)
    )
    inside = _inside_group(mesh, rank, timeout) if apart else None
    return World(rank, ranks, device, mesh, experts, host, save, apart, inside)


def _inside_group(mesh: DeviceMesh, rank: int, timeout: timedelta) -> dist.ProcessGroup | None:
    """Return the group of all ranks of this replica; None if it has one rank. All ranks call it."""
    by_replica = mesh.mesh.movedim(DIMENSIONS.index("replicate"), 0).flatten(1).tolist()
    own = None
    for members in by_replica if len(by_replica[0]) > 1 else ():
        group = dist.new_group(members, timeout=timeout)
        own = group if rank in members else own
    return own


def _mesh(kind: str, sizes: dict[str, int]) -> DeviceMesh:
    return init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _fsdp(mesh: DeviceMesh) -> DeviceMesh:
    """Return the flat mesh of `shard` and `context`; the first call builds it."""
    return mesh["shard", "context"]._flatten("fsdp")


def _bounded(mesh: DeviceMesh, timeout: timedelta) -> None:
    """Set the timeout of a mesh's groups, which would be half an hour otherwise."""
    for group in mesh.get_all_groups():
        dist.distributed_c10d._set_pg_timeout(timeout, group)
