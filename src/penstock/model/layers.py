"""The parts of a decoder layer: rotary positions, attention, and the gated feed-forward block.

A layout that cuts sequences replaces `positions_and_mask` and `attend`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from penstock.catalog.rope import Llama3Scaling, LongScaling, YarnScaling
from penstock.catalog.shapes import ModelShape
from penstock.model.joint import JointSwiGLU, JointWeights, plain_linear

if TYPE_CHECKING:  # slow to import, and a CPU has no use for it
    from torch.nn.attention.flex_attention import BlockMask

Mask: TypeAlias = Union[Tensor, "BlockMask", None]  # None: every earlier token

# On an H200 cuDNN does 437 TFLOP/s forward and 382 backward where Flash does 285 and 241 (32 heads
# of 64, 8 of keys). torch takes the first of these that can do what is asked.
FASTEST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def positions_and_mask(
    sequence: int, starts_bs: Tensor | None, shape: ModelShape, device: torch.device
) -> tuple[Tensor, Mask]:
    """Return the rotation of each token's queries and keys, and which tokens it may see.

    `shape` is one of `attention_kinds`: one window for all its layers.
    """
    window = shape.window if shape.window < sequence else 0
    if starts_bs is None:
        cos_sin = rotary_cos_sin(torch.arange(sequence, device=device), shape)
        if not window and not shape.sinks:
            return cos_sin, None
        starts_bs = torch.zeros(1, sequence, dtype=torch.bool, device=device)  # for all samples
    else:
        cos_sin = rotary_cos_sin(document_positions(starts_bs), shape)
    if not starts_bs.is_cuda:
        return cos_sin, document_mask(starts_bs, window)
    from penstock.model.document_attention import document_block_mask

    return cos_sin, document_block_mask(starts_bs, window)


def document_mask(starts_bs: Tensor, window: int = 0) -> Tensor:
    """Return whether the token of a row may see that of a column: an earlier one of its document,
    or of the last `window` of them.

    A square of booleans for each sample; `documents.blocks` says the same in less.
    """
    document_bs = starts_bs.cumsum(1)
    same_bss = document_bs.unsqueeze(2) == document_bs.unsqueeze(1)
    return same_bss.tril().triu(1 - window) if window else same_bss.tril()


def attend(
    q_bshe: Tensor,
    k_bske: Tensor,
    v_bske: Tensor,
    mask: Mask,
    scale: float | None = None,
    sinks_h: Tensor | None = None,
) -> Tensor:
    """Compute causal attention with grouped keys and values, [b, s, h, e].

    `scale` multiplies the scores; None: one by the root of the width. With sinks there is a mask.
    """
    q_bhse, k_bkse, v_bkse = (x.transpose(1, 2) for x in (q_bshe, k_bske, v_bske))
    if sinks_h is not None:
        scale = scale or q_bhse.shape[-1] ** -0.5
        return attend_with_sinks(q_bhse, k_bkse, v_bkse, mask, scale, sinks_h).transpose(1, 2)
    if mask is not None and not isinstance(mask, Tensor):
        from penstock.model import document_attention

        if document_attention.is_supported(q_bhse):
            out_bhse = document_attention.flex_attend(q_bhse, k_bkse, v_bkse, mask, scale)
            return out_bhse.transpose(1, 2)
        mask = document_attention.dense_mask(mask, q_bhse)
    if not q_bhse.is_cuda:
        return _scaled_dot_product(q_bhse, k_bkse, v_bkse, mask, scale).transpose(1, 2)
    width = v_bkse.shape[-1]
    if width < q_bhse.shape[-1] and not _cudnn_has_two_widths(q_bhse):
        v_bkse = F.pad(v_bkse, (0, q_bhse.shape[-1] - width))
    with sdpa_kernel(FASTEST, set_priority=True):
        out_bhse = _scaled_dot_product(q_bhse, k_bkse, v_bkse, mask, scale)
    return out_bhse[..., :width].transpose(1, 2)


def _cudnn_has_two_widths(q_bhse: Tensor) -> bool:
    """Return whether cuDNN does values that are narrower than keys, as latent attention has them.

    On an H200 it takes 2.9 ms where Flash, on values with zeros added, takes 6.4 and the efficient
    kernel, which torch would choose, 25 (32 heads of 192 and 128, 8192 tokens, forward and
    backward). Before Hopper it has no heads as wide.
    """
    return torch.cuda.get_device_capability(q_bhse.device)[0] >= 9


def attend_with_sinks(
    q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: Mask, scale: float, sinks_h: Tensor
) -> Tensor:
    """Compute attention whose softmax has one more score for each head, with nothing to read.

    FlexAttention tells the logarithm of a row's sum, and the sink only makes that sum larger.
    Without it the sink is a key more: a channel of the queries holds the sink, and only this key
    has a one there.
    """
    if mask is not None and not isinstance(mask, Tensor):
        from penstock.model import document_attention

        if document_attention.is_supported(q_bhse):
            out_bhse, log_bhs = document_attention.flex_attend_with_sums(
                q_bhse, k_bkse, v_bkse, mask, scale
            )
            kept_bhs = (log_bhs - sinks_h.unsqueeze(1)).sigmoid()
            return out_bhse * kept_bhs.unsqueeze(-1).to(out_bhse.dtype)
        mask = document_attention.dense_mask(mask, q_bhse)
    assert mask is not None
    width = q_bhse.shape[-1]
    sink_bhs1 = (sinks_h / scale).view(-1, 1, 1).expand(*q_bhse.shape[:3], 1)
    key_e = F.pad(k_bkse.new_zeros(width), (0, 1), value=1.0)
    key_bk1e = key_e.expand(*k_bkse.shape[:2], 1, -1)
    out_bhse = _scaled_dot_product(
        torch.cat((q_bhse, sink_bhs1), -1),
        torch.cat((F.pad(k_bkse, (0, 1)), key_bk1e), 2),
        F.pad(v_bkse, (0, 1, 0, 1)),
        F.pad(mask, (0, 1), value=True),
        scale,
    )
    return out_bhse[..., :width]


def _scaled_dot_product(
    q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    return F.scaled_dot_product_attention(
        q_bhse,
        k_bkse,
        v_bkse,
        attn_mask=None if mask is None else mask.unsqueeze(1),
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q_bhse.shape[1] != k_bkse.shape[1],
    )


def rotary_cos_sin(positions: Tensor, shape: ModelShape) -> Tensor:
    """Return cosines and sines of these positions, [2, …, e/2].

    Computed anew in every forward (microseconds) rather than kept in a buffer, so that a model made
    on the meta device has nothing but parameters to fill.
    """
    angle = positions.float().unsqueeze(-1) * frequencies(shape, positions.device)
    cos_sin = torch.stack((angle.cos(), angle.sin()))
    scaling = shape.rope_scaling
    return cos_sin if scaling is None or scaling.amplitude == 1 else cos_sin * scaling.amplitude


def frequencies(shape: ModelShape, device: torch.device) -> Tensor:
    """Return the radians per token of each rotation, [e/2], or fewer of a head that is rotated in
    part.

    In float32 and in this order of operations: open models were trained with exactly these angles,
    and a frequency that is off by one bit is off by 1e-4 radians after 1000 tokens.
    """
    width = shape.rotated_channels
    half = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    turn_e = shape.rope_theta ** (half / width)  # tokens per radian
    scaling = shape.rope_scaling
    return 1.0 / turn_e if scaling is None else _SCALED[scaling.kind](turn_e, shape, scaling)


def _llama3_scaled(turn_e: Tensor, shape: ModelShape, scaling: Llama3Scaling) -> Tensor:
    """Scale frequencies as Llama 3.1 does; see `Llama3Scaling`."""
    frequency_e = 1.0 / turn_e
    wave_e = 2 * math.pi / frequency_e  # tokens for a full turn
    slow_e, fast_e = (
        wave_e > scaling.original / scaling.low,
        wave_e < scaling.original / scaling.high,
    )
    kept_e = torch.where(slow_e, frequency_e / scaling.factor, frequency_e)
    share_e = (scaling.original / wave_e - scaling.low) / (scaling.high - scaling.low)
    mixed_e = (1 - share_e) * kept_e / scaling.factor + share_e * kept_e
    return torch.where(slow_e | fast_e, kept_e, mixed_e)


def _yarn_scaled(turn_e: Tensor, shape: ModelShape, scaling: YarnScaling) -> Tensor:
    """Scale frequencies as YaRN does; see `YarnScaling`."""
    channels = 2 * len(turn_e)

    def channel(turns: float) -> float:
        """Return the channel that turns so many times in the original context."""
        tokens = scaling.original / (turns * 2 * math.pi)
        return channels * math.log(tokens) / (2 * math.log(shape.rope_theta))

    first, last = channel(scaling.fast), channel(scaling.slow)
    if scaling.truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, channels - 1)
    at_e = torch.arange(len(turn_e), device=turn_e.device, dtype=torch.float32)
    slow_e = ((at_e - first) / (last - first or 0.001)).clamp(0, 1)
    kept_e = 1 - slow_e
    return 1.0 / (scaling.factor * turn_e) * (1 - kept_e) + 1.0 / turn_e * kept_e


def _long_scaled(turn_e: Tensor, shape: ModelShape, scaling: LongScaling) -> Tensor:
    """Scale frequencies as LongRoPE does up to the original context; see `LongScaling`."""
    return 1.0 / (torch.tensor(scaling.short, device=turn_e.device) * turn_e)


_SCALED: dict[str, Callable[..., Tensor]] = {
    "llama3": _llama3_scaled,
    "yarn": _yarn_scaled,
    "longrope": _long_scaled,
    "linear": lambda turn_e, shape, scaling: 1.0 / turn_e / scaling.factor,
}


def document_positions(starts_bs: Tensor) -> Tensor:
    """Return the position of each token in its document, from 0; the first token begins one."""
    at_s = torch.arange(starts_bs.shape[1], device=starts_bs.device)
    begin_bs = torch.where(starts_bs, at_s, 0).cummax(1).values
    return at_s - begin_bs


def apply_rotary(x_bshe: Tensor, cos_sin: Tensor, pairs: bool = False) -> Tensor:
    """Rotate the two halves of each head (the Hugging Face order of channels, not interleaved).

    With `pairs`, neighbouring channels turn together; they leave as halves. That changes no score,
    since queries and keys get the same order.
    """
    turned = 2 * cos_sin.shape[-1]
    if turned < x_bshe.shape[-1]:
        rest_bshe = x_bshe[..., turned:]
        return torch.cat((apply_rotary(x_bshe[..., :turned], cos_sin), rest_bshe), dim=-1)
    cos, sin = cos_sin.to(x_bshe.dtype).unsqueeze(-2)
    a, b = (x_bshe[..., 0::2], x_bshe[..., 1::2]) if pairs else x_bshe.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Embedding(nn.Embedding):
    """A table of rows, whose gradient has a kernel of its own on a GPU."""

    def forward(self, tokens_bs: Tensor) -> Tensor:
        if not self.weight.is_cuda or self.weight.dtype == torch.float64:
            return super().forward(tokens_bs)
        from penstock.model.embedding import embed_on_gpu  # needs Triton: only CUDA builds have it

        return embed_on_gpu(self.weight, tokens_bs)


class OffsetRMSNorm(nn.Module):
    """An RMSNorm that multiplies by 1 + its weight, which begins at 0."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        # In float32 at least: 1 + a small weight is 1 in 16 bits.
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, 1.0 + self.weight.to(wide), self.eps).to(
            x.dtype
        )


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class SwiGLU(nn.Module):
    """The gated feed-forward block of a layer; `activation` is that of the gate."""

    def __init__(self, hidden: int, ffn: int, activation: str = "silu") -> None:
        super().__init__()
        self.activation = _ACTIVATIONS[activation]
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.joint: JointWeights | None = None

    def join(self) -> list[JointWeights]:
        """Compute the gradient of the input with one matmul from now on, where all is plain."""
        if self.activation is F.silu and all(map(plain_linear, (self.gate, self.up, self.down))):
            self.joint = JointWeights((self.gate, self.up))
        return [self.joint] if self.joint else []

    def forward(self, x_bsd: Tensor) -> Tensor:
        if self.joint is not None:
            return JointSwiGLU.apply(
                x_bsd, self.gate.weight, self.up.weight, self.down.weight, self.joint.weight_jd
            )
        return self.down(self.activation(self.gate(x_bsd)) * self.up(x_bsd))
