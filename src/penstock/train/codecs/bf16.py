"""bf16: the upper half of fp32, rounded to nearest."""

import torch
from torch import Tensor


class Bf16:
    """Two bytes a value, with a relative error of at most 2⁻⁸ of the value."""

    name, block, exact = "bf16", 1, False

    def sections(self, count: int) -> tuple[int, ...]:
        return (2 * count,)

    def encode(self, values: Tensor) -> Tensor:
        return values.bfloat16().contiguous().view(torch.uint8)

    def decode(self, content: Tensor, count: int) -> Tensor:
        return content.clone().view(torch.bfloat16).float()
