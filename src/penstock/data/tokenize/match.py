"""Check that a dataset was built with the tokenizer of the model that will train on it."""

from pathlib import Path

from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.special import parse_tokenizer
from penstock.data.tokenize.tokenizer import load_engine
from penstock.errors import PenstockError

TOKENIZER = "tokenizer.json"


def refuse_other_tokenizer(dataset: Dataset, folder: Path) -> None:
    """Raise PenstockError if a token of the dataset has another id for the model in `folder`.

    The model may have more tokens than the dataset. A model without tokenizer.json is not checked.
    """
    if not (folder / TOKENIZER).is_file():
        return
    theirs, ours = (folder / TOKENIZER).read_bytes(), dataset.tokenizer_json()
    if theirs == ours:
        return
    known, used = _ids(theirs), _ids(ours)
    other = {token: at for token, at in used.items() if known.get(token) != at}
    if not other:
        return
    token, at = min(other.items(), key=lambda one: one[1])
    in_model = f"is token {known[token]}" if token in known else "is no token"
    raise PenstockError(
        f"data: {dataset.id} was built with another tokenizer than that of the model: {token!r} is "
        f"token {at} in it and {in_model} of {folder}, and so are {len(other):,} of {len(used):,} "
        "tokens. Name the raw files in data.dataset, which are then read with the model's own "
        f'tokenizer; or build the dataset with `tokenizer = "{folder}"` in its recipe'
    )


def _ids(content: bytes) -> dict[str, int]:
    return load_engine(parse_tokenizer(content)).get_vocab(with_added_tokens=True)
