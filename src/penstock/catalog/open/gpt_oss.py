"""gpt-oss: sinks, windows in every second layer, biases, and a clamped SwiGLU, in its config and
ours.
"""

from typing import Any

from penstock.catalog.open.config import HubConfig
from penstock.catalog.open.rope import write_scaling, write_window_pattern
from penstock.catalog.shapes import ModelShape

# Defaults of the class in transformers, for configs that leave them out.
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ALPHA, _LIMIT = 1.702, 7.0  # `model/experts.py` computes with these


def read_gpt_oss(config: HubConfig, layers: int) -> dict[str, Any]:
    config.require("attention_bias", True, True)
    config.require("swiglu_alpha", _ALPHA, _ALPHA)
    config.require("swiglu_limit", _LIMIT, _LIMIT)
    return {
        "out_bias": True,
        "sinks": True,
        "activation": "clamped",
        "experts": config.count("num_local_experts", config.count("num_experts", 128)),
        "experts_active": config.count("num_experts_per_tok", 4),
        "expert_ffn": config.count("intermediate_size"),
        "expert_bias": True,
    }


def write_gpt_oss(shape: ModelShape) -> dict[str, Any]:
    # Not null where nothing is scaled: that would be the usual scaling.
    scaling = write_scaling(shape.rope_scaling) or {"rope_type": "default"}
    return {
        "intermediate_size": shape.expert_ffn,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.experts_active,
        "attention_bias": True,
        "swiglu_alpha": _ALPHA,
        "swiglu_limit": _LIMIT,
        "rope_parameters": {**scaling, "rope_theta": shape.rope_theta},
        "rope_scaling": None,
        **write_window_pattern(shape),
    }
