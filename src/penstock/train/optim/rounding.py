"""fp32 to bf16 at random, with the odds that keep the mean right.

Rounding to nearest would lose every update that is smaller than half a step of bf16.
"""

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest


def rounded_at_random(values: Tensor, what: str) -> Tensor:
    """The dice depend on `what` alone (a name and a step), so that replicas throw the same."""
    draw = torch.Generator(values.device).manual_seed(xxh3_64_intdigest(what.encode()) >> 1)
    noise = torch.empty(values.shape, dtype=torch.int32, device=values.device)
    noise.random_(0, 1 << 16, generator=draw)
    # bf16 is the upper half of fp32: what is added to the lower half carries over or is cut off.
    bits = (values.contiguous().view(torch.int32) + noise) & -(1 << 16)
    return bits.view(torch.float32).bfloat16()
