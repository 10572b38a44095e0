"""The decoder: a Llama-family transformer, top to bottom.

Shape suffixes: b batch, s sequence, d hidden, h heads, k kv heads, e head width, f ffn, v vocab.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.joint import JointWeights, RotatedProjections, plain_linear
from penstock.model.latent_attention import LatentAttention
from penstock.model.layers import (
    Embedding,
    Mask,
    OffsetRMSNorm,
    SwiGLU,
    apply_rotary,
    attend,
    positions_and_mask,
)
from penstock.model.loss import summed_cross_entropy
from penstock.model.moe import MoE


class Decoder(nn.Module):
    """A Llama-family transformer: tokens in, logits out, or the summed loss if targets are given.

    With `layers` it is one stage of a pipeline: the first stage takes tokens, the last returns
    logits, and hidden states travel between them. Parameters have the same names in every stage.

    Context and tensor parallelism replace `positions_and_mask`, `loss`, `logits` and the layers'
    `attend`.
    """

    def __init__(self, shape: ModelShape, layers: range | None = None) -> None:
        super().__init__()
        held = range(shape.layers) if layers is None else layers
        self.shape = shape
        self.first, self.last = held.start == 0, held.stop == shape.layers
        table = self.first or (self.last and shape.tied)
        self.embed = Embedding(shape.vocab, shape.hidden) if table else None
        self.layers = nn.ModuleDict({str(i): Layer(shape, i) for i in held})
        self.norm = _norm(shape) if self.last else None
        head = self.last and not shape.tied
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if head else None
        self.positions_and_mask = positions_and_mask
        self.loss: Callable[..., Tensor] = summed_cross_entropy
        self.logits = F.linear

    def forward(
        self,
        x: Tensor,
        starts_bs: Tensor | None = None,
        targets_bs: Tensor | None = None,
        counted_bs: Tensor | None = None,
    ) -> Tensor:
        """Compute logits or the summed loss; on an inner stage, hidden states.

        `x` is tokens on the first stage and hidden states on the others. `starts_bs` marks where
        documents begin: each document is then read as if it were alone.
        """
        x_bsd = self.embed(x) if self.first and self.embed is not None else x
        if self.first and self.shape.embed_scaled:
            x_bsd = x_bsd * _rounded(self.shape.hidden**0.5, x_bsd.dtype)
        seen = [
            self.positions_and_mask(x.shape[1], starts_bs, kind, x.device)
            for kind in self.shape.attention_kinds
        ]
        for layer in self.layers.values():
            x_bsd = layer(x_bsd, *seen[layer.kind])
        if self.norm is None:
            return x_bsd
        x_bsd = self.norm(x_bsd)
        if targets_bs is None:
            return self.logits(x_bsd, self.head_vd)
        return self.loss(x_bsd, self.head_vd, targets_bs, counted_bs)

    @property
    def head_vd(self) -> Tensor:
        """Return the matrix of the head; a tied one is the embedding's."""
        holder = self.embed if self.head is None else self.head
        assert holder is not None
        return holder.weight


class Layer(nn.Module):
    """A decoder layer: attention, then a SwiGLU or a mixture of experts, each with a norm before
    it, after it or both, and added to the residual stream.
    """

    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.kind = shape.attention_kind(index)
        before, after = shape.norms in ("before", "both"), shape.norms in ("after", "both")
        self.attention_norm = _norm(shape) if before else None
        self.attention = LatentAttention(shape) if shape.kv_rank else Attention(shape)
        self.attention_post_norm = _norm(shape) if after else None
        self.ffn_norm = _norm(shape) if before else None
        mixed = shape.moe and index >= shape.dense_layers
        self.ffn = MoE(shape) if mixed else SwiGLU(shape.hidden, shape.ffn, shape.activation)
        self.ffn_post_norm = _norm(shape) if after else None

    def forward(self, x_bsd: Tensor, cos_sin: Tensor, mask: Mask = None) -> Tensor:
        mixed_bsd = self.attention(_normed(self.attention_norm, x_bsd), cos_sin, mask)
        x_bsd = x_bsd + _normed(self.attention_post_norm, mixed_bsd)
        made_bsd = self.ffn(_normed(self.ffn_norm, x_bsd))
        return x_bsd + _normed(self.ffn_post_norm, made_bsd)


def _norm(shape: ModelShape, width: int = 0) -> nn.Module:
    kind = OffsetRMSNorm if shape.norm_offset else nn.RMSNorm
    return kind(width or shape.hidden, eps=shape.norm_eps)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """Return the nearest number of a type: models of that type were trained with it."""
    return torch.tensor(value, dtype=dtype, device="cpu").item()


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Attention(nn.Module):
    """Causal attention with grouped keys and values and rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width, bias = shape.head_width, shape.attention_bias
        self.width = width
        self.q = nn.Linear(shape.hidden, shape.heads * width, bias=bias)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * width, bias=bias)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * width, bias=bias)
        self.out = nn.Linear(shape.heads * width, shape.hidden, bias=shape.out_bias)
        self.sinks = nn.Parameter(torch.zeros(shape.heads)) if shape.sinks else None
        self.norm_whole = shape.qk_norm_whole
        q_heads, k_heads = (shape.heads, shape.kv_heads) if self.norm_whole else (1, 1)
        self.q_norm = _norm(shape, q_heads * width) if shape.qk_norm else None
        self.k_norm = _norm(shape, k_heads * width) if shape.qk_norm else None
        self.scale = shape.score_width**-0.5 if shape.score_width else None
        self.attend = attend
        self.joint: JointWeights | None = None

    def join(self) -> list[JointWeights]:
        """Compute q, k and v with one matmul from now on, where they are plain."""
        linears = (self.q, self.k, self.v)
        if self.q_norm is None and all(map(plain_linear, linears)):
            self.joint = JointWeights(linears)
        return [self.joint] if self.joint else []

    def forward(self, x_bsd: Tensor, cos_sin: Tensor, mask: Mask = None) -> Tensor:
        if self.joint is not None and 2 * cos_sin.shape[-1] == self.width:
            q_bshe, k_bske, v_bske = RotatedProjections.apply(
                x_bsd,
                self.q.weight,
                self.k.weight,
                self.v.weight,
                self.joint.weight_jd,
                cos_sin,
                self.width,
            )
            out_bshe = self.attend(q_bshe, k_bske, v_bske, mask, self.scale, self.sinks)
            return self.out(out_bshe.flatten(2))
        # As many heads as the projections give: tensor parallel ranks hold some of them each.
        q, k = self.q(x_bsd), self.k(x_bsd)
        if self.norm_whole:
            q, k = _normed(self.q_norm, q), _normed(self.k_norm, k)
        q_bshe = q.unflatten(-1, (-1, self.width))
        k_bske = k.unflatten(-1, (-1, self.width))
        v_bske = self.v(x_bsd).unflatten(-1, (-1, self.width))
        if not self.norm_whole:
            q_bshe, k_bske = _normed(self.q_norm, q_bshe), _normed(self.k_norm, k_bske)
        turned = apply_rotary(q_bshe, cos_sin), apply_rotary(k_bske, cos_sin)
        out_bshe = self.attend(*turned, v_bske, mask, self.scale, self.sinks)
        return self.out(out_bshe.flatten(2))
