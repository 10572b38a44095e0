"""Rotary positions and sliding windows of open models: reading and writing them in a config."""

import math
from collections.abc import Callable
from typing import Any

from penstock.catalog.open.config import HubConfig, Unsupported
from penstock.catalog.rope import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    yarn_mscale,
)
from penstock.catalog.shapes import ModelShape
from penstock.untrusted import preview

FULL, SLIDING = "full_attention", "sliding_attention"


USUAL_KINDS = ("llama3", "yarn")


def read_rope(
    config: HubConfig, theta: float, kinds: tuple[str, ...] = USUAL_KINDS
) -> tuple[float, RopeScaling | None]:
    """Return base and scaling of the rotary positions; `theta` is the family's own base, `kinds`
    the scalings that it has.
    """
    return _base_and_scaling(config, _rope_table(config), config.number("rope_theta", theta), kinds)


def read_rotary_width(config: HubConfig, width: int, usual: float) -> int:
    """Return the rotated channels of heads of `width`; 0 for all. `usual` is the family's own
    share, 0 of one that rotates whole heads only.
    """
    share = config.number("partial_rotary_factor", usual or 1.0)
    share = _rope_table(config).number("partial_rotary_factor", share)
    if share == 1.0:
        return 0
    if not usual:
        raise Unsupported(f"partial_rotary_factor = {share:g}: this family rotates whole heads")
    turned = int(width * share)
    if turned % 2 or not 0 < turned <= width:
        raise Unsupported(
            f"partial_rotary_factor = {share:g}: {turned} of {width} channels; an even number of "
            "them can be rotated"
        )
    return 0 if turned == width else turned


def check_rotations(shape: ModelShape) -> None:
    """Refuse a longrope scaling that has not one factor for each rotation."""
    scaling, rotations = shape.rope_scaling, shape.rotated_channels // 2
    if not isinstance(scaling, LongScaling):
        return
    for name, factors in (("short_factor", scaling.short), ("long_factor", scaling.long)):
        if len(factors) != rotations:
            raise Unsupported(
                f"{name} has {len(factors)} values, not one for each of {rotations} rotations"
            )


def _rope_table(config: HubConfig) -> HubConfig:
    return config.table("rope_scaling").merged(config.table("rope_parameters"))


def read_layered_rope(
    config: HubConfig, theta: float, window_theta: float, kinds: tuple[str, ...] = USUAL_KINDS
) -> tuple[float, RopeScaling | None, float]:
    """Return base and scaling of layers that see everything, and the base of those with a window.

    The two thetas are the family's own. The last is 0 if the two kinds of layer are alike.
    """
    whole = config.layered("rope_parameters")
    full = config.table("rope_scaling").merged(whole.table(FULL))
    near = whole.table(SLIDING)
    for table in (config, full, near):
        table.require("partial_rotary_factor", 1.0, 1.0)
    full.require("truncate", True, True)  # which transformers does not read in such a table
    given = config.number("rope_theta", theta)
    full_theta, scaling = _base_and_scaling(config, full, given, kinds)
    local = near.number("rope_theta", config.number("rope_local_base_freq", window_theta))
    if (kind := near.text("rope_type", "default")) != "default":
        raise Unsupported(
            f'rope_parameters.{SLIDING}.rope_type = "{kind}": in layers with a window only '
            '"default" is built'
        )
    return full_theta, scaling, 0.0 if scaling is None and local == full_theta else local


def _base_and_scaling(
    config: HubConfig, rope: HubConfig, theta: float, kinds: tuple[str, ...] = USUAL_KINDS
) -> tuple[float, RopeScaling | None]:
    theta = rope.number("rope_theta", theta)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in kinds:
        built = ", ".join(f'"{one}"' for one in ("default", *kinds))
        raise Unsupported(
            f'rope_type "{kind}": rotary positions of this kind are not built in this family; '
            f"{built} are"
        )
    return theta, _READ[kind](config, rope)


def _read_llama3(config: HubConfig, rope: HubConfig) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low=rope.number("low_freq_factor"),
        high=rope.number("high_freq_factor"),
        original=_original(config, rope),
    )
    if scaling.high <= scaling.low:
        raise Unsupported(
            f"low_freq_factor = {scaling.low:g} is not below high_freq_factor = {scaling.high:g}"
        )
    return scaling


def _read_yarn(config: HubConfig, rope: HubConfig) -> YarnScaling:
    factor = rope.number("factor")
    mscale, mscale_all = (
        rope.number(name) if rope.positive(name) else 0.0 for name in ("mscale", "mscale_all_dim")
    )
    usual = yarn_mscale(factor)
    if mscale and mscale_all:
        usual = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
    scaling = YarnScaling(
        factor=factor,
        fast=rope.number("beta_fast", 32.0),
        slow=rope.number("beta_slow", 1.0),
        original=_original(config, rope),
        amplitude=rope.number("attention_factor", usual),
        mscale=mscale,
        mscale_all=mscale_all,
        truncated=rope.flag("truncate", True),
    )
    if scaling.fast <= scaling.slow:
        raise Unsupported(f"beta_slow = {scaling.slow:g} is not below beta_fast = {scaling.fast:g}")
    return scaling


def _read_long(config: HubConfig, rope: HubConfig) -> LongScaling:
    original, context = _original(config, rope), config.count("max_position_embeddings")
    factor = rope.number("factor", context / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return LongScaling(
        short=rope.numbers("short_factor"),
        long=rope.numbers("long_factor"),
        original=original,
        amplitude=rope.number("attention_factor", usual),
    )


_READ: dict[str, Callable[[HubConfig, HubConfig], RopeScaling]] = {
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_long,
    "linear": lambda config, rope: LinearScaling(rope.number("factor")),
}


def _original(config: HubConfig, rope: HubConfig) -> int:
    name = "original_max_position_embeddings"
    return rope.count(name, config.count(name, config.count("max_position_embeddings")))


def write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """Return the table of a scaling in a config; None for none."""
    values: dict[str, Any]
    match scaling:
        case Llama3Scaling():
            values = {
                "factor": scaling.factor,
                "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
            }
        case YarnScaling():
            values = {
                "factor": scaling.factor,
                "beta_fast": scaling.fast,
                "beta_slow": scaling.slow,
                "attention_factor": scaling.amplitude,
            }
            told = {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all}
            values |= {name: value for name, value in told.items() if value}
            if not scaling.truncated:
                values["truncate"] = False
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case LongScaling():
            values = {
                "short_factor": list(scaling.short),
                "long_factor": list(scaling.long),
                "attention_factor": scaling.amplitude,
            }
        case _:
            return None
    original = {"original_max_position_embeddings": scaling.original}
    return {"rope_type": scaling.kind, **values, **original}


def write_layered_rope(shape: ModelShape) -> dict[str, Any]:
    """Return the fields of a model with two kinds of layer."""
    scaling = write_scaling(shape.rope_scaling) or {"rope_type": "default"}
    local = shape.window_theta or shape.rope_theta
    return {
        "rope_parameters": {
            FULL: {**scaling, "rope_theta": shape.rope_theta},
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
        "rope_scaling": None,
        **write_window_pattern(shape),
    }


def write_window_pattern(shape: ModelShape) -> dict[str, Any]:
    """Return which layers have a window."""
    kinds = [FULL, SLIDING] if shape.full_layers or not shape.window else [SLIDING]
    types = [kinds[shape.attention_kind(layer)] for layer in range(shape.layers)]
    return {"sliding_window": shape.window or None, "layer_types": types}


def read_layer_types(config: HubConfig) -> list[str]:
    """Return the kinds of all layers; an empty list if the config does not say."""
    types = config.list("layer_types")
    if strange := [one for one in types if one not in (FULL, SLIDING)]:
        raise Unsupported(f"layer_types: {preview(strange[0])} is not built")
    return types


def read_window_pattern(
    config: HubConfig, layers: int, window: int, every: int
) -> tuple[int, tuple[int, ...]]:
    """Return the window and the layers without it. `every`: so many layers have one that sees all.

    Where all layers are alike there is no pattern: the window is 0 or that of all.
    """
    every = config.count("sliding_window_pattern", every)
    types = read_layer_types(config)
    types = types or [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    if len(types) != layers:
        raise Unsupported(f"layer_types has {len(types)} values for {layers} layers")
    full = tuple(layer for layer, kind in enumerate(types) if kind == FULL)
    if len(full) == layers:
        return 0, ()
    width = config.count("sliding_window", window, nothing=True)
    if not width:
        raise Unsupported(
            f"sliding_window = null, and layer_types has {SLIDING}: write the window's tokens, or "
            f"{FULL} for every layer"
        )
    return width, full
