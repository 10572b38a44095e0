"""An open model's weights into a model that has been laid out over ranks."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.model.open.weights import OpenWeights
from penstock.model.put import put


def fill_open(model: nn.Module, weights: OpenWeights, device: torch.device) -> None:
    """Memory for a model that has none, and all its weights."""
    model.to_empty(device=device)
    fill_from({**dict(model.named_parameters()), **dict(model.named_buffers())}, weights, device)


@torch.no_grad()
def fill_from(ours: Mapping[str, Tensor], weights: OpenWeights, device: torch.device) -> None:
    """Copy each parameter and buffer from the tensor of its name, cast to its own type.

    Every rank reads the whole tensor and keeps its part: one tensor at a time, and nothing is sent.
    A buffer that the family does not store (counts, the balance of experts) begins at zero.
    """
    for name, tensor in ours.items():
        if name in weights:
            if weights.dimensions[name] != tuple(tensor.shape):
                raise PenstockError(
                    f"{weights.files.folder}: {name} is {weights.dimensions[name]}, and the "
                    f"model's is {tuple(tensor.shape)}"
                )
            put(tensor, weights.read(name).to(device, tensor.dtype))
        elif not isinstance(tensor, nn.Parameter):
            tensor.zero_()
        else:
            raise PenstockError(
                f"{weights.files.folder}: the model has {name}, which {weights.family} has not"
            )
