"""The shape behind a model's name, for rows that give a name and no widths."""

import re

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape

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


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
