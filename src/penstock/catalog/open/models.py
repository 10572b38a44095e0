"""Open models: from a Hugging Face `config.json` to a `ModelShape`, and back.

A family is an architecture under its name in transformers. A config that needs something our
decoder does not do is refused with the field that asks for it: weights that run through another
computation would give text that only looks wrong.

The spellings of transformers 4 (`rope_theta`, `rope_scaling`, `num_experts`) and 5
(`rope_parameters`, `num_local_experts`) are read alike; the older is written, which both read.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.catalog.open.config import HubConfig, Unsupported
from penstock.catalog.open.deepseek import (
    read_deepseek_v2,
    read_deepseek_v3,
    write_deepseek_v2,
    write_deepseek_v3,
)
from penstock.catalog.open.experts import (
    read_dots1,
    read_glm4_moe,
    read_mixtral,
    read_qwen3_moe,
    write_dots1,
    write_glm4_moe,
    write_mixtral,
    write_qwen3_moe,
)
from penstock.catalog.open.gpt_oss import GPT_OSS_ROPE, read_gpt_oss, write_gpt_oss
from penstock.catalog.open.rope import (
    USUAL_KINDS,
    check_rotations,
    read_layer_types,
    read_layered_rope,
    read_rope,
    read_rotary_width,
    read_window_pattern,
    write_layered_rope,
    write_scaling,
)
from penstock.catalog.rope import LongScaling
from penstock.catalog.shapes import ModelShape
from penstock.errors import PenstockError, nearest


@dataclass(frozen=True)
class ModelFamily:
    """Differences of a family from Llama; the values are the defaults of missing fields."""

    architecture: str  # the class of transformers
    theta: float = 10_000.0
    norm_eps: float = 1e-6
    window: int = 0
    head_dim: int = 0  # 0: hidden / heads
    tied: bool = False
    hidden_act: str = "silu"
    full_every: int = 0  # layers of which one sees everything, the others a window; 0: all alike
    windowed: bool = False  # sliding_window holds for all layers
    scalings: tuple[str, ...] = USUAL_KINDS  # kinds of rope scaling
    rotated: float = 0.0  # share of a head's channels that is rotated; 0: all, and no other
    window_theta: float = 0.0  # with `full_every`: base of the layers with a window
    rope: dict[str, Any] | None = None  # with `full_every`: usual one of both kinds of layer
    norms: str = "before"
    qk_norm: bool = False
    qk_norm_whole: bool = False
    qkv_bias: bool = False
    bias_told: bool = (
        False  # attention_bias of the config is that of q, k and v; else it is refused
    )
    routed: bool = False  # layers have experts
    latent: bool = False  # multi-head latent attention, whose heads have widths of their own
    read: Callable[[HubConfig, int], dict[str, Any]] = lambda config, layers: {}
    write: Callable[[ModelShape], dict[str, Any]] = lambda shape: {}


def shape_of(config: dict[str, Any]) -> ModelShape:
    """Return the shape that a config describes; refuse what our decoder does not do."""
    family, read = _family(config), HubConfig(config)
    _refuse_foreign(read, family)
    layers, hidden, heads = (
        read.count("num_hidden_layers"),
        read.count("hidden_size"),
        read.count("num_attention_heads"),
    )
    width = 0 if family.latent else read.count("head_dim", family.head_dim or hidden // heads)
    ffn = read.count("intermediate_size")
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read.count("num_key_value_heads", heads),
        ffn=ffn,
        vocab=read.count("vocab_size"),
        tied=read.flag("tie_word_embeddings", family.tied),
        context=read.count("max_position_embeddings"),
        rotary_width=0 if family.full_every else read_rotary_width(read, width, family.rotated),
        **_positions(read, family, layers),
        norm_eps=read.number("rms_norm_eps", family.norm_eps),
        norms=family.norms,
        qk_norm_whole=family.qk_norm_whole,
        **{
            "head_dim": None if width * heads == hidden else width,
            "qk_norm": family.qk_norm,
            "attention_bias": family.qkv_bias,
        }
        | family.read(read, layers),
    )
    _refuse_misfit(shape)
    check_rotations(shape)
    return shape


def config_of(shape: ModelShape, family: str) -> dict[str, Any]:
    """Return the config of a shape in a family; refuse a shape that the family cannot have."""
    differences = _lost_fields(shape, family)
    if differences:
        raise PenstockError(
            f"A model of the family {family} cannot have {', '.join(differences)}. "
            f"Families that Penstock writes: {', '.join(FAMILIES)}."
        )
    return _config(shape, family)


def family_of(shape: ModelShape) -> str:
    """Return the plainest family that can have a shape; raise an error if none can."""
    lost = {name: _lost_fields(shape, name) for name in FAMILIES}
    for name, differences in lost.items():
        if not differences:
            return name
    alike = [name for name in FAMILIES if FAMILIES[name].routed == shape.moe]
    closest = min(alike, key=lambda name: len(lost[name]))
    fix = (
        'A mixture of experts with router = "sigmoid", qk_norm = true and shared_experts in '
        "[model] is written as dots1"
        if shape.moe
        else f"Families that Penstock writes: {', '.join(FAMILIES)}"
    )
    raise PenstockError(
        f"No family of open models has this shape: {closest}, the closest, cannot have "
        f"{', '.join(lost[closest])}. {fix}."
    )


def _family(config: dict[str, Any]) -> ModelFamily:
    name = config.get("model_type")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    if not name:
        raise Unsupported(
            "model_type is missing, so it is no config of a model; Penstock trains "
            f"{', '.join(FAMILIES)}"
        )
    found = f'model_type "{name[:80]}"' if isinstance(name, str) else "model_type, no text,"
    hint = _HINTS.get(name, "") if isinstance(name, str) else ""
    guess = nearest(name[:80], FAMILIES) if isinstance(name, str) else ""
    raise Unsupported(
        f"{found} is not a family that Penstock trains: {', '.join(FAMILIES)}.{hint} {guess}"
    )


# How to get weights in 16 bits where the makers publish none.
_DEQUANTISE = {
    "gpt_oss": ". To get bf16 weights, load it in transformers with quantization_config="
    'Mxfp4Config(dequantize=True) and dtype="bfloat16", and save it with save_pretrained',
    "deepseek_v3": ". To get bf16 weights, load it in transformers with quantization_config="
    'FineGrainedFP8Config(dequantize=True) and dtype="bfloat16", and save it with save_pretrained',
}
_HINTS = {
    "gemma3": " It sees images too; save its language model alone, which is gemma3_text.",
}


def _refuse_foreign(config: HubConfig, family: ModelFamily) -> None:
    """Refuse features that any family's config may ask for and our decoder does not have."""
    if config.has("quantization_config"):
        raise Unsupported(
            "quantization_config: the weights are quantised, which cannot be trained; take the "
            'unquantised model, and [model.adapter] kind = "qlora" to quantise it here'
            + _DEQUANTISE.get(config.text("model_type", ""), "")
        )
    config.require("hidden_act", family.hidden_act, family.hidden_act)
    config.require("mlp_bias", False, False)
    if not family.bias_told:
        config.require("attention_bias", False, False)


def _refuse_misfit(shape: ModelShape) -> None:
    if beyond := shape.beyond_bounds():
        raise Unsupported(f"{beyond[0]}: {beyond[1]}, which no model has")
    if not shape.head_width and not shape.kv_rank:
        raise Unsupported(
            f"num_attention_heads = {shape.heads} is more than hidden_size = {shape.hidden}"
        )
    if shape.heads % shape.kv_heads:
        raise Unsupported(
            f"num_key_value_heads = {shape.kv_heads} does not divide num_attention_heads = "
            f"{shape.heads}"
        )
    if shape.head_width % 2 and not shape.kv_rank:
        raise Unsupported(f"heads of width {shape.head_width}: rotary positions need an even one")
    if shape.experts_active > shape.experts:
        raise Unsupported(
            f"num_experts_per_tok = {shape.experts_active} of {shape.experts} experts"
        )
    if problem := shape.routing_problem():
        raise Unsupported(f"n_group and topk_group: {problem}")


def _positions(config: HubConfig, family: ModelFamily, layers: int) -> dict[str, Any]:
    """Return rotary positions and windows."""
    if not family.full_every:
        theta, scaling = read_rope(config, family.theta, family.scalings)
        window = _window(config, family, layers)
        return {"rope_theta": theta, "rope_scaling": scaling, "window": window}
    window, full = read_window_pattern(config, layers, family.window, family.full_every)
    if family.rope is not None:
        if not config.has("rope_scaling") and not config.has("rope_parameters"):
            config = config.merged(HubConfig({"rope_scaling": family.rope}))
        theta, scaling = read_rope(config, family.theta, family.scalings)
        told = {"rope_theta": theta, "rope_scaling": scaling}
        return {**told, "window": window, "full_layers": full}
    theta, scaling, local = read_layered_rope(
        config, family.theta, family.window_theta, family.scalings
    )
    return {
        "rope_theta": theta if full or not window else local or theta,
        "rope_scaling": scaling if full or not window else None,
        "window_theta": local if full else 0.0,
        "window": window,
        "full_layers": full,
    }


def _window(config: HubConfig, family: ModelFamily, layers: int) -> int:
    """Return the sliding window of all layers; 0 for none. Refuse a mixture of layers."""
    types = read_layer_types(config)
    if family.windowed:
        window = config.count("sliding_window", family.window, nothing=True)
        sliding = len(set(types)) > 1
    elif types:
        window, sliding = 0, "sliding_attention" in types
    else:
        window = 0
        on = config.flag("use_sliding_window", family is FAMILIES["dots1"])
        after = config.whole("max_window_layers", layers) if family is not _QWEN3_MOE else 0
        sliding = on and config.has("sliding_window") and after < layers
    if sliding:
        raise Unsupported("some layers have a sliding window and some see everything: not built")
    return window


def read_phi3(config: HubConfig, layers: int) -> dict[str, Any]:
    for name in ("resid_pdrop", "embd_pdrop"):
        config.require(name, 0.0, 0.0)
    return {}


def write_phi3(shape: ModelShape) -> dict[str, Any]:
    scaling = shape.rope_scaling
    original = scaling.original if isinstance(scaling, LongScaling) else shape.context
    return {
        "sliding_window": shape.window or None,
        "partial_rotary_factor": (shape.rotary_width or shape.head_width) / shape.head_width,
        "original_max_position_embeddings": original,
    }


def read_gemma3(config: HubConfig, layers: int) -> dict[str, Any]:
    config.count("num_key_value_heads")
    config.require("hidden_activation", _GELU_TANH, _GELU_TANH)
    config.require("use_bidirectional_attention", False, False)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.has(name):
            raise Unsupported(f"{name} = {config.number(name):g} is not built; only null is")
    width, divisor = config.count("head_dim", 256), config.count("query_pre_attn_scalar", 256)
    return {
        "norm_offset": True,
        "embed_scaled": True,
        "activation": "gelu_tanh",
        "score_width": 0 if divisor == width else divisor,
    }


def write_gemma3(shape: ModelShape) -> dict[str, Any]:
    return {
        **write_layered_rope(shape),
        "hidden_activation": _GELU_TANH,
        "query_pre_attn_scalar": shape.score_width or shape.head_width,
    }


_GELU_TANH = "gelu_pytorch_tanh"

# The plainest first: a shape that fits several families is written as the first of them.
FAMILIES: dict[str, ModelFamily] = {
    "llama": ModelFamily("LlamaForCausalLM"),
    "qwen3": ModelFamily(
        "Qwen3ForCausalLM",
        head_dim=128,
        qk_norm=True,
        write=lambda shape: {"use_sliding_window": False},
    ),
    "qwen2": ModelFamily(
        "Qwen2ForCausalLM", qkv_bias=True, write=lambda shape: {"use_sliding_window": False}
    ),
    "mistral": ModelFamily(
        "MistralForCausalLM",
        window=4096,
        windowed=True,
        write=lambda shape: {"sliding_window": shape.window or None},
    ),
    "phi3": ModelFamily(
        "Phi3ForCausalLM",
        norm_eps=1e-5,
        windowed=True,
        scalings=("longrope",),
        rotated=1.0,
        read=read_phi3,
        write=write_phi3,
    ),
    "olmo2": ModelFamily(
        "Olmo2ForCausalLM", norm_eps=1e-5, norms="after", qk_norm=True, qk_norm_whole=True
    ),
    "olmo3": ModelFamily(
        "Olmo3ForCausalLM",
        theta=5e5,
        window_theta=5e5,
        window=4096,
        full_every=4,
        norm_eps=1e-5,
        norms="after",
        qk_norm=True,
        qk_norm_whole=True,
        write=write_layered_rope,
    ),
    "gemma3_text": ModelFamily(
        "Gemma3ForCausalLM",
        theta=1e6,
        window_theta=1e4,
        window=4096,
        full_every=6,
        scalings=("linear",),
        head_dim=256,
        tied=True,
        hidden_act=_GELU_TANH,
        norms="both",
        qk_norm=True,
        read=read_gemma3,
        write=write_gemma3,
    ),
    "mixtral": ModelFamily(
        "MixtralForCausalLM",
        theta=1e6,
        norm_eps=1e-5,
        windowed=True,
        routed=True,
        read=read_mixtral,
        write=write_mixtral,
    ),
    "qwen3_moe": ModelFamily(
        "Qwen3MoeForCausalLM", qk_norm=True, routed=True, read=read_qwen3_moe, write=write_qwen3_moe
    ),
    "dots1": ModelFamily(
        "Dots1ForCausalLM", qk_norm=True, routed=True, read=read_dots1, write=write_dots1
    ),
    "gpt_oss": ModelFamily(
        "GptOssForCausalLM",
        theta=150_000.0,
        norm_eps=1e-5,
        window=128,
        full_every=2,
        rope=GPT_OSS_ROPE,
        head_dim=64,
        qkv_bias=True,
        bias_told=True,
        routed=True,
        read=read_gpt_oss,
        write=write_gpt_oss,
    ),
    "glm4_moe": ModelFamily(
        "Glm4MoeForCausalLM",
        norm_eps=1e-5,
        rotated=0.5,
        bias_told=True,
        routed=True,
        read=read_glm4_moe,
        write=write_glm4_moe,
    ),
    "deepseek_v3": ModelFamily(
        "DeepseekV3ForCausalLM",
        routed=True,
        latent=True,
        read=read_deepseek_v3,
        write=write_deepseek_v3,
    ),
    "deepseek_v2": ModelFamily(
        "DeepseekV2ForCausalLM",
        routed=True,
        latent=True,
        read=read_deepseek_v2,
        write=write_deepseek_v2,
    ),
}
_QWEN3_MOE = FAMILIES["qwen3_moe"]


def _config(shape: ModelShape, family: str) -> dict[str, Any]:
    return {
        "architectures": [FAMILIES[family].architecture],
        "model_type": family,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn or shape.expert_ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "hidden_act": FAMILIES[family].hidden_act,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": write_scaling(shape.rope_scaling),
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "pad_token_id": None,  # a family's own may lie outside the vocabulary
        **FAMILIES[family].write(shape),
    }


def _lost_fields(shape: ModelShape, family: str) -> list[str]:
    """Return the fields of a shape that the family's config cannot hold, as `name = value`."""
    if family not in FAMILIES:
        raise PenstockError(
            f"{family!r} is not a family that Penstock writes: {', '.join(FAMILIES)}. "
            f"{nearest(family, FAMILIES)}".rstrip()
        )
    if FAMILIES[family].routed != shape.moe:
        return [f"experts = {shape.experts}"]
    wanted = _plain(shape)
    try:
        said = _plain(shape_of(_config(shape, family)))
    except Unsupported as error:
        return [str(error).partition("config.json: ")[2] or str(error)]
    return [
        f"{field.name} = {getattr(wanted, field.name)!r}"
        for field in fields(ModelShape)
        if getattr(wanted, field.name) != getattr(said, field.name)
    ]


def _plain(shape: ModelShape) -> ModelShape:
    """Return a shape without values that make no difference: derived widths, unused ones."""
    own_width = not shape.kv_rank and shape.head_width * shape.heads != shape.hidden
    dense = not shape.moe or shape.dense_layers
    return replace(
        shape,
        head_dim=shape.head_width if own_width else None,
        ffn=shape.ffn if dense else 0,
    )
