"""The shape behind a model's name or its number of parameters, for rows without all widths."""

import re
from collections.abc import Mapping
from math import sqrt

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape

# Hidden width over layers, and width of a head, of models of no known family: GPT-3 and LLaMA have
# 128 of both at most sizes (arXiv 2005.14165, 2302.13971).
ASPECT = 128
HEAD_WIDTH = 128
# Models this wide have heads for eight tensor-parallel ranks.
WIDE, EVEN_HEADS = 4096, 8
SAME_SIZE = 0.1  # models of a family whose parameters differ by less are taken for each other
BY_NAME = "the model of that name"  # why a width was filled in
SAME_LAYERS = 0.025  # layers that stages divide are taken where they fit the parameters this well

# Blocks that Penstock does not build, so they are no presets: two-matrix feed-forward parts,
# parallel attention. From the configuration files of microsoft/phi-1_5,
# stabilityai/stablelm-base-alpha-3b and tiiuae/falcon-40b.
OLDER = {
    "phi-1.5 1.3B": ModelShape(
        layers=24, hidden=2048, heads=32, kv_heads=32, ffn=8192, vocab=51200, gated=False
    ),
    "StableLM Alpha 3B": ModelShape(
        layers=16, hidden=4096, heads=32, kv_heads=32, ffn=16384, vocab=50688, gated=False
    ),
    "Falcon 40B": ModelShape(
        layers=60,
        hidden=8192,
        heads=128,
        kv_heads=8,
        ffn=32768,
        vocab=65024,
        tied=True,
        gated=False,
    ),
}


def named(name: str) -> ModelShape | None:
    """Return the shape that goes by this name, whatever its spaces and capitals."""
    plain = _plain(name)
    for title, shape in OLDER.items():
        if _plain(title) == plain:
            return shape
    for preset in models.all():
        if plain in map(_plain, (preset.name, preset.title, *preset.aliases)):
            return preset.shape
    return None


def completed(cells: Mapping[str, str], assumed: list[str]) -> Mapping[str, str]:
    """Return the row with layers, hidden and heads; blank ones come from the model's name or from
    its number of parameters.
    """
    if all(cells.get(name) for name in ("layers", "hidden", "heads")):
        return cells
    full = dict(cells)

    def fill(found: Mapping[str, int], why: str) -> None:
        for column, value in found.items():
            if not full.get(column):
                full[column] = str(value)
                assumed.append(f"{column} {value} ({why})")

    shape = named(cells.get("model_name", ""))
    if shape is None and not cells.get("hidden"):
        shape = _of_family(cells)
    if shape and not cells.get("hidden"):
        fill(widths(shape), BY_NAME)
        return full
    params = _params(cells)
    if params and not cells.get("experts"):
        fill(_by_count(full, params), "its number of parameters")
    return full


def widths(shape: ModelShape) -> dict[str, int]:
    """Return the columns of a table that a shape fills."""
    found = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "ffn_hidden": shape.ffn,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "vocab": shape.vocab,
    }
    if shape.moe:
        found |= {
            "experts": shape.experts,
            "topk": shape.experts_active,
            "moe_ffn_hidden": shape.expert_ffn,
            "shared_experts": shape.shared_experts,
            "dense_layers": shape.dense_layers,
        }
    return found


def _params(cells: Mapping[str, str]) -> float:
    """Return the parameters that the row or the model's name states; 0: neither does."""
    stated = cells.get("params_b", "")
    if re.fullmatch(r"[\d.]+", stated):
        return float(stated) * 1e9
    return size_in(cells.get("model_name", ""))


def size_in(name: str) -> float:
    """Return the parameters that a model's name states; 0: none or several sizes."""
    in_name = re.findall(r"(\d+(?:\.\d+)?)\s*([bmt])\b", name.lower())
    if len(in_name) != 1:  # a name with two sizes is not the name of a model
        return 0.0
    size, unit = in_name[0]
    return float(size) * {"m": 1e6, "b": 1e9, "t": 1e12}[unit]


def _of_family(cells: Mapping[str, str]) -> ModelShape | None:
    """Return the preset whose family the model's name begins with and that has about its size."""
    family = re.match(r"[a-z]+", cells.get("model_name", "").lower())
    params = _params(cells)
    if not family or not params:
        return None
    sized = [
        preset.shape
        for preset in models.all()
        if preset.name.startswith(family[0]) and bool(cells.get("experts")) == preset.shape.moe
    ]
    near = min(sized, key=lambda one: abs(one.params() / params - 1), default=None)
    return near if near and abs(near.params() / params - 1) < SAME_SIZE else None


def _by_count(cells: Mapping[str, str], params: float) -> dict[str, int]:
    """Return widths of a dense model that has about this many parameters: 12 × layers × hidden² and
    its embedding.
    """
    known = {name: int(float(cells.get(name) or 0)) for name in ("layers", "hidden", "heads")}
    vocab, stages = (int(float(cells.get(name) or 0)) for name in ("vocab", "pp"))
    layers, hidden = known["layers"], known["hidden"]
    if not hidden:
        exact = (params / 12 * ASPECT) ** (1 / 3) if not layers else sqrt(params / 12 / layers)
        unit = HEAD_WIDTH * (EVEN_HEADS if exact >= WIDE else 1)
        hidden = max(1, round(exact / unit)) * unit
    if not layers:
        exact = max(1.0, (params - vocab * hidden) / (12 * hidden**2))
        even = max(1, round(exact / max(1, stages))) * max(1, stages)
        layers = even if abs(even / exact - 1) < SAME_LAYERS else round(exact)
    heads = known["heads"] or min(
        (n for n in range(1, hidden + 1) if hidden % n == 0),
        key=lambda n: abs(hidden / n - HEAD_WIDTH),
    )
    return {"layers": layers, "hidden": hidden, "heads": heads}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
