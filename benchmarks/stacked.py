"""K replicas of a small decoder side by side on one device: every weight has a replica as its first
dimension.

One forward and one backward pass train all of them, each on its own samples, as if each had a
device: a row of `sync_loss.py` takes little longer for four replicas than for one. It is the
decoder of `model/decoder.py` (RMS norms, grouped attention, SwiGLU), which the test of this file
compares it with.

Suffixes: k replicas, b samples, s sequence, n tokens, d hidden, v vocab.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.catalog.shapes import ModelShape
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.model.layers import apply_rotary, rotary_cos_sin

Weights = dict[str, Tensor]  # by the decoder's names, [k, ...]


def first_weights(shape: ModelShape, replicas: int, seed: int, device: torch.device) -> Weights:
    """Draw the weights of one decoder and give them to every replica."""
    model = decoder_on_meta(shape)
    initialize(model, device, seed)
    return {
        name: param.detach().expand(replicas, *param.shape).clone().requires_grad_()
        for name, param in model.named_parameters()
    }


def of_replica(weights: Mapping[str, Tensor], replica: int) -> dict[str, nn.Parameter]:
    """Return the weights of one replica; changing them changes the stack."""
    return {name: nn.Parameter(weight.detach()[replica]) for name, weight in weights.items()}


def losses(weights: Weights, samples_kbs: Tensor, shape: ModelShape) -> Tensor:
    """Return the mean loss of each replica; the last token of a sample is a target only."""
    inputs_kbs, targets_kbs = samples_kbs[..., :-1], samples_kbs[..., 1:]
    with torch.autocast(samples_kbs.device.type, torch.bfloat16):
        x_knd = _hidden(weights, inputs_kbs, shape)
        logits_knv = _linear(x_knd, weights["head.weight"])
    every = F.cross_entropy(
        logits_knv.flatten(0, 1).float(), targets_kbs.reshape(-1), reduction="none"
    )
    return every.view(len(samples_kbs), -1).mean(1)


def _hidden(weights: Weights, inputs_kbs: Tensor, shape: ModelShape) -> Tensor:
    replicas, samples, sequence = inputs_kbs.shape
    first_k = torch.arange(replicas, device=inputs_kbs.device) * shape.vocab
    table = weights["embed.weight"].flatten(0, 1)
    x_knd = F.embedding((inputs_kbs + first_k[:, None, None]).flatten(1), table)
    cos_sin = rotary_cos_sin(torch.arange(sequence, device=inputs_kbs.device), shape)
    rows = (replicas * samples, sequence, -1, shape.head_width)
    for layer in range(shape.layers):
        own = {
            n.split(".", 2)[2]: w for n, w in weights.items() if n.startswith(f"layers.{layer}.")
        }
        normed = _norm(x_knd, own["attention_norm.weight"], shape)
        q, k, v = (_linear(normed, own[f"attention.{m}.weight"]).reshape(rows) for m in "qkv")
        q, k = apply_rotary(q, cos_sin), apply_rotary(k, cos_sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        seen = seen.transpose(1, 2).reshape(replicas, samples * sequence, -1)
        x_knd = x_knd + _linear(seen, own["attention.out.weight"])
        normed = _norm(x_knd, own["ffn_norm.weight"], shape)
        gate = F.silu(_linear(normed, own["ffn.gate.weight"]))
        up = _linear(normed, own["ffn.up.weight"])
        x_knd = x_knd + _linear(gate * up, own["ffn.down.weight"])
    return _norm(x_knd, weights["norm.weight"], shape)


def _linear(x_knd: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x_knd, weight.mT)


def _norm(x_knd: Tensor, weight_kd: Tensor, shape: ModelShape) -> Tensor:
    wide = x_knd.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + shape.norm_eps)
    return (scaled * weight_kd[:, None]).to(x_knd.dtype)
