"""The two exchanges of sequence parallelism, with their gradients; each rank of a group has part of
a sequence.

DTensor does both exchanges and their backward passes. The results are plain tensors again.
"""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard


def gather_sequence(x_bsd: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the parts of all ranks, one after the other (all-gather).

    Every rank computes part of the gradient's sum: the backward pass is a reduce-scatter.
    """
    part = DTensor.from_local(x_bsd, mesh, [Shard(1)], run_check=False)
    return part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def reduce_scatter_sequence(x_bsd: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this rank's part of the sum over the ranks (reduce-scatter; all-gather backwards)."""
    part = DTensor.from_local(x_bsd, mesh, [Partial()], run_check=False)
    return part.redistribute(placements=[Shard(1)]).to_local()
