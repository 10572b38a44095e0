"""A config.json as a shape and back; what we do not compute is refused by the field that asks."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import models
from penstock.catalog.open.models import FAMILIES, config_of, family_of, shape_of
from penstock.catalog.shapes import ModelShape, RopeScaling
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
OF = {c["model_type"]: c for c in (SMALL, QWEN2, QWEN3, MISTRAL, MIXTRAL, QWEN3_MOE, DOTS1)}


def test_llama_31_is_the_preset_with_its_scaling() -> None:
    scaling = RopeScaling(factor=8.0, low=1.0, high=4.0, original=8192)
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


def test_dense_layers_of_qwen_moe_are_a_prefix() -> None:
    assert shape_of(QWEN3_MOE | {"mlp_only_layers": [1, 0]}).dense_layers == 2
    assert (
        shape_of(QWEN3_MOE | {"num_hidden_layers": 2, "decoder_sparse_step": 2}).dense_layers == 1
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SMALL | {"model_type": "gemma3"}, '"gemma3"'),
        (SMALL | {"model_type": "phi3"}, '"phi3"'),
        (DOTS1 | {"model_type": "deepseek_v3"}, "Latent attention"),
        ({k: v for k, v in SMALL.items() if k != "model_type"}, "no model_type"),
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
        (SMALL | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, '"yarn"'),
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
    shape = ModelShape(
        layers=layers,
        hidden=heads * draw(st.sampled_from([2, 8, 24])),
        heads=heads,
        kv_heads=kv,
        ffn=draw(st.integers(1, 99)),
        vocab=draw(st.integers(1, 999)),
        tied=draw(st.booleans()),
        head_dim=draw(st.sampled_from([None, width])),
        context=draw(st.integers(1, 9999)),
        rope_theta=draw(st.floats(1.0, 1e7)),
        rope_scaling=draw(st.sampled_from([None, RopeScaling(8.0, 1.0, 4.0, 8192)])),
        norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        qk_norm=has.qk_norm,
        attention_bias=has.qkv_bias,
        window=draw(st.sampled_from([0, 77])) if "mi" in family else 0,
    )
    if family in ("mixtral", "qwen3_moe", "dots1"):
        experts = draw(st.integers(2, 8))
        active = draw(st.integers(1, experts))
        shape = replace(shape, experts=experts, experts_active=active, expert_ffn=40)
        if family == "mixtral":
            return family, replace(shape, ffn=40)
        dense = draw(st.integers(0, layers - 1))
        shape = replace(shape, dense_layers=dense, router_normalised=draw(st.booleans()))
    if family == "dots1":
        scale = draw(st.floats(0.5, 4.0))
        shape = replace(shape, shared_experts=2, router="sigmoid", routed_scale=scale)
    return family, shape


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_any_shape_of_a_family_comes_back_from_its_config(given: tuple[str, ModelShape]) -> None:
    family, shape = given
    back = shape_of(config_of(shape, family))
    follows = shape.head_width * shape.heads == shape.hidden
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
