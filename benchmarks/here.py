"""A set from the text files that lie on this machine: large without a download, documents whole.

Sources, headers, notes and manuals below the Python in use and the system's usual folders. Each
content counts once and stands at the place of its BLAKE3, so that the first tokens of the set are
a fair sample of it, and so are the last. Another machine gives another set: results name it.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from blake3 import blake3

from penstock.data.build.open import build_lock, find_built_for_key, remember_built
from penstock.data.format.locate import datasets_home
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.tokenizer import train_code_tokenizer

NAME = "here"
ROOTS = (
    sys.prefix,
    sys.base_prefix,
    "/usr/include",
    "/usr/lib",
    "/usr/local",
    "/usr/share",
    "/opt",
)
ENDINGS = {".py", ".pyi", ".txt", ".md", ".rst", ".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu"}
# Not longer than most pages of the web: what a window mixes is documents, so there should be many.
MOST_BYTES = 16 << 10
LEAST_BYTES = 200
VOCAB = 4096
TRAIN_CHARACTERS = 8_000_000
BATCH = 1024  # documents


def here(megabytes: float) -> Dataset:
    """So much text of this machine, or all that there is."""
    home, key = datasets_home(), f"{megabytes:g}"
    if found := find_built_for_key(home, NAME, key):
        return found
    with build_lock(home, NAME):
        dataset = build(home, megabytes)
        remember_built(home, NAME, key, dataset.version)
    return dataset


def build(home: Path, megabytes: float) -> Dataset:
    started = time.monotonic()
    found = texts(int(megabytes * 1e6))
    size = sum(len(text) for text in found)
    print(f"{len(found)} documents, {size / 1e6:.1f} M characters", flush=True)
    tokenizer = train_code_tokenizer(list(head(found, TRAIN_CHARACTERS)), VOCAB)
    with DatasetWriter(home, NAME, tokenizer.vocab, tokenizer.to_json()) as writer:
        for at in range(0, len(found), BATCH):
            for ids in tokenizer.encode_batch(found[at : at + BATCH]):
                writer.add(np.append(ids, tokenizer.end))
        folder = writer.finish({"kind": NAME, "megabytes": megabytes}, {"python": sys.version}, {})
    dataset = Dataset.open(folder)
    seconds = time.monotonic() - started
    mean = dataset.tokens / dataset.documents
    print(f"{dataset.id}: {dataset.tokens} tokens, {mean:.0f} a document, {seconds:.0f} s")
    return dataset


def texts(most_bytes: int) -> list[str]:
    """Different contents in the order of their hashes."""
    with ThreadPoolExecutor(32) as pool:
        read = [file for file in pool.map(text_file, sorted(files())) if file]
    different = {blake3(content.encode()).digest(): (ending, content) for ending, content in read}
    chosen: list[str] = []
    sizes: Counter[str] = Counter()
    for _, (ending, content) in sorted(different.items()):
        if sizes.total() >= most_bytes:
            break
        sizes[ending] += len(content.encode())
        chosen.append(content)
    shares = ", ".join(f"{ending} {size / 1e6:.1f}" for ending, size in sizes.most_common())
    print(f"{len(read)} text files, {len(different)} different; chosen, in MB: {shares}")
    return chosen


def files() -> set[Path]:
    roots = {Path(root).resolve() for root in ROOTS}
    return {
        Path(folder, name)
        for root in roots
        if roots.isdisjoint(root.parents)
        for folder, _, names in os.walk(root)
        for name in names
        if os.path.splitext(name)[1] in ENDINGS
    }


def text_file(path: Path) -> tuple[str, str] | None:
    """(ending, text), if it is one and of a fit size."""
    try:
        if not LEAST_BYTES <= path.stat().st_size <= MOST_BYTES:
            return None
        return path.suffix, path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None


def head(found: list[str], characters: int) -> Iterator[str]:
    for text in found:
        if characters <= 0:
            return
        characters -= len(text)
        yield text
