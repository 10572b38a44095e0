"""Mixtures of experts of open models: reading and writing them in each family's config."""

from typing import Any

from penstock.catalog.open.config import HubConfig, Unsupported
from penstock.catalog.shapes import ModelShape


def read_mixtral(config: HubConfig, layers: int) -> dict[str, Any]:
    return {
        "experts": config.count("num_local_experts", config.count("num_experts", 8)),
        "experts_active": config.count("num_experts_per_tok", 2),
        "expert_ffn": config.count("intermediate_size"),
    }


def write_mixtral(shape: ModelShape) -> dict[str, Any]:
    return {
        "intermediate_size": shape.expert_ffn,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.experts_active,
        "sliding_window": shape.window or None,
    }


def read_qwen3_moe(config: HubConfig, layers: int) -> dict[str, Any]:
    step = config.count("decoder_sparse_step", 1)
    only = set(config.wholes("mlp_only_layers"))
    dense = [i for i in range(layers) if i in only or (i + 1) % step]
    if dense != list(range(len(dense))) or len(dense) == layers:
        raise Unsupported(
            f"mlp_only_layers = {sorted(only)}, decoder_sparse_step = {step}: dense layers must "
            "be the first ones, and experts in the rest"
        )
    return {
        "experts": config.count("num_experts", config.count("num_local_experts", 128)),
        "experts_active": config.count("num_experts_per_tok", 8),
        "expert_ffn": config.count("moe_intermediate_size"),
        "dense_layers": len(dense),
        "router_normalised": config.flag("norm_topk_prob", False),
    }


def write_qwen3_moe(shape: ModelShape) -> dict[str, Any]:
    return {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_active,
        "moe_intermediate_size": shape.expert_ffn,
        "norm_topk_prob": shape.router_normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(shape.dense_layers)),
    }


def read_dots1(config: HubConfig, layers: int) -> dict[str, Any]:
    for name in ("n_group", "topk_group"):
        config.require(name, 1, 1)
    return {
        **read_shared(config, layers),
        "router": "sigmoid",
        "router_normalised": config.flag("norm_topk_prob", False),
    }


def read_shared(config: HubConfig, layers: int) -> dict[str, Any]:
    """Return routed and shared experts, and the dense layers before them."""
    dense = config.whole("first_k_dense_replace", 0)
    if dense >= layers:
        raise Unsupported(f"first_k_dense_replace = {dense} of {layers} layers leaves no experts")
    return {
        "experts": config.count("n_routed_experts"),
        "experts_active": config.count("num_experts_per_tok"),
        "expert_ffn": config.count("moe_intermediate_size"),
        "shared_experts": config.count("n_shared_experts"),
        "dense_layers": dense,
        "routed_scale": config.number("routed_scaling_factor", 1.0),
    }


def read_glm4_moe(config: HubConfig, layers: int) -> dict[str, Any]:
    config.count("num_key_value_heads")
    usual = HubConfig({"n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True})
    return {
        **read_dots1(usual.merged(config), layers),
        "qk_norm": config.flag("use_qk_norm", False),
        "attention_bias": config.flag("attention_bias", False),
    }


def write_glm4_moe(shape: ModelShape) -> dict[str, Any]:
    return {
        **write_shared(shape),
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": shape.qk_norm,
        "attention_bias": shape.attention_bias,
        "partial_rotary_factor": (shape.rotary_width or shape.head_width) / shape.head_width,
    }


def write_dots1(shape: ModelShape) -> dict[str, Any]:
    return {
        **write_shared(shape),
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": None,
        "max_window_layers": shape.layers,
    }


def write_shared(shape: ModelShape) -> dict[str, Any]:
    """Return the fields of routed and shared experts."""
    return {
        "n_routed_experts": shape.experts,
        "n_shared_experts": shape.shared_experts,
        "num_experts_per_tok": shape.experts_active,
        "moe_intermediate_size": shape.expert_ffn,
        "first_k_dense_replace": shape.dense_layers,
        "norm_topk_prob": shape.router_normalised,
        "routed_scaling_factor": shape.routed_scale,
    }
