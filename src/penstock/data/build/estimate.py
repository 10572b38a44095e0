"""Lower estimate of the tokens in raw files or a built dataset, without a tokenizer.

For `penstock init`, which chooses a batch that the examples fill several times. Text takes 3 to 5
bytes a token with the tokenizers of open models, so 6 bytes a token is a lower estimate.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.data.format.locate import locate_dataset
from penstock.data.format.manifest import read_manifest
from penstock.data.recipe.source import SourceSection, is_remote
from penstock.data.sources.documents import Document
from penstock.data.sources.files import RawFile
from penstock.data.sources.find import find_files
from penstock.data.sources.guess import guess_fields
from penstock.data.sources.read import read_file
from penstock.errors import PenstockError

_MOST_BYTES_A_TOKEN = 6
_LEAST_BYTES_A_TOKEN = 3
_TEMPLATE_TOKENS = 64  # upper bound of what a chat template adds to a conversation
_LARGE_BYTES = 16 << 20  # more than this is not read: it holds enough tokens


@dataclass(frozen=True)
class TokenEstimate:
    """An estimate of the tokens in a dataset."""

    tokens: int  # lower bound
    longest: int = 0  # upper bound of the longest document, tokens; 0: not known
    packed: int = 0  # sequence length that a built dataset is packed for, tokens


def estimate_tokens(spec: str, enough: int) -> TokenEstimate | None:
    """Estimate the tokens that `spec` holds; stop reading once there are `enough`.

    None: there are enough, or it is not known (missing, remote, a recipe, unreadable).
    """
    try:
        found = locate_dataset(spec)
        if found.kind == "built":
            manifest = read_manifest(found.path)
            estimate = TokenEstimate(manifest.tokens, packed=manifest.packed)
        elif found.kind == "raw" and not is_remote(found.where):
            estimate = _read(found.where, enough)
        else:
            return None
    except (PenstockError, OSError):  # `penstock check` reports it
        return None
    return estimate if estimate.packed or estimate.tokens < enough else None


def _read(where: str, enough: int) -> TokenEstimate:
    files = [one for one in find_files([where]) if isinstance(one, RawFile)]
    if not files:
        raise PenstockError(f"{where}: nothing to read")
    if sum(Path(one.path).stat().st_size for one in files) > _LARGE_BYTES:
        return TokenEstimate(enough)
    options, total, longest = SourceSection(path=where, **guess_fields(where)).options(), 0, 0
    seen: set[int] = set()  # copies of plain text are removed by a build
    for piece in (piece for file in files for piece in read_file(file, options)):
        if isinstance(piece, Document) and (options.chat or hash(piece.text) not in seen):
            seen.add(hash(piece.text))
            size = len(piece.text.encode())
            total, longest = total + size, max(longest, size)
        if total >= enough * _MOST_BYTES_A_TOKEN:
            break
    tokens, most = total // _MOST_BYTES_A_TOKEN, longest // _LEAST_BYTES_A_TOKEN
    return TokenEstimate(tokens, most + _TEMPLATE_TOKENS)
