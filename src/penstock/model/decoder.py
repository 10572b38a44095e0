"""The decoder: a Llama-family transformer, top to bottom.

Shape suffixes: b batch, s sequence, d hidden, h heads, k kv heads, e head width, f ffn, v vocab.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape


class Decoder(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens_bs: Tensor, starts_bs: Tensor | None = None) -> Tensor:
        """`starts_bs` marks where documents begin: then each of them is read as if alone."""
        x_bsd = self.embed(tokens_bs)
        turn_se = rotation(tokens_bs.shape[1], self.shape, tokens_bs.device)
        sees_bss = None
        if starts_bs is not None:
            turn_se = turn_se[:, places(starts_bs)]  # [2, b, s, e/2]
            sees_bss = same_document(starts_bs)
        for layer in self.layers:
            x_bsd = layer(x_bsd, turn_se, sees_bss)
        x_bsd = self.norm(x_bsd)
        return F.linear(x_bsd, self.embed.weight) if self.head is None else self.head(x_bsd)


class Layer(nn.Module):
    """Pre-norm attention, then pre-norm SwiGLU, each added to the stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.ffn = SwiGLU(shape.hidden, shape.ffn)

    def forward(self, x_bsd: Tensor, turn_se: Tensor, sees_bss: Tensor | None = None) -> Tensor:
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), turn_se, sees_bss)
        return x_bsd + self.ffn(self.ffn_norm(x_bsd))


class Attention(nn.Module):
    """Causal attention with grouped keys and values and rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = shape.heads, shape.kv_heads, shape.head_width
        bias = shape.attention_bias
        self.q = nn.Linear(shape.hidden, self.heads * self.width, bias=bias)
        self.k = nn.Linear(shape.hidden, self.kv_heads * self.width, bias=bias)
        self.v = nn.Linear(shape.hidden, self.kv_heads * self.width, bias=bias)
        self.out = nn.Linear(self.heads * self.width, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(self.width, eps=shape.norm_eps) if shape.qk_norm else None
        self.k_norm = nn.RMSNorm(self.width, eps=shape.norm_eps) if shape.qk_norm else None

    def forward(self, x_bsd: Tensor, turn_se: Tensor, sees_bss: Tensor | None = None) -> Tensor:
        q_bshe = self.q(x_bsd).unflatten(-1, (self.heads, self.width))
        k_bske = self.k(x_bsd).unflatten(-1, (self.kv_heads, self.width))
        v_bske = self.v(x_bsd).unflatten(-1, (self.kv_heads, self.width))
        if self.q_norm is not None and self.k_norm is not None:
            q_bshe, k_bske = self.q_norm(q_bshe), self.k_norm(k_bske)
        out_bhse = F.scaled_dot_product_attention(
            rotate(q_bshe, turn_se).transpose(1, 2),
            rotate(k_bske, turn_se).transpose(1, 2),
            v_bske.transpose(1, 2),
            attn_mask=None if sees_bss is None else sees_bss.unsqueeze(1),
            is_causal=sees_bss is None,
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.out(out_bhse.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x_bsd: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_bsd)) * self.up(x_bsd))


def rotation(sequence: int, shape: ModelShape, device: torch.device) -> Tensor:
    """Cosines and sines of every position, [2, s, e/2].

    Computed anew in every forward (microseconds) rather than kept in a buffer, so that a model made
    on the meta device has nothing but parameters to fill.
    """
    half = torch.arange(0, shape.head_width, 2, device=device, dtype=torch.float32)
    frequency_e = shape.rope_theta ** (-half / shape.head_width)
    angle_se = torch.outer(torch.arange(sequence, device=device).float(), frequency_e)
    return torch.stack((angle_se.cos(), angle_se.sin()))


def places(starts_bs: Tensor) -> Tensor:
    """The place of each token in its document, counted from 0; the first token begins one too."""
    at_s = torch.arange(starts_bs.shape[1], device=starts_bs.device)
    begin_bs = torch.where(starts_bs, at_s, 0).cummax(1).values
    return at_s - begin_bs


def same_document(starts_bs: Tensor) -> Tensor:
    """Whether the token of a row may see that of a column: not a later one, not another document's.

    A square of booleans for each sample: what a kernel that knows documents would not need.
    """
    document_bs = starts_bs.cumsum(1)
    same_bss = document_bs.unsqueeze(2) == document_bs.unsqueeze(1)
    return same_bss.tril()


def rotate(x_bshe: Tensor, turn_se: Tensor) -> Tensor:
    """Rotate the two halves of each head (the Hugging Face order of channels, not interleaved)."""
    cos, sin = turn_se.to(x_bshe.dtype).unsqueeze(-2)
    a, b = x_bshe.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def init_std(name: str, shape: ModelShape) -> float:
    """Standard deviation of a weight's first values.

    0.02 at the width of 768 and up; narrower models start wider. The two matrices that write into
    the residual stream are scaled down with depth so that its variance does not grow with it.
    An input embedding of its own starts at 1: at 0.02 the first layers drown it, and small models
    were half a nat behind after 1M tokens. A tied one must also start as a head, near ln(vocab).
    """
    if not shape.tied and name in ("embed.weight", "head.weight"):
        return 1.0 if name == "embed.weight" else 0.02
    std = 0.02 if shape.hidden >= 768 else 0.02 * (768 / shape.hidden) ** 0.5
    if name.endswith(("attention.out.weight", "ffn.down.weight")):
        return std / (2 * shape.layers) ** 0.5
    return std
