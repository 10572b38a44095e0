"""The ranks of a run: process group, device and mesh."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from penstock.plan.layout import Layout

# Ranks wait for each other in a checkpoint as long as storage takes. A rank that dies is noticed
# at once all the same: its connections close.
STORAGE_S = 3600.0


@dataclass(frozen=True)
class World:
    rank: int
    ranks: int
    device: torch.device
    mesh: DeviceMesh  # dimensions: replicate, shard
    host_group: dist.ProcessGroup | None = None  # gloo, for what lives on the host

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def group(self, dimension: str) -> dist.ProcessGroup:
        return self.mesh.get_group(dimension)

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        if self.ranks > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: object) -> object:
        """Rank 0's value on every rank; small things only."""
        box = [value]
        if self.ranks > 1:
            dist.broadcast_object_list(box, src=0, group=self.host_group)
        return box[0]

    def gather(self, value: object) -> list:
        """Every rank's value on every rank; small things only."""
        if self.ranks == 1:
            return [value]
        box: list = [None] * self.ranks
        dist.all_gather_object(box, value, group=self.host_group)
        return box


def join(layout: Layout, kind: str, timeout_s: float) -> World:
    """Meet the other ranks. Raises within `timeout_s` when one of them does not come."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout
    )
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group(
        "cuda:nccl,cpu:gloo" if kind == "cuda" else "gloo",
        store=dist.PrefixStore(os.environ["PENSTOCK_ATTEMPT"], store),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
    )
    # Groups made here and not by the mesh, whose own would have torch's default timeout.
    grid = torch.arange(ranks).view(layout.replicate, layout.shard)
    replicate, _ = dist.new_subgroups_by_enumeration(grid.T.tolist(), timeout=timeout)
    shard, _ = dist.new_subgroups_by_enumeration(grid.tolist(), timeout=timeout)
    mesh = DeviceMesh.from_group(
        [replicate, shard], kind, mesh=grid, mesh_dim_names=("replicate", "shard")
    )
    host = dist.new_group(backend="gloo", timeout=timedelta(seconds=STORAGE_S))
    return World(rank, ranks, device, mesh, host)
