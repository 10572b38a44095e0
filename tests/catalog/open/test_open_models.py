"""A config.json as a shape and back; what we do not compute is refused by the field that asks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import models
from penstock.catalog.open.models import FAMILIES, config_of, family_of, shape_of
from penstock.catalog.rope import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
)
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError

LLAMA31 = {  # as the hub has it for 8B
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    "vocab_size": 300,
}
QWEN2 = SMALL | {"model_type": "qwen2"}
QWEN3 = SMALL | {"model_type": "qwen3", "head_dim": 32}
MISTRAL = SMALL | {"model_type": "mistral"}
MIXTRAL = SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = SMALL | {
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
DOTS1 = SMALL | {
    "model_type": "dots1",
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
GLM4_MOE = DOTS1 | {"model_type": "glm4_moe", "num_key_value_heads": 4}
DEEPSEEK3 = DOTS1 | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_group": 4,
    "topk_group": 2,
}
DEEPSEEK2 = DEEPSEEK3 | {
    "model_type": "deepseek_v2",
    "norm_topk_prob": False,
    "topk_method": "group_limited_greedy",
}
GPT_OSS = SMALL | {
    "model_type": "gpt_oss",
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 4,
}
OLMO2 = SMALL | {"model_type": "olmo2"}
OLMO3 = SMALL | {"model_type": "olmo3", "sliding_window": 64}
GEMMA3 = SMALL | {"model_type": "gemma3_text", "num_key_value_heads": 4, "sliding_window": 64}
PHI3 = SMALL | {"model_type": "phi3"}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
OF = {
    c["model_type"]: c
    for c in (
        SMALL,
        QWEN2,
        QWEN3,
        MISTRAL,
        PHI3,
        OLMO2,
        OLMO3,
        GEMMA3,
        MIXTRAL,
        QWEN3_MOE,
        DOTS1,
        GLM4_MOE,
        DEEPSEEK3,
        DEEPSEEK2,
        GPT_OSS,
    )
}


def test_llama_31_is_the_preset_with_its_scaling() -> None:
    scaling = Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=8192)
    preset = models.preset("llama-3.1-8b")
    assert shape_of(LLAMA31) == replace(preset, rope_scaling=scaling, context=131072)


def test_the_new_spelling_says_the_same() -> None:
    new = {k: v for k, v in LLAMA31.items() if k not in ("rope_scaling", "rope_theta")}
    old_rope: Any = LLAMA31["rope_scaling"]
    new["rope_parameters"] = {**old_rope, "rope_theta": 500000.0}
    assert shape_of(new) == shape_of(LLAMA31)
    moe = {k: v for k, v in QWEN3_MOE.items() if k != "num_experts"} | {"num_local_experts": 16}
    assert shape_of(moe) == shape_of(QWEN3_MOE)


def test_what_a_config_leaves_out_is_the_familys_own() -> None:
    assert shape_of(SMALL).kv_heads == 8
    assert shape_of(SMALL).rope_theta == 1e4
    assert shape_of(MIXTRAL).rope_theta == 1e6
    assert shape_of(MIXTRAL).norm_eps == 1e-5
    without = {k: v for k, v in QWEN3.items() if k != "head_dim"}
    assert shape_of(without).head_width == 128
    assert shape_of(SMALL).head_dim is None
    assert shape_of(SMALL | {"head_dim": 8}) == shape_of(SMALL)


def test_the_parts_of_each_family() -> None:
    assert shape_of(QWEN2).attention_bias
    assert shape_of(QWEN3).qk_norm
    assert shape_of(QWEN3).head_dim == 32
    mixtral = shape_of(MIXTRAL)
    assert (mixtral.experts, mixtral.experts_active, mixtral.expert_ffn) == (4, 2, 128)
    assert (mixtral.router, mixtral.router_normalised) == ("softmax", True)
    raw = shape_of(QWEN3_MOE | {"norm_topk_prob": False})
    assert not raw.router_normalised
    assert raw.qk_norm
    dots = shape_of(DOTS1)
    assert (dots.router, dots.routed_scale, dots.shared_experts) == ("sigmoid", 2.5, 2)
    assert dots.dense_layers == 1


def test_a_window_is_kept_so_that_a_longer_sequence_can_be_refused() -> None:
    assert shape_of(MISTRAL).window == 4096  # what its class has where the file is silent
    assert shape_of(MISTRAL | {"sliding_window": None}).window == 0
    assert shape_of(MISTRAL | {"sliding_window": 128}).window == 128
    assert shape_of(MIXTRAL).window == 0


def test_layers_of_olmo_3_have_a_window_but_every_fourth() -> None:
    usual = shape_of(OLMO3)
    assert (usual.window, usual.full_layers, usual.longest) == (64, (3,), 256)
    assert [usual.attention_kind(layer) for layer in range(4)] == [1, 1, 1, 0]
    full, near = usual.attention_kinds
    assert (full.window, near.window, full.rope_theta, near.rope_theta) == (0, 64, 5e5, 5e5)
    # A longer context: only layers that see everything are scaled, as the hub's files say it.
    long = shape_of(OLMO3 | {"rope_theta": 5e5, "rope_scaling": YARN})
    full, near = long.attention_kinds
    assert full.rope_scaling == YarnScaling(4.0, 32.0, 1.0, 64, pytest.approx(1.1386294))
    assert near.rope_scaling is None
    types = ["sliding_attention"] * 4
    assert shape_of(OLMO3 | {"layer_types": types}).longest == 64
    assert shape_of(OLMO3 | {"layer_types": ["full_attention"] * 4}).window == 0


def test_phi_4_mini_turns_some_channels_up_to_its_original_context() -> None:
    config = PHI3 | {"original_max_position_embeddings": 64, "partial_rotary_factor": 0.5}
    scaling = {"type": "longrope", "short_factor": [1.0, 3.0], "long_factor": [2.0, 4.0]}
    shape = shape_of(config | {"rope_scaling": scaling})
    assert (shape.rotary_width, shape.head_width) == (4, 8)
    assert (shape.longest, shape.limits[64]) == (64, "context before longrope")
    assert shape.rope_scaling == LongScaling(
        (1.0, 3.0), (2.0, 4.0), 64, pytest.approx((1 + 1 / 3) ** 0.5)
    )
    assert shape_of(PHI3).longest == 256


def test_gemma_3_has_two_rotary_bases_and_six_layers_to_a_full_one() -> None:
    shape = shape_of(GEMMA3 | {"num_hidden_layers": 12})
    assert (shape.full_layers, shape.window, shape.tied, shape.head_width) == (
        (5, 11),
        64,
        True,
        256,
    )
    full, near = shape.attention_kinds
    assert (full.rope_theta, near.rope_theta, near.rope_scaling) == (1e6, 1e4, None)
    assert (shape.norms, shape.norm_offset, shape.embed_scaled) == ("both", True, True)
    old = GEMMA3 | {"sliding_window_pattern": 2, "rope_local_base_freq": 2e4}
    scaled = shape_of(old | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert scaled.full_layers == (1, 3)
    full, near = scaled.attention_kinds
    assert (full.rope_scaling, near.rope_theta) == (LinearScaling(8.0), 2e4)
    assert shape_of(GEMMA3 | {"query_pre_attn_scalar": 168}).score_width == 168


def test_glm_4_moe_says_which_norms_and_biases_it_has() -> None:
    plain = shape_of(GLM4_MOE)
    assert (plain.qk_norm, plain.attention_bias, plain.rotary_width) == (False, False, 4)
    full = shape_of(GLM4_MOE | {"use_qk_norm": True, "attention_bias": True})
    assert (full.qk_norm, full.attention_bias) == (True, True)
    silent = {k: v for k, v in GLM4_MOE.items() if k not in ("n_shared_experts", "norm_topk_prob")}
    assert (shape_of(silent).shared_experts, shape_of(silent).router_normalised) == (1, True)


def test_deepseek_has_latent_attention_and_groups_of_experts() -> None:
    shape = shape_of(DEEPSEEK3)
    assert (shape.q_rank, shape.kv_rank, shape.rope_dim, shape.nope_dim) == (24, 16, 4, 8)
    assert (shape.score_channels, shape.rotated_channels, shape.v_dim) == (12, 4, 6)
    assert (shape.expert_groups, shape.groups_active, shape.rope_pairs) == (4, 2, True)
    assert (shape.router, shape.router_normalised, shape.head_dim) == ("sigmoid", True, None)
    lite = shape_of(DEEPSEEK2 | {"q_lora_rank": None, "topk_method": "greedy"})
    assert (lite.q_rank, lite.expert_groups, lite.router) == (0, 0, "softmax")
    assert not lite.router_normalised
    assert not shape_of(DEEPSEEK3 | {"rope_interleave": False}).rope_pairs


def test_mscale_of_yarn_scales_rotations_and_scores() -> None:
    told = YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}
    scaling = shape_of(DEEPSEEK3 | {"rope_scaling": told}).rope_scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.amplitude == pytest.approx(1.1386294 / 1.0693147)
    assert scaling.score_scale == pytest.approx(1.0693147**2)
    alone = shape_of(DEEPSEEK3 | {"rope_scaling": YARN | {"mscale_all_dim": 0}}).rope_scaling
    assert alone == YarnScaling(4.0, 32.0, 1.0, 64, pytest.approx(1.1386294))
    assert alone.score_scale == 1


def test_gpt_oss_has_a_window_in_every_second_layer_and_its_own_scaling() -> None:
    shape = shape_of(GPT_OSS)
    assert (shape.window, shape.full_layers, shape.window_theta) == (128, (1, 3), 0.0)
    assert (shape.sinks, shape.attention_bias, shape.out_bias, shape.expert_bias) == (True,) * 4
    assert (shape.activation, shape.expert_ffn, shape.head_width) == ("clamped", 128, 64)
    # What its class has where a config is silent, or says null.
    scaling = YarnScaling(32.0, 32.0, 1.0, 4096, pytest.approx(1.3465736), truncated=False)
    assert shape.rope_scaling == shape_of(GPT_OSS | {"rope_scaling": None}).rope_scaling == scaling
    assert [kind.rope_scaling for kind in shape.attention_kinds] == [scaling, scaling]
    plain = shape_of(GPT_OSS | {"rope_parameters": PLAIN})
    assert (plain.rope_theta, plain.rope_scaling) == (1e4, None)


def test_quantised_weights_are_refused_with_the_way_to_others() -> None:
    with pytest.raises(PenstockError, match=r"Mxfp4Config\(dequantize=True\)"):
        shape_of(GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}})
    with pytest.raises(PenstockError, match=r"FineGrainedFP8Config\(dequantize=True\)"):
        shape_of(DEEPSEEK3 | {"quantization_config": {"quant_method": "fp8"}})


def test_windows_cost_less() -> None:
    usual = shape_of(OLMO3)
    assert usual.attended_tokens(64) == 64
    assert usual.attended_tokens(256) == (256 + 3 * 64 * (2 - 64 / 256)) / 4
    everything = replace(usual, window=0, full_layers=())
    assert usual.flops_per_token(64) == everything.flops_per_token(64)
    assert usual.flops_per_token(256) < everything.flops_per_token(256)


def test_dense_layers_of_qwen_moe_are_a_prefix() -> None:
    assert shape_of(QWEN3_MOE | {"mlp_only_layers": [1, 0]}).dense_layers == 2
    assert (
        shape_of(QWEN3_MOE | {"num_hidden_layers": 2, "decoder_sparse_step": 2}).dense_layers == 1
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SMALL | {"model_type": "gemma3"}, "save its language model alone"),
        (SMALL | {"model_type": "phi"}, '"phi"'),
        (PHI3 | {"rope_scaling": YARN}, '"yarn"'),
        (PHI3 | {"rope_scaling": LONG | {"short_factor": [1.0] * 3}}, "short_factor has 3 values"),
        (PHI3 | {"rope_scaling": LONG | {"long_factor": [1.0, "x"] * 2}}, "long_factor"),
        (PHI3 | {"partial_rotary_factor": 0.4}, "partial_rotary_factor = 0.4: 3 of 8"),
        (PHI3 | {"resid_pdrop": 0.1}, "resid_pdrop = 0.1"),
        (SMALL | {"rope_scaling": LONG}, '"longrope"'),
        (DEEPSEEK3 | {"num_key_value_heads": 2}, "num_key_value_heads = 2"),
        (DEEPSEEK3 | {"qk_rope_head_dim": 3}, "qk_rope_head_dim = 3"),
        (DEEPSEEK3 | {"attention_bias": True}, "attention_bias = True"),
        (DEEPSEEK3 | {"n_group": 5}, "16 experts in 5 groups"),
        (DEEPSEEK3 | {"topk_group": 5}, "5 of 4 groups"),
        (DEEPSEEK3 | {"topk_group": 1, "num_experts_per_tok": 5}, "1 groups of 4 experts"),
        (DEEPSEEK3 | {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        (DEEPSEEK3 | {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        (DEEPSEEK3 | {"rope_scaling": LONG}, '"longrope"'),
        (DEEPSEEK2 | {"norm_topk_prob": True}, "norm_topk_prob = True"),
        (DEEPSEEK2 | {"topk_method": "noaux_tc"}, 'topk_method = "noaux_tc"'),
        (DEEPSEEK2 | {"kv_lora_rank": 1 << 30}, "kv_rank"),
        ({k: v for k, v in SMALL.items() if k != "model_type"}, "model_type is missing"),
        ({k: v for k, v in SMALL.items() if k != "hidden_size"}, "hidden_size is missing"),
        (SMALL | {"hidden_size": "64"}, "hidden_size = '64'"),
        (SMALL | {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        (SMALL | {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        (SMALL | {"head_dim": 9}, "width 9"),
        (SMALL | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (SMALL | {"attention_bias": True}, "attention_bias = True"),
        (SMALL | {"mlp_bias": True}, "mlp_bias = True"),
        (SMALL | {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (SMALL | {"rope_scaling": {"type": "linear", "factor": 2.0}}, '"linear"'),
        (SMALL | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, '"dynamic"'),
        (SMALL | {"rope_parameters": YARN | {"mscale": "1"}}, "mscale"),
        (OLMO3 | {"rope_scaling": YARN | {"truncate": False}}, "truncate = False"),
        (GPT_OSS | {"swiglu_limit": 5.0}, "swiglu_limit = 5.0"),
        (GPT_OSS | {"attention_bias": False}, "attention_bias = False"),
        (GPT_OSS | {"sliding_window": None}, "sliding_window = null"),
        (GPT_OSS | {"rope_parameters": {"full_attention": PLAIN}}, "rope_parameters"),
        (SMALL | {"rope_parameters": YARN | {"beta_slow": 32.0}}, "beta_slow = 32"),
        (GEMMA3 | {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA3 | {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        (GEMMA3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (GEMMA3 | {"rope_scaling": YARN}, '"yarn"'),
        (OLMO2 | {"attention_bias": True}, "attention_bias = True"),
        (OLMO3 | {"layer_types": ["full_attention"]}, "1 values for 4 layers"),
        (OLMO3 | {"sliding_window": None}, "sliding_window = null"),
        (OLMO3 | {"rope_parameters": YARN}, "rope_parameters"),
        (OLMO3 | {"rope_parameters": {"sliding_attention": YARN, "full_attention": PLAIN}},
         'sliding_attention.rope_type = "yarn"'),
        (SMALL | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        (SMALL | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        (SMALL | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
         "sliding window"),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"] * 2}, "sliding window"),
        (QWEN3 | {"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        (DOTS1 | {"max_window_layers": 2, "sliding_window": 4096}, "sliding window"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        (QWEN3_MOE | {"mlp_only_layers": [2]}, "mlp_only_layers = [2]"),
        (QWEN3_MOE | {"num_experts_per_tok": 17}, "17 of 16"),
        (DOTS1 | {"n_group": 8, "topk_group": 4}, "n_group = 8"),
        (GLM4_MOE | {"n_group": 8}, "n_group = 8"),
        (GLM4_MOE | {"mlp_bias": True}, "mlp_bias = True"),
        (GLM4_MOE | {"partial_rotary_factor": 2.0}, "partial_rotary_factor = 2"),
        (GLM4_MOE | {"use_qk_norm": 1}, "use_qk_norm = 1"),
        (DOTS1 | {"first_k_dense_replace": 4}, "first_k_dense_replace = 4"),
    ],
)  # fmt: skip
def test_what_we_do_not_compute_is_refused_by_its_field(config: dict, named: str) -> None:
    with pytest.raises(PenstockError, match=r"config\.json") as error:
        shape_of(config)
    assert named in str(error.value)


def test_an_unknown_family_is_told_which_are_known() -> None:
    with pytest.raises(PenstockError) as error:
        shape_of(SMALL | {"model_type": "gemma2"})
    assert all(name in str(error.value) for name in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_config_comes_back(family: str) -> None:
    shape = shape_of(OF[family])
    assert shape_of(config_of(shape, family)) == shape
    assert config_of(shape, family)["architectures"] == [FAMILIES[family].architecture]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, ModelShape]:
    """A shape that a family can say, made from the parts it has."""
    family = draw(st.sampled_from(list(FAMILIES)))
    kv = draw(st.sampled_from([1, 2, 4]))
    heads = kv * draw(st.sampled_from([1, 2, 3]))
    layers = draw(st.integers(1, 6))
    width = draw(st.sampled_from([2, 8, 24]))
    has = FAMILIES[family]
    scaled: list[RopeScaling | None] = [None, Llama3Scaling(8.0, 1.0, 4.0, 8192)]
    if "linear" in has.scalings:
        scaled = [None, LinearScaling(8.0)]
    if "longrope" in has.scalings:
        rotations = ((0.5,) * 12, (2.0,) * 12)  # for heads of 24, below
        scaled, width = [None, LongScaling(*rotations, 77, 1.25)], 24
    shape = ModelShape(
        layers=layers,
        hidden=heads * draw(st.sampled_from([2, 8, 24])),
        heads=heads,
        kv_heads=kv,
        ffn=draw(st.integers(1, 99)),
        vocab=draw(st.integers(1, 999)),
        tied=draw(st.booleans()),
        head_dim=width if family == "phi3" else draw(st.sampled_from([None, width])),
        context=draw(st.integers(1, 9999)),
        rope_theta=draw(st.floats(1.0, 1e7)),
        rope_scaling=draw(st.sampled_from(scaled)),
        norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        qk_norm=has.qk_norm,
        norms=has.norms,
        qk_norm_whole=has.qk_norm_whole,
        attention_bias=has.qkv_bias,
        window=draw(st.sampled_from([0, 77])) if has.windowed else 0,
    )
    if family == "gemma3_text":
        divisor = draw(st.sampled_from([0, shape.head_width + 1]))
        shape = replace(shape, norm_offset=True, embed_scaled=True, activation="gelu_tanh")
        shape = replace(shape, score_width=divisor)
    if has.full_every:
        full = draw(st.sets(st.integers(0, layers - 1)))
        shape = replace(shape, window=0 if len(full) == layers else 77)
        if len(full) < layers:
            shape = replace(shape, full_layers=tuple(sorted(full)))
        if not full and has.rope is None:
            shape = replace(shape, rope_scaling=None)
        if has.rope is None and shape.full_layers and (shape.rope_scaling or draw(st.booleans())):
            shape = replace(shape, window_theta=shape.rope_theta + 1)
    if family == "gpt_oss":
        own = {"out_bias": True, "sinks": True, "expert_bias": True, "activation": "clamped"}
        shape = replace(shape, **own)
    elif has.bias_told:
        told = {"qk_norm": draw(st.booleans()), "attention_bias": draw(st.booleans())}
        shape = replace(shape, **told)
    if has.routed:
        experts = draw(st.integers(2, 8))
        active = draw(st.integers(1, experts))
        shape = replace(shape, experts=experts, experts_active=active, expert_ffn=40)
        if family in ("mixtral", "gpt_oss"):
            return family, replace(shape, ffn=40)
        dense = draw(st.integers(0, layers - 1))
        shape = replace(shape, dense_layers=dense, router_normalised=draw(st.booleans()))
    if family in ("dots1", "glm4_moe"):
        scale = draw(st.floats(0.5, 4.0))
        shape = replace(shape, shared_experts=2, router="sigmoid", routed_scale=scale)
    if has.latent:
        shape = replace(shape, kv_heads=heads, head_dim=None, shared_experts=1)
        widths = {"q_rank": draw(st.integers(0, 9)), "kv_rank": 7, "nope_dim": 5, "v_dim": 3}
        shape = replace(shape, **widths, rope_dim=4, experts=8, experts_active=2)
        if draw(st.booleans()):
            shape = replace(shape, expert_groups=4, groups_active=draw(st.integers(1, 4)))
        yarn = YarnScaling(4.0, 32.0, 1.0, 64, 1.25, *draw(st.sampled_from([(0, 0), (0.5, 2.0)])))
        shape = replace(shape, rope_scaling=draw(st.sampled_from([None, yarn])))
        own = {"router_normalised": False, "rope_pairs": True}
        if family == "deepseek_v3":
            own = {"router": "sigmoid", "rope_pairs": draw(st.booleans())}
        shape = replace(shape, **own)
    return family, shape


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_any_shape_of_a_family_comes_back_from_its_config(given: tuple[str, ModelShape]) -> None:
    family, shape = given
    back = shape_of(config_of(shape, family))
    follows = shape.kv_rank or shape.head_width * shape.heads == shape.hidden
    assert back == replace(shape, head_dim=None if follows else shape.head_width)
    written = family_of(shape)  # the plainest that can say it, so another one says no less
    assert shape_of(config_of(shape, written)) == back


def test_the_plainest_family_is_written() -> None:
    plain = models.preset("llama-3m")
    assert family_of(plain) == "llama"
    assert family_of(replace(plain, qk_norm=True)) == "qwen3"
    assert family_of(replace(plain, attention_bias=True)) == "qwen2"
    assert family_of(replace(plain, window=512)) == "mistral"
    assert family_of(models.preset("mixtral-8x7b")) == "mixtral"
    assert family_of(models.preset("qwen3-30b-a3b")) == "qwen3_moe"
    assert family_of(replace(shape_of(DOTS1), dense_layers=0, ffn=0)) == "dots1"


def test_every_preset_with_ordinary_attention_has_a_family() -> None:
    for preset in models.all():
        shape = preset.shape
        if shape.gated and not shape.kv_rank:
            assert family_of(shape) in FAMILIES, preset.name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"qk_norm": True, "attention_bias": True}, "attention_bias = True"),
        ({"gated": False}, "gated = False"),
        ({"kv_rank": 16, "rope_dim": 8, "nope_dim": 8, "v_dim": 8}, "kv_rank = 16"),
        ({"experts": 4, "experts_active": 2, "expert_ffn": 8, "shared_experts": 1},
         "shared_experts = 1"),
    ],
)  # fmt: skip
def test_a_shape_that_no_family_has_is_refused_by_what_is_in_the_way(
    change: dict, named: str
) -> None:
    with pytest.raises(PenstockError, match="No family of open models") as error:
        family_of(replace(models.preset("llama-3m"), **change))
    assert named in str(error.value)


def test_a_family_refuses_what_it_cannot_say() -> None:
    with pytest.raises(PenstockError, match="qk_norm = True"):
        config_of(shape_of(QWEN3), "llama")
    with pytest.raises(PenstockError, match="not a family"):
        config_of(shape_of(QWEN3), "lama")


def test_shapes_stay_hashable() -> None:
    assert len({shape_of(LLAMA31), shape_of(dict(LLAMA31)), shape_of(SMALL)}) == 2
