"""Rotary positions: where a token stands turns its queries and keys."""

import math

import torch
from torch import Tensor

from penstock.catalog.shapes import ModelShape, RopeScaling


def rotation(positions: Tensor, shape: ModelShape) -> Tensor:
    """Cosines and sines of these positions, [2, …, e/2].

    Computed anew in every forward (microseconds) rather than kept in a buffer, so that a model made
    on the meta device has nothing but parameters to fill.
    """
    angle = positions.float().unsqueeze(-1) * frequencies(shape, positions.device)
    return torch.stack((angle.cos(), angle.sin()))


def frequencies(shape: ModelShape, device: torch.device) -> Tensor:
    """Radians a token of each rotation, [e/2].

    In float32 and in this order of operations: open models were trained with exactly these angles,
    and a frequency that is off by one bit is off by 1e-4 radians after 1000 tokens.
    """
    half = torch.arange(0, shape.head_width, 2, device=device, dtype=torch.float32)
    frequency_e = 1.0 / shape.rope_theta ** (half / shape.head_width)
    return _slowed(frequency_e, shape.rope_scaling) if shape.rope_scaling else frequency_e


def _slowed(frequency_e: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling; see `RopeScaling`."""
    wave_e = 2 * math.pi / frequency_e  # tokens for a full turn
    slow_e, fast_e = (
        wave_e > scaling.original / scaling.low,
        wave_e < scaling.original / scaling.high,
    )
    kept_e = torch.where(slow_e, frequency_e / scaling.factor, frequency_e)
    share_e = (scaling.original / wave_e - scaling.low) / (scaling.high - scaling.low)
    mixed_e = (1 - share_e) * kept_e / scaling.factor + share_e * kept_e
    return torch.where(slow_e | fast_e, kept_e, mixed_e)


def places(starts_bs: Tensor) -> Tensor:
    """The place of each token in its document, counted from 0; the first token begins one too."""
    at_s = torch.arange(starts_bs.shape[1], device=starts_bs.device)
    begin_bs = torch.where(starts_bs, at_s, 0).cummax(1).values
    return at_s - begin_bs


def rotate(x_bshe: Tensor, turn: Tensor) -> Tensor:
    """Rotate the two halves of each head (the Hugging Face order of channels, not interleaved)."""
    cos, sin = turn.to(x_bshe.dtype).unsqueeze(-2)
    a, b = x_bshe.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
