"""Reads a recipe file; mistakes are told as for a run file: all at once, with their lines."""

from collections.abc import Sequence
from pathlib import Path

from penstock.data.recipe.recipe import Recipe
from penstock.run.fields import Schema
from penstock.run.load import load_as

_START = 'write [[source]] with path = "corpus/*.jsonl"'
RECIPE = Schema(
    Recipe,
    noun="recipe",
    start=_START,
    absent=_START.replace("write", "write one: name a TOML file with"),
    override="tokens.vocab=65536",
    reference="penstock schema --recipe --markdown",
    missing={("source",): _START.removeprefix("write ")},
    elsewhere={
        "vocab_size": "tokens.vocab",
        "seq_len": "tokens.pack",
        "sequence": "tokens.pack",
        "minhash": "dedup.near",
        "exact": "dedup.documents",
        "fuzzy": "dedup.near",
        "languages": "clean.language",
        "sources": "[[source]]",
        "filters": "[clean]",
        "text_key": "text in [[source]]",
    },
)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, its paths made absolute; overrides are "tokens.vocab=65536"."""
    return load_as(RECIPE, Path(path), overrides).rooted(Path(path).resolve().parent)
