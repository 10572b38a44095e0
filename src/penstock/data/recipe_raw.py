"""The recipe of raw files that a run names without one: what their rows are is looked up."""

from pathlib import Path

from penstock.data.recipe import Recipe
from penstock.data.recipe_tokens import PLAIN
from penstock.data.source_guess import guess
from penstock.data.token_load import has_template
from penstock.errors import PenstockError


def raw_recipe(
    spec: str,
    tokenizer: str | None = None,
    vocab: int | None = None,
    pack: int = 0,
    chat_template: str | None = None,
) -> Recipe:
    """Text, or conversations packed for samples of `pack` tokens.

    A model that is given conversations without having a way to read them is a mistake that only
    shows when one talks to it, so it is refused.
    """
    rows = guess(spec)
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
