"""The tokenizer of an exported model, as the files that transformers looks for.

Our datasets keep all of it in one tokenizer.json (`data/tokenize/special.py`); other programs read
the end-of-text token and the chat template from files beside it.
"""

import json
from typing import Any

from penstock.data.chat.template import DEFAULT_TEMPLATE
from penstock.data.tokenize.special import SpecialTokens, read_special

_TEMPLATE = "chat_template.jinja"


def tokenizer_files(content: bytes, context: int) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the files of a tokenizer that came with a dataset and its ids for config.json."""
    special = read_special(content)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **special.names,
        "eos_token": special.end,
    }
    told = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    files = {"tokenizer.json": content, "tokenizer_config.json": told}
    return files | _template(special), {"eos_token_id": special.end_id}


def with_template(files: dict[str, bytes], content: bytes) -> dict[str, bytes]:
    """Return an open model's own files, with the chat template that the run was trained with."""
    return {**files, **_template(read_special(content))}


def _template(special: SpecialTokens) -> dict[str, bytes]:
    source = special.template
    if source == DEFAULT_TEMPLATE:  # others know the token that ends a text by its usual name alone
        source = source.replace("end_token", "eos_token")
    return {_TEMPLATE: source.encode()} if source else {}
