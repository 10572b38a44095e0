"""Number formats: of the weights that are kept, and of the matmuls."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from penstock.run.schema.train import TrainSection
from penstock.train.parallel.parts import ModelParts

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


def stored_dtype(train: TrainSection) -> torch.dtype:
    """Return the type in which weights are created and updated."""
    return torch.bfloat16 if train.weights == "bf16" else MASTER[train.precision]


@torch.no_grad()
def lower_weights(parts: ModelParts, dtype: torch.dtype) -> dict[str, Tensor]:
    """Cast the weights to `dtype`; return the full-precision ones of what is trained, by name.

    FSDP2 does this by itself when it gathers a layer. Without it both copies are kept: one for the
    matmuls, one for the optimizer, which writes both in one pass.
    """
    masters = {}
    for name, param in parts.named_parameters():
        if param.dtype == dtype or not param.is_floating_point():
            continue
        if param.requires_grad:
            masters[name] = param.detach()
        narrow = nn.Parameter(param.detach().to(dtype), param.requires_grad)
        if isinstance(param, DTensor):  # its `data` is the outside, and not what it holds
            torch.utils.swap_tensors(param, narrow)
        else:  # modules such as nn.LSTM hold weak references, which a swap refuses
            param.data = narrow.data
    return masters
