"""Stage 6, tokenizer: trained on the remaining documents, or loaded from where the recipe says.

It is a file of the work folder like any other result; each process that needs it loads it once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.data.build.dedup import RemainingTexts
from penstock.data.build.parts import pack_rows, result_columns, unpack_rows
from penstock.data.chat.encode import ChatEncoder, Loss
from penstock.data.chat.template import DEFAULT_TEMPLATE, ChatTemplate
from penstock.data.format.columns import Columns, read_columns
from penstock.data.recipe.recipe import Recipe
from penstock.data.recipe.tokens import PLAIN
from penstock.data.tokenize import load
from penstock.data.tokenize.fast import REFERENCE, FastTokenizer
from penstock.data.tokenize.special import (
    END,
    SpecialTokens,
    parse_tokenizer,
    read_special,
    with_special,
)
from penstock.data.tokenize.tokenizer import load_engine, vocabulary_size
from penstock.data.tokenize.train import MOST_HASH, SAMPLE_BYTES, TextSample, train_tokenizer
from penstock.errors import PenstockError

TRAIN = "train"  # value of `tokens.tokenizer` that trains a tokenizer on the dataset


@dataclass(frozen=True)
class PartTokenizer:
    """The tokenizer of a build and the id that ends a document."""

    fast: FastTokenizer
    end: int


@lru_cache(maxsize=1)
def load_part_tokenizer(path: Path, plain: bool) -> PartTokenizer:
    content = tokenizer_json(path)
    fast = FastTokenizer(content, (REFERENCE,) if plain else None)
    return PartTokenizer(fast, read_special(content).end_id)


@lru_cache(maxsize=1)
def load_chat(path: Path, loss: Loss, plain: bool) -> ChatEncoder:
    return ChatEncoder(tokenizer_json(path), loss, (REFERENCE,) if plain else None)


def train_from_texts(recipe: Recipe, texts: RemainingTexts, parts: int) -> Columns:
    """Train a tokenizer on the remaining documents."""
    return _train(recipe, (text for part in range(parts) for text in texts(part)[0] if text))


def sample_parts(parts: tuple[int, ...], texts: RemainingTexts, most_hash: int) -> Columns:
    """Return the documents of some parts that may be in the sample that trains a tokenizer."""
    sample = TextSample(SAMPLE_BYTES, most_hash)
    for part in parts:
        sample.add(texts(part)[0])
    packed = pack_rows("texts", [text.encode() for text in sample.texts()])
    return {**packed, **result_columns(len(packed["texts"]))}


def sample_limit(text_bytes: int) -> int:
    """Return a hash below which so much text has about four times what the sample needs."""
    return min(MOST_HASH, 4 * SAMPLE_BYTES * MOST_HASH // max(1, text_bytes))


def wider_limit(most_hash: int, found_bytes: int) -> int | None:
    """Return a limit to sample again with; None if the texts found are the whole sample."""
    if most_hash == MOST_HASH or found_bytes >= SAMPLE_BYTES:
        return None
    return min(MOST_HASH, 8 * most_hash)


def train_from_samples(recipe: Recipe, samples: tuple[Path, ...]) -> Columns:
    """Train a tokenizer on the samples of all parts."""
    found = map(read_columns, samples)
    return _train(
        recipe, (str(row, "utf-8") for columns in found for row in unpack_rows(columns, "texts"))
    )


def _train(recipe: Recipe, texts: Iterable[str]) -> Columns:
    content = train_tokenizer(texts, recipe.tokens.vocab, sample_bytes=SAMPLE_BYTES)
    template = read_template(recipe)
    if template is not None:
        content = with_special(content, replace(read_special(content), template=template))
    return _stored(content, "")


def load_named(recipe: Recipe) -> Columns:
    """Load the tokenizer that the recipe names."""
    config = recipe.tokens
    content, special = load.load_tokenizer(config.tokenizer, config.end, read_template(recipe))
    return _stored(content, special.origin)


def read_template(recipe: Recipe) -> str | None:
    path = recipe.tokens.chat_template
    if path is None:
        return None
    if path == PLAIN:
        return DEFAULT_TEMPLATE
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PenstockError(
            f"chat_template = {path!r} cannot be read: {error}. Give a file with a template "
            f'in Jinja, "{PLAIN}", or leave it out for the tokenizer\'s own.'
        ) from None


def check_template(recipe: Recipe, tokenizer: Path) -> None:
    """Refuse a bad chat template before hours of work are spent."""
    if recipe.tokens.tokenizer == TRAIN:
        special = SpecialTokens(END, 0, template=read_template(recipe) or DEFAULT_TEMPLATE)
    else:
        special = read_special(tokenizer_json(tokenizer))
    if any(source.is_chat for source in recipe.source):
        ChatTemplate(special.template or DEFAULT_TEMPLATE, special)


def _stored(content: bytes, origin: str) -> Columns:
    vocab = vocabulary_size(load_engine(parse_tokenizer(content)))
    return {
        "tokenizer": np.frombuffer(content, np.uint8),
        **result_columns({"origin": origin, "vocab": vocab}),
    }


def tokenizer_json(path: Path) -> bytes:
    return bytes(read_columns(path, "tokenizer")["tokenizer"].tobytes())
