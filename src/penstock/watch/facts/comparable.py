"""Whether the losses of several runs can be compared.

A loss is per token, and another tokenizer cuts the same text into other tokens. So a loss of 3.0
with 32,000 tokens and one of 3.0 with 4,096 say different things. `static/compare.js` has the same
rule for the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NOTE = (
    "The runs have different tokenizers, and a loss is per token: the losses cannot be compared, "
    "so none is marked as the best."
)


def same_tokenizer(plans: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all runs with these plans read the same tokens.

    The plan of an earlier version names no tokenizer; the same dataset has the same one.
    """
    return all(_alike(plans[0], other) for other in plans[1:])


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    key = "tokenizer" if one.get("tokenizer") and other.get("tokenizer") else "dataset"
    return one.get(key) == other.get(key)
