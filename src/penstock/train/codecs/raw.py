"""No compression: the bytes of the values."""

import torch
from torch import Tensor


class Raw:
    """Values as they are, in fp32 or fp64."""

    name, block, exact = "none", 1, True

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def sections(self, count: int) -> tuple[int, ...]:
        return (count * self.dtype.itemsize,)

    def encode(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).contiguous().view(torch.uint8)

    def decode(self, content: Tensor, count: int) -> Tensor:
        return content.clone().view(self.dtype)
