"""AdamW and the schedules of the learning rate."""

import math

import torch
from torch import nn

from penstock.run.train import TrainSection


def adamw(model: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """Weight decay on matrices only: norms and biases are left alone."""
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    # The learning rate is set before every step; fused because it is the fastest on CPU and CUDA.
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=0.0, betas=train.betas, eps=train.eps, fused=True
    )


def learning_rate(step: int, steps: int, peak: float, train: TrainSection) -> float:
    """The rate of `step` (0-based) of `steps`: a linear warm-up, then cosine or hold-and-decay."""
    warmup = train.warmup.of(steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    last = peak * train.final
    if train.schedule == "cosine":
        done = (step - warmup) / max(1, steps - warmup)
        return last + (peak - last) * 0.5 * (1 + math.cos(math.pi * done))
    decay = max(1, train.decay.of(steps))
    left = steps - step
    return peak if left > decay else last + (peak - last) * left / decay
