"""The first weights of a decoder, the same in every layout.

Every rank has the values of a whole tensor and keeps its part: nothing is sent.
"""

import torch
import xxhash
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder


def decoder_on_meta(shape: ModelShape, layers: range | None = None) -> Decoder:
    """Build the decoder, or some of its layers, on the meta device: it has no memory yet."""
    with torch.device("meta"):
        return Decoder(shape, layers)


@torch.no_grad()
def initialize(model: Decoder, device: torch.device, seed: int) -> None:
    """Give a decoder its first weights, drawn from one generator for each name.

    So the weights are the same whatever the layout. Every rank draws the whole tensor and keeps its
    part: one tensor at a time, and nothing is sent.
    """
    model.to_empty(device=device)
    for buffer in model.buffers():
        buffer.zero_()
    for name, param in model.named_parameters():
        if name.endswith("norm.weight"):
            param.fill_(0.0 if model.shape.norm_offset else 1.0)
        elif name.endswith("bias"):
            param.zero_()
        else:
            draw = named_generator(name, seed, device)
            whole = torch.empty(param.shape, dtype=param.dtype, device=device)
            copy_to_shard(param, whole.normal_(0.0, init_std(name, model.shape), generator=draw))


def init_std(name: str, shape: ModelShape) -> float:
    """Return the standard deviation of a weight's first values.

    It is 0.02 at the width of 768 and up; narrower models start wider. The two matrices that write
    into the residual stream are scaled down with depth, so that its variance does not grow with it.
    An untied input embedding starts at 1: at 0.02 the first layers drown it, and small models were
    half a nat behind after 1M tokens. A tied one must also start as a head, near ln(vocab).
    """
    if not shape.tied and name in ("embed.weight", "head.weight"):
        return 1.0 if name == "embed.weight" else 0.02
    std = 0.02 if shape.hidden >= 768 else 0.02 * (768 / shape.hidden) ** 0.5
    if name.endswith(("attention.out.weight", ".down.weight", "experts.down")):
        return std / (2 * shape.layers) ** 0.5
    return std


@torch.no_grad()
def copy_to_shard(tensor: Tensor, whole: Tensor) -> None:
    """Copy `whole`, which every rank has, into `tensor` or this rank's part of it."""
    if isinstance(tensor, DTensor):
        # src_data_rank=None: every rank has the same `whole`, so no collective is needed.
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(whole)


def named_generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    """Return a generator for a tensor's first values, seeded by its name and the seed alone."""
    number = xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1
    return torch.Generator(device).manual_seed(number)
