"""A text for `sync_loss.py` that is on every machine with Python: the sources of its packages.

The standard library has some nine million tokens, which a run of 25M parameters reads five times.
The installed packages have ten to fifty times that. Files are read in the order of their BLAKE3,
each content once, until there are enough tokens; the tokenizer is trained on the first of them. So
equal packages give equal tokens, and their digest is in every line of results.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.build import stdlib
from penstock.data.tokenize.tokenizer import train_code_tokenizer

Tokens = npt.NDArray[np.uint16]
BATCH_CHARACTERS = 4_000_000  # tokenized at once, on all cores
LONGEST = 1_000_000  # characters; longer files are tables, not text


def read_text(file: Path | None, needed: int) -> Tokens:
    """Return `needed` tokens or all that there are: of `file` if it exists, else built and written
    there.
    """
    if file and file.is_file():
        tokens: Tokens = np.load(file)
    else:
        tokens = build(source_roots(), needed)
        if file:
            np.save(file, tokens)
    return tokens


def digest(tokens: Tokens) -> str:
    """Return 16 digits that tell texts apart."""
    return blake3(np.ascontiguousarray(tokens).view(np.uint8).data).hexdigest()[:16]


def source_roots() -> list[Path]:
    """Return the folders of the packages and of the standard library."""
    names = ("purelib", "platlib", "stdlib")
    return list(dict.fromkeys(Path(sysconfig.get_path(name)).resolve() for name in names))


def build(roots: list[Path], needed: int) -> Tokens:
    """Tokenize sources until there are `needed` tokens, or all of them."""
    texts = _texts(roots)
    tokenizer = train_code_tokenizer(
        stdlib.first_texts(texts, stdlib.TRAIN_CHARACTERS), stdlib.VOCAB
    )
    found: list[Tokens] = []
    count = 0
    for batch in _batches(texts):
        for ids in tokenizer.encode_batch(batch):
            found.append(np.append(ids, tokenizer.end).astype(np.uint16))
            count += len(found[-1])
        if count >= needed:
            break
    return np.concatenate(found)


def _texts(roots: list[Path]) -> list[str]:
    """Return every source once, in the order of its hash."""
    kept: dict[str, str] = {}
    for root in roots:
        for path, _ in stdlib.python_files(root):
            content = (root / path).read_bytes()
            if not content.strip() or len(content) > LONGEST:
                continue
            try:
                kept[blake3(content).hexdigest()] = content.decode()
            except UnicodeDecodeError:
                continue
    return [kept[key] for key in sorted(kept)]


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
