"""DeepSeek-V2 and V3: latent attention and experts by groups, in their configs and ours."""

from typing import Any

from penstock.catalog.open.config import HubConfig, Unsupported
from penstock.catalog.open.experts import read_shared, write_shared
from penstock.catalog.shapes import ModelShape

_V3_USUAL = {
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
}
_V2_USUAL = {"n_shared_experts": 2, "n_routed_experts": 64}


def read_deepseek_v2(config: HubConfig, layers: int) -> dict[str, Any]:
    config.require("norm_topk_prob", False, False)  # which transformers does not read
    config.require("scoring_func", "softmax", "softmax")
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise Unsupported(
            f'topk_method = "{method}" is not built; "greedy" and "group_limited_greedy" are'
        )
    return {
        **_read_latent(config),
        **read_shared(HubConfig(_V2_USUAL).merged(config), layers),
        **(_read_groups(config) if method == "group_limited_greedy" else {}),
        "rope_pairs": True,
        "router_normalised": False,
    }


def write_deepseek_v2(shape: ModelShape) -> dict[str, Any]:
    return {
        **_write_latent(shape),
        "topk_method": "group_limited_greedy" if shape.expert_groups else "greedy",
    }


def read_deepseek_v3(config: HubConfig, layers: int) -> dict[str, Any]:
    config.require("scoring_func", "sigmoid", "sigmoid")
    config.require("topk_method", "noaux_tc", "noaux_tc")
    usual = HubConfig(_V3_USUAL).merged(config)
    return {
        **_read_latent(config),
        **read_shared(usual, layers),
        **_read_groups(usual),
        "rope_pairs": config.flag("rope_interleave", True),
        "router": "sigmoid",
        "router_normalised": usual.flag("norm_topk_prob", True),
    }


def write_deepseek_v3(shape: ModelShape) -> dict[str, Any]:
    return {
        **_write_latent(shape),
        "rope_interleave": shape.rope_pairs,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 0,
    }


def _read_latent(config: HubConfig) -> dict[str, Any]:
    """Return the widths of latent attention. A missing q_lora_rank is the usual one, null none."""
    config.require("moe_layer_freq", 1, 1)
    heads = config.count("num_attention_heads")
    if (keys := config.count("num_key_value_heads", heads)) != heads:
        raise Unsupported(
            f"num_key_value_heads = {keys}: latent attention has as many as num_attention_heads = "
            f"{heads}"
        )
    rope = config.count("qk_rope_head_dim", 64)
    if rope % 2:
        raise Unsupported(f"qk_rope_head_dim = {rope}: rotary positions need an even width")
    return {
        "head_dim": None,
        "q_rank": config.count("q_lora_rank", 1536, nothing=True),
        "kv_rank": config.count("kv_lora_rank", 512),
        "rope_dim": rope,
        "nope_dim": config.count("qk_nope_head_dim", 128),
        "v_dim": config.count("v_head_dim", 128),
    }


def _read_groups(config: HubConfig) -> dict[str, Any]:
    groups = config.count("n_group", 1)
    if groups == 1:
        return {}
    return {"expert_groups": groups, "groups_active": config.count("topk_group")}


def _write_latent(shape: ModelShape) -> dict[str, Any]:
    return {
        **write_shared(shape),
        "n_group": shape.expert_groups or 1,
        "topk_group": shape.groups_active or 1,
        "head_dim": shape.rope_dim,  # what transformers means by it in these families
        "q_lora_rank": shape.q_rank or None,
        "kv_lora_rank": shape.kv_rank,
        "qk_rope_head_dim": shape.rope_dim,
        "qk_nope_head_dim": shape.nope_dim,
        "v_head_dim": shape.v_dim,
    }
