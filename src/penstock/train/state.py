"""What a checkpoint holds of a run: weights and moments by names that no layout changes."""

from torch import Tensor

from penstock.train.optim.optimizer import Optimizer
from penstock.train.parallel.parts import Parts


def weights(parts: Parts, optimizer: Optimizer, copies: bool = False) -> dict[str, Tensor]:
    """Trained weights in full precision, and the model's buffers.

    Parameters that another rank answers for are among them only if asked for: to be loaded.
    """
    found = {
        name: optimizer.moments[name].get("master", param.detach())
        for name, param in parts.trained().items()
        if copies or name not in parts.copies
    }
    return found | parts.named_buffers()


def state(parts: Parts, optimizer: Optimizer, copies: bool = False) -> dict[str, Tensor]:
    """Weights and moments; the tensors are the run's own, so that loading into them changes it."""
    found = {f"model/{name}": tensor for name, tensor in weights(parts, optimizer, copies).items()}
    found |= {f"model/{name}": param.detach() for name, param in parts.frozen().items()}
    for name, own in optimizer.moments.items():
        if copies or name not in parts.copies:
            found |= {f"optimizer/{name}/{k}": v for k, v in own.items() if k != "master"}
    return found
