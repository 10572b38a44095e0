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
from penstock.catalog.open.experts import (
    read_dots1,
    read_mixtral,
    read_qwen3_moe,
    write_dots1,
    write_mixtral,
    write_qwen3_moe,
)
from penstock.catalog.shapes import ModelShape, RopeScaling
from penstock.errors import PenstockError, nearest
from penstock.untrusted import preview


@dataclass(frozen=True)
class ModelFamily:
    """Differences of a family from Llama; the values are the defaults of missing fields."""

    architecture: str  # the class of transformers
    theta: float = 10_000.0
    norm_eps: float = 1e-6
    window: int = 0
    head_dim: int = 0  # 0: hidden / heads
    qk_norm: bool = False
    qkv_bias: bool = False
    routed: bool = False  # layers have experts
    read: Callable[[HubConfig, int], dict[str, Any]] = lambda config, layers: {}
    write: Callable[[ModelShape], dict[str, Any]] = lambda shape: {}


def shape_of(config: dict[str, Any]) -> ModelShape:
    """Return the shape that a config describes; refuse what our decoder does not do."""
    family, read = _family(config), HubConfig(config)
    _refuse_foreign(read)
    layers, hidden, heads = (
        read.count("num_hidden_layers"),
        read.count("hidden_size"),
        read.count("num_attention_heads"),
    )
    theta, scaling = _rope(read, family)
    width = read.count("head_dim", family.head_dim or hidden // heads)
    ffn = read.count("intermediate_size")
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read.count("num_key_value_heads", heads),
        ffn=ffn,
        vocab=read.count("vocab_size"),
        tied=read.flag("tie_word_embeddings", False),
        head_dim=None if width * heads == hidden else width,
        context=read.count("max_position_embeddings"),
        window=_window(read, family, layers),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=read.number("rms_norm_eps", family.norm_eps),
        qk_norm=family.qk_norm,
        attention_bias=family.qkv_bias,
        **family.read(read, layers),
    )
    _refuse_misfit(shape)
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
    found = "no model_type"
    if name:
        found = f'model_type "{name[:80]}"' if isinstance(name, str) else "model_type, no text,"
    hint = " Latent attention is not built." if name in ("deepseek_v2", "deepseek_v3") else ""
    guess = nearest(name[:80], FAMILIES) if isinstance(name, str) else ""
    raise Unsupported(
        f"{found} is not a family that Penstock trains: {', '.join(FAMILIES)}.{hint} {guess}"
    )


def _refuse_foreign(config: HubConfig) -> None:
    """Refuse features that any family's config may ask for and our decoder does not have."""
    if config.has("quantization_config"):
        raise Unsupported(
            "quantization_config: the weights are quantised, which cannot be trained; take the "
            'unquantised model, and [model.adapter] kind = "qlora" to quantise it here'
        )
    config.require("hidden_act", "silu", "silu")
    for name in ("attention_bias", "mlp_bias"):
        config.require(name, False, False)


def _refuse_misfit(shape: ModelShape) -> None:
    if beyond := shape.beyond_bounds():
        raise Unsupported(f"{beyond[0]}: {beyond[1]}, which no model has")
    if not shape.head_width:
        raise Unsupported(
            f"num_attention_heads = {shape.heads} is more than hidden_size = {shape.hidden}"
        )
    if shape.heads % shape.kv_heads:
        raise Unsupported(
            f"num_key_value_heads = {shape.kv_heads} does not divide num_attention_heads = "
            f"{shape.heads}"
        )
    if shape.head_width % 2:
        raise Unsupported(f"heads of width {shape.head_width}: rotary positions need an even one")
    if shape.experts_active > shape.experts:
        raise Unsupported(
            f"num_experts_per_tok = {shape.experts_active} of {shape.experts} experts"
        )


def _rope(config: HubConfig, family: ModelFamily) -> tuple[float, RopeScaling | None]:
    """Return base and scaling of the rotary positions."""
    rope = config.table("rope_scaling").merged(config.table("rope_parameters"))
    theta = rope.number("rope_theta", config.number("rope_theta", family.theta))
    part = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if part != 1.0:
        raise Unsupported(f"partial_rotary_factor = {part:g}: only whole heads are rotated here")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise Unsupported(
            f'rope_type "{kind}": rotary positions of this kind are not built; "default" and '
            '"llama3" are'
        )
    scaling = RopeScaling(
        factor=rope.number("factor"),
        low=rope.number("low_freq_factor"),
        high=rope.number("high_freq_factor"),
        original=rope.count(
            "original_max_position_embeddings", config.count("max_position_embeddings")
        ),
    )
    if scaling.high <= scaling.low:
        raise Unsupported(
            f"low_freq_factor = {scaling.low:g} is not below high_freq_factor = {scaling.high:g}"
        )
    return theta, scaling


def _window(config: HubConfig, family: ModelFamily, layers: int) -> int:
    """Return the sliding window of all layers; 0 for none. Refuse a mixture of layers."""
    types = config.list("layer_types")
    known = ("full_attention", "sliding_attention")
    if strange := [one for one in types if one not in known]:
        raise Unsupported(f"layer_types: {preview(strange[0])} is not built")
    if family in (FAMILIES["mistral"], FAMILIES["mixtral"]):
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
        write=lambda shape: {"sliding_window": shape.window or None},
    ),
    "mixtral": ModelFamily(
        "MixtralForCausalLM",
        theta=1e6,
        norm_eps=1e-5,
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
}
_QWEN3_MOE = FAMILIES["qwen3_moe"]


def _config(shape: ModelShape, family: str) -> dict[str, Any]:
    scaling = shape.rope_scaling
    rope = scaling and {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original,
    }
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
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": rope,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
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
    own_width = shape.head_width * shape.heads != shape.hidden
    dense = not shape.moe or shape.dense_layers
    return replace(
        shape,
        head_dim=shape.head_width if own_width else None,
        ffn=shape.ffn if dense else 0,
    )
