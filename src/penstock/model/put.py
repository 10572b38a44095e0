"""Values into tensors that may be spread over ranks: each rank has all of them and keeps its part.

Nothing is sent, and the values are the same whatever the layout.
"""

import torch
import xxhash
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Copy `whole`, which every rank has, into `tensor` or this rank's part of it."""
    if isinstance(tensor, DTensor):
        # src_data_rank=None: every rank has the same `whole`, so no collective is needed.
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)


def generator_of(name: str, seed: int, device: torch.device) -> torch.Generator:
    """For the first values of a tensor: of its name and the seed alone."""
    number = xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1
    return torch.Generator(device).manual_seed(number)
