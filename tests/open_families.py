"""Tiny open models with random weights, made by transformers: the other side of import and export.

transformers computes norms and routers in float32 whatever a model is in; `in_double` lifts that,
so that two implementations can be compared to 1e-10 and not only to what float32 lets one see.
"""

import json
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB = 96
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,  # its row of the embedding would get no gradient there
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
# name: (family, what its config has beyond the sizes)
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama-3.1": ("llama", {"rope_theta": 5e5, "rope_scaling": _LLAMA3}),
    "llama-3.2": ("llama", {"rope_scaling": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None, "rope_theta": 1e6, "head_dim": 16}),
    "mistral-window": ("mistral", {"sliding_window": 64}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_theta": 1e6}),
    "phi-4": ("phi3", {"rope_theta": 2.5e5}),
    # Heads of 16, of which 12 channels turn; sequences up to the original context.
    "phi-4-mini": (
        "phi3",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.4, 1.5, 1.7],
                "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
            },
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo2-yarn": ("olmo2", {"rope_parameters": _YARN | {"rope_theta": 1e4}}),
    # Shorter than the test's sequences, so that the window counts; a pattern that is not the usual.
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": _YARN | {"rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 7,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-usual": ("gemma3_text", {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "olmo3-usual": ("olmo3", {"sliding_window": 16, "num_hidden_layers": 5}),
}
MOE: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "qwen3_moe",
        {**_EXPERTS, "num_experts": 4, "head_dim": 16, "mlp_only_layers": [0]},
    ),
    "qwen3-moe-raw": ("qwen3_moe", {**_EXPERTS, "num_experts": 4, "norm_topk_prob": False}),
    "dots1": (
        "dots1",
        {
            **_EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.5,
        },
    ),
}
_GLM = {**_EXPERTS, "n_routed_experts": 4, "head_dim": 16, "routed_scaling_factor": 2.5}
MOE |= {
    "glm-4.5": (
        "glm4_moe",
        {**_GLM, "use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 2},
    ),
    "glm-4.5-air": ("glm4_moe", {**_GLM, "n_shared_experts": 2, "partial_rotary_factor": 0.25}),
}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 10,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "routed_scaling_factor": 2.5,
}
_MSCALE = _YARN | {"rope_theta": 1e4, "mscale": 0.8, "mscale_all_dim": 0.6}
MOE |= {
    # Experts in four groups of two, of which a token chooses two.
    "deepseek-v3": (
        "deepseek_v3",
        {
            **_LATENT,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": _MSCALE,
        },
    ),
    "deepseek-v3-plain": (
        "deepseek_v3",
        {
            **_LATENT,
            "n_group": 1,
            "topk_group": 1,
            "rope_interleave": False,
            "q_lora_rank": None,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
        },
    ),
    "deepseek-v2": (
        "deepseek_v2",
        {
            **_LATENT,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": _MSCALE | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek-v2-lite": (
        "deepseek_v2",
        {**_LATENT, "norm_topk_prob": False, "q_lora_rank": None, "first_k_dense_replace": 1},
    ),
}
_GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
_UNTRUNCATED = _YARN | {"truncate": False, "rope_theta": 1.5e5}
MOE |= {
    "gpt-oss": ("gpt_oss", {**_GPT_OSS, "sliding_window": 7, "rope_parameters": _UNTRUNCATED}),
    "gpt-oss-plain": (
        "gpt_oss",
        {
            **_GPT_OSS,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}
ALL = DENSE | MOE


def made(name: str, seed: int = 0, **more: Any) -> nn.Module:
    """The model, on random weights that are far from what each layer's init would give.

    `more` are fields of its config.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    family, own = ALL[name]
    config = AutoConfig.for_model(family, **deepcopy({**_SIZES, **own, **more}))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*model.parameters(), *_balances(model)]:
            middle = 1.0 if tensor.dim() == 1 and tensor.mean() == 1 else 0.0
            tensor.copy_(middle + 0.2 * torch.randn(tensor.shape, generator=draw))
    return model.eval()


def saved(name: str, folder: Path, shard: str = "5GB", **more: Any) -> nn.Module:
    model = made(name, **more)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def add_tokenizer(folder: Path, texts: list[str], vocab: int, template: str = "") -> bytes:
    """A tokenizer of these texts beside a model; as it stands in its tokenizer.json."""
    from penstock.data.tokenize.train import train_tokenizer

    content = train_tokenizer(texts, vocab)
    (folder / "tokenizer.json").write_bytes(content)
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return content


def in_double(model: nn.Module) -> nn.Module:
    """The model in float64, all of it but the angles of the rotary positions."""
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = MethodType(_norm, module)
        elif kind.lower().endswith("topkrouter"):
            module.forward = MethodType(_router, module)
        elif kind == "DeepseekV2RotaryEmbedding":
            module.forward = MethodType(_angles, module)
        elif kind == "DeepseekV2Attention":
            import_module(type(module).__module__).apply_rotary_emb = _rotary_pairs
    model = model.double()
    for module in model.modules():
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return model


def _balances(model: nn.Module) -> list[Tensor]:
    return [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]


def _norm(self: Any, x: Tensor) -> Tensor:
    if type(self).__name__ == "Gemma3RMSNorm":
        return F.rms_norm(x, x.shape[-1:], 1.0 + self.weight, self.eps)
    return F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def _angles(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:
    """Theirs by cosine and sine, as all other families have them: `torch.polar` differs by a bit
    of float32.
    """
    turn = position_ids.unsqueeze(-1).float() * self.inv_freq.float()
    return torch.complex(turn.cos(), turn.sin()) * self.attention_scaling


def _rotary_pairs(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Theirs without the cast to float32."""

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * angles.unsqueeze(1)).flatten(-2)

    return turned(q), turned(k)


def _router(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = F.linear(x.reshape(-1, x.shape[-1]), self.weight, getattr(self, "bias", None))
    groups = getattr(self, "num_group", None) or 1
    if hasattr(self, "e_score_correction_bias"):
        scores = logits.sigmoid()
        wanted = scores + self.e_score_correction_bias
        best = wanted.unflatten(1, (groups, -1)).topk(2, -1).values.sum(-1)
    else:
        scores = wanted = logits.softmax(-1)
        best = scores.unflatten(1, (groups, -1)).amax(-1)
    if groups > 1:
        kept = torch.zeros_like(best).scatter(1, best.topk(self.topk_group, -1).indices, 1.0)
        wanted = wanted.where(kept.repeat_interleave(wanted.shape[1] // groups, 1) > 0, -torch.inf)
    chosen = wanted.topk(self.top_k, -1).indices
    weights = scores.gather(1, chosen)
    v2 = type(self).__name__ == "DeepseekV2TopkRouter"  # which never makes them add up to one
    if not v2 and getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights * getattr(self, "routed_scaling_factor", 1.0), chosen
