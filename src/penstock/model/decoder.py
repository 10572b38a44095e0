"""The decoder: a Llama-family transformer, top to bottom.

Shape suffixes: b batch, s sequence, d hidden, h heads, k kv heads, e head width, f ffn, v vocab.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.layers import Mask, SwiGLU, apply_rotary, attend, positions_and_mask
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
        self.embed = nn.Embedding(shape.vocab, shape.hidden) if table else None
        self.layers = nn.ModuleDict({str(i): Layer(shape, i) for i in held})
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps) if self.last else None
        head = self.last and not shape.tied
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if head else None
        self.positions_and_mask = positions_and_mask
        self.loss, self.logits = summed_cross_entropy, F.linear

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
        cos_sin, mask = self.positions_and_mask(x.shape[1], starts_bs, self.shape, x.device)
        for layer in self.layers.values():
            x_bsd = layer(x_bsd, cos_sin, mask)
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
    """A decoder layer: attention, then a SwiGLU or a mixture of experts, each after a norm and
    added to the residual stream.
    """

    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        mixed = shape.moe and index >= shape.dense_layers
        self.ffn = MoE(shape) if mixed else SwiGLU(shape.hidden, shape.ffn)

    def forward(self, x_bsd: Tensor, cos_sin: Tensor, mask: Mask = None) -> Tensor:
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), cos_sin, mask)
        return x_bsd + self.ffn(self.ffn_norm(x_bsd))


class Attention(nn.Module):
    """Causal attention with grouped keys and values and rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width, bias = shape.head_width, shape.attention_bias
        self.width = width
        self.q = nn.Linear(shape.hidden, shape.heads * width, bias=bias)
        self.k = nn.Linear(shape.hidden, shape.kv_heads * width, bias=bias)
        self.v = nn.Linear(shape.hidden, shape.kv_heads * width, bias=bias)
        self.out = nn.Linear(shape.heads * width, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(width, eps=shape.norm_eps) if shape.qk_norm else None
        self.k_norm = nn.RMSNorm(width, eps=shape.norm_eps) if shape.qk_norm else None
        self.attend = attend

    def forward(self, x_bsd: Tensor, cos_sin: Tensor, mask: Mask = None) -> Tensor:
        # As many heads as the projections give: tensor parallel ranks hold some of them each.
        q_bshe = self.q(x_bsd).unflatten(-1, (-1, self.width))
        k_bske = self.k(x_bsd).unflatten(-1, (-1, self.width))
        v_bske = self.v(x_bsd).unflatten(-1, (-1, self.width))
        if self.q_norm is not None and self.k_norm is not None:
            q_bshe, k_bske = self.q_norm(q_bshe), self.k_norm(k_bske)
        out_bshe = self.attend(
            apply_rotary(q_bshe, cos_sin), apply_rotary(k_bske, cos_sin), v_bske, mask
        )
        return self.out(out_bshe.flatten(2))
