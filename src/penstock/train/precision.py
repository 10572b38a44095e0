"""Number formats: what weights are kept in, and what the matmuls take."""

import torch
from torch import Tensor

from penstock.train.parts import Parts

MASTER = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.float32,
    "fp8": torch.float32,
}
COMPUTE = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
}


@torch.no_grad()
def lowered(parts: Parts, dtype: torch.dtype) -> dict[str, Tensor]:
    """Puts the weights into `dtype`; gives those in full precision, of what is trained.

    FSDP2 does this by itself when it gathers a layer. Without it a copy of both kinds is kept: one
    for the matmuls, one for the optimizer, which writes both in one pass.
    """
    masters = {}
    for name, param in parts.named_parameters():
        if param.dtype == dtype:
            continue
        if param.requires_grad:
            masters[name] = param.detach()
        param.data = param.detach().to(dtype)
    return masters
