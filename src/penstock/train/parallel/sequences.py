"""Sequences of which each rank of a group has a part: the two exchanges, with their gradients.

DTensor does both, and what runs backwards for each. What comes out are plain tensors again.
"""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def gather_sequence(x_bsd: Tensor, mesh: DeviceMesh) -> Tensor:
    """The parts of all ranks, one after the other (all-gather).

    Every rank goes on to a gradient of the whole that is part of a sum: a reduce-scatter backwards.
    """
    part = DTensor.from_local(x_bsd, mesh, [Shard(1)], run_check=False)
    return part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def reduce_scatter_sequence(x_bsd: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum over the ranks; of it, this rank's part (reduce-scatter; an all-gather backwards)."""
    part = DTensor.from_local(x_bsd, mesh, [Partial()], run_check=False)
    return part.redistribute(placements=[Shard(1)]).to_local()
