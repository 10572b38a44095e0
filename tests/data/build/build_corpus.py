"""A small corpus with everything in it, and the recipe that builds it."""

import json
import random
from pathlib import Path
from typing import Any

from penstock.data.recipe.recipe import Recipe

_PROSE = """
the of and to in that is was for it with as on be at by had not are but from or have an they which
one you were all there would their we been has when who will more no if out so said what
"""
WORDS = _PROSE.split()


def text(seed: int, sentences: int = 6) -> str:
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(WORDS, k=rng.randrange(6, 14))) for _ in range(sentences)]
    return "\n".join(f"{line.capitalize()} {seed}." for line in lines)


def write_corpus(folder: Path, files: int = 3, documents: int = 20) -> Path:
    """JSON lines, some in a folder below, with a copy, a near copy and a broken line in each."""
    for file in range(files):
        texts = [text(1000 * file + place) for place in range(documents)]
        texts += [texts[0], f"{texts[1]} Indeed.", f"{text(77777)} Mail me: a@b.org."]
        rows = [
            json.dumps({"text": one, "n": place, "score": place / 100})
            for place, one in enumerate(texts)
        ]
        path = folder / ("deep" if file % 2 else ".") / f"{file}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*rows, '{"text": ']) + "\n")
    return folder


def recipe(path: Path, **changes: Any) -> Recipe:
    """Small and quick: no filters but what `changes` ask for."""
    stored: dict[str, Any] = {
        "name": "small",
        "source": [{"path": str(path)}],
        "clean": {"preset": "code"},
        "tokens": {"vocab": 400},
        "shards": {"size": "16 KiB"},
    }
    for section, fields in changes.items():
        found = stored.get(section)
        stored[section] = (
            {**found, **fields} if isinstance(found, dict) and isinstance(fields, dict) else fields
        )
    return Recipe.model_validate(stored)
