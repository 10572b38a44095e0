"""Loading of recipes: from a file, or made up for raw files that are named without one.

Mistakes in a file are reported as for a run file: all at once, with their lines.
"""

from collections.abc import Mapping, Sequence
from glob import has_magic
from pathlib import Path

from penstock.data.format.locate import KINDS, PACKINGS
from penstock.data.format.manifest import MANIFEST
from penstock.data.recipe.recipe import Recipe
from penstock.data.recipe.source import is_remote
from penstock.data.recipe.tokens import LEAST_PACK, LEAST_VOCAB, PLAIN
from penstock.data.sources.guess import CHOSEN, first_row_fields, guess_fields
from penstock.data.tokenize.load import has_template
from penstock.errors import PenstockError
from penstock.found import located
from penstock.run.fields import Schema
from penstock.run.load import check_table, load_as
from penstock.run.schema.preference import NEXT_TOKEN, ON_PAIRS

_START = 'write [[source]] with path = "corpus/*.jsonl"'
RECIPE = Schema(
    Recipe,
    noun="recipe",
    start=_START,
    absent=_START.replace("write", "name raw files, or write a TOML file that has"),
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
    """Load a recipe and make its paths absolute; overrides are like "tokens.vocab=65536"."""
    return load_as(RECIPE, Path(path), overrides).rooted(Path(path).resolve().parent)


def recipe_of(spec: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe for the argument of `penstock data build`: a recipe file, or raw files.

    Raw files are a file of a known kind, a folder, a glob, a URL or `hf:org/name`. Overrides are
    like "tokens.vocab=65536".
    """
    path = Path(spec).expanduser()
    if (path / MANIFEST).is_file():
        raise PenstockError(
            f"{spec} is a built dataset already; write it as data.dataset, or name raw files"
        )
    packed = path.suffix.lower() in PACKINGS
    ending = Path(path.stem).suffix if packed else path.suffix
    raw = path.is_file() and ending.lower() in KINDS
    if not (raw or path.is_dir() or is_remote(spec) or has_magic(spec)):
        return load_recipe(path, overrides)
    recipe = raw_recipe(spec)
    if not overrides:
        return recipe
    return check_table(RECIPE, recipe.to_table(), overrides, path)


def raw_recipe(
    spec: str,
    tokenizer: str | None = None,
    vocab: int | None = None,
    pack: int = 0,
    chat_template: str | None = None,
    objective: str = NEXT_TOKEN,
) -> Recipe:
    """Return the recipe for raw files: text, or conversations packed for samples of `pack` tokens.

    Conversations without a chat template are refused: the mistake would only show when somebody
    talks to the trained model. So are rows that the objective cannot learn from.
    """
    if vocab and vocab < LEAST_VOCAB and not tokenizer:
        raise PenstockError(
            f"model.vocab = {vocab}: a tokenizer is trained on {spec}, with {LEAST_VOCAB} tokens "
            f"at least; write {LEAST_VOCAB} or more, or leave it out"
        )
    rows = guess_fields(spec, pairs=objective in ON_PAIRS)
    if objective in ON_PAIRS:
        _refuse_no_pairs(spec, rows, objective, pack)
    chat_template = located(chat_template) if chat_template else None
    if chat_template not in (None, PLAIN) and not Path(chat_template).is_file():
        raise PenstockError(
            f'data.chat_template = "{chat_template}": no such file; write one that holds a '
            f'template in Jinja, "{PLAIN}", or leave it out for that of the model\'s tokenizer'
        )
    if "messages" in rows and tokenizer and not chat_template and not has_template(tokenizer):
        raise PenstockError(
            f"data.dataset = {spec!r}: its rows are conversations, and the tokenizer of "
            f"{tokenizer} has no chat template that says how they become text. Set "
            'data.chat_template = "chat.jinja", a file with one (that of the model\'s instruct '
            'version, say), or "default" for a plain one of Penstock.'
        )
    return Recipe.default(spec, tokenizer, vocab, rows, pack, chat_template)


def _refuse_no_pairs(spec: str, rows: Mapping[str, str], objective: str, pack: int) -> None:
    """Refuse files whose first row is no pair, before they are built."""
    names = first_row_fields(spec)
    if names and CHOSEN not in rows:
        raise PenstockError(
            f'train.objective = "{objective}": the rows of {spec} are no pairs: the first has '
            f"{', '.join(f'`{name}`' for name in sorted(names))}. Pairs have `prompt`, `chosen` "
            f'and `rejected`; or write train.objective = "{NEXT_TOKEN}"'
        )
    if pack < LEAST_PACK:
        raise PenstockError(
            f"data.sequence = {pack}: too short for a prompt and its answer; write {LEAST_PACK} "
            "tokens or more"
        )
