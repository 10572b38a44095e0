"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads come
from one narrow vector per token.

It is computed in its training form, with whole keys and values. The form that folds the
up-projections into queries and outputs saves memory traffic when single tokens are decoded, and
multiplies the work of a training step.

Shape suffixes as in `model/decoder.py`; r rank of the queries, c rank of keys and values, p rotated
channels.
"""

import torch
from torch import Tensor, nn

from penstock.catalog.rope import YarnScaling
from penstock.catalog.shapes import ModelShape
from penstock.model.layers import Mask, apply_rotary, attend

LATENT_EPS = 1e-6  # of the norms inside, whatever the config says of the others


class LatentAttention(nn.Module):
    """Causal attention with compressed queries, keys and values.

    A head's query and key have channels without a position and rotated ones. The rotated key is
    one for all heads, and comes with the compressed keys and values out of `kv_down`.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, heads, rank = shape.hidden, shape.heads, shape.q_rank
        self.nope, self.rope, self.v_width = shape.nope_dim, shape.rope_dim, shape.v_dim
        self.kv_rank, self.pairs = shape.kv_rank, shape.rope_pairs
        self.q_down = nn.Linear(hidden, rank, bias=False) if rank else None
        self.q_down_norm = nn.RMSNorm(rank, eps=LATENT_EPS) if rank else None
        self.q = nn.Linear(rank or hidden, heads * shape.score_channels, bias=False)
        self.kv_down = nn.Linear(hidden, shape.kv_rank + self.rope, bias=False)
        self.kv_down_norm = nn.RMSNorm(shape.kv_rank, eps=LATENT_EPS)
        self.kv = nn.Linear(shape.kv_rank, heads * (self.nope + self.v_width), bias=False)
        self.out = nn.Linear(heads * self.v_width, hidden, bias=False)
        scaling = shape.rope_scaling
        stretched = scaling.score_scale if isinstance(scaling, YarnScaling) else 1.0
        self.scale = shape.score_channels**-0.5 * stretched
        self.attend = attend

    def forward(self, x_bsd: Tensor, cos_sin: Tensor, mask: Mask = None) -> Tensor:
        # As many heads as `q` and `kv` give: tensor parallel ranks hold some of them each.
        x_bsr = x_bsd
        if self.q_down is not None and self.q_down_norm is not None:
            x_bsr = self.q_down_norm(self.q_down(x_bsd))
        q_bshe = self.q(x_bsr).unflatten(-1, (-1, self.nope + self.rope))
        still_bshe, turned_bshp = q_bshe.split((self.nope, self.rope), -1)
        latent_bsc, key_bsp = self.kv_down(x_bsd).split((self.kv_rank, self.rope), -1)
        kv_bshe = self.kv(self.kv_down_norm(latent_bsc)).unflatten(
            -1, (-1, self.nope + self.v_width)
        )
        k_bshe, v_bshe = kv_bshe.split((self.nope, self.v_width), -1)
        key_bshp = apply_rotary(key_bsp.unsqueeze(2), cos_sin, self.pairs)
        out_bshe = self.attend(
            torch.cat((still_bshe, apply_rotary(turned_bshp, cos_sin, self.pairs)), -1),
            torch.cat((k_bshe, key_bshp.expand(-1, -1, k_bshe.shape[2], -1)), -1),
            v_bshe,
            mask,
            self.scale,
        )
        return self.out(out_bshe.flatten(2))
