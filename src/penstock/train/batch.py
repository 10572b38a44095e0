"""From a step to this rank's microbatches (principle 2: the global batch is what the file says)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.data.stream import rank_slice


@dataclass(frozen=True)
class Micro:
    """A microbatch on the device. `weight` is 0 for the filler of a rank with less to do."""

    inputs_bs: Tensor
    targets_bs: Tensor
    weight: float


@dataclass(frozen=True)
class Share:
    """How one rank takes part in a range of positions."""

    start: int
    stop: int
    micros: int  # the same on every rank: collectives must meet

    @classmethod
    def of(cls, start: int, stop: int, rank: int, ranks: int, microbatch: int) -> "Share":
        most = -(-(stop - start) // ranks)
        own_start, own_stop = rank_slice(start, stop, rank, ranks)
        return cls(own_start, own_stop, -(-most // microbatch))


def micros(
    samples_ns: np.ndarray, count: int, microbatch: int, device: torch.device
) -> list[Micro]:
    """Cut a rank's samples into `count` microbatches, topped up with fillers of weight 0."""
    tokens = torch.from_numpy(samples_ns)
    if device.type == "cuda":
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    parts = list(tokens.split(microbatch)) if len(tokens) else []
    out = [Micro(part[:, :-1], part[:, 1:], 1.0) for part in parts]
    if len(out) < count:
        width = samples_ns.shape[1]
        blank = (
            tokens[:1] if len(tokens) else torch.zeros(1, width, dtype=torch.int64, device=device)
        )
        out += [Micro(blank[:, :-1], blank[:, 1:], 0.0)] * (count - len(out))
    return out
