"""Datasets with masks, document starts, rows and packing, written shard by shard."""

from pathlib import Path

import numpy as np
import zstandard
from blake3 import blake3

from penstock.data.format.manifest import FORMAT, MANIFEST, SHARDS, TOKENIZER, Manifest, dtype_for
from penstock.data.format.writer import write_shard
from penstock.data.read.dataset import Dataset


def made_set(
    home: Path,
    tokens: np.ndarray,
    starts: list[int],
    mask: np.ndarray | None = None,
    packed: int = 0,
    shard_tokens: int = 1 << 20,
    name: str = "made",
    vocab: int = 300,
    tokenizer: bytes = b"{}",
    rows: bool = False,
) -> Dataset:
    folder = home / "writing"
    (folder / SHARDS).mkdir(parents=True)
    (folder / TOKENIZER).write_bytes(tokenizer)
    shards = []
    for first in range(0, len(tokens), shard_tokens):
        last = min(first + shard_tokens, len(tokens))
        own = np.array([start - first for start in starts if first <= start < last], dtype=np.int64)
        lines = b"".join(b'{"id": "%d"}\n' % start for start in own)
        shards.append(
            write_shard(
                folder / SHARDS,
                tokens[first:last].astype(dtype_for(vocab)),
                own,
                None if mask is None else mask[first:last],
                zstandard.compress(lines) if rows else b"",
            )
        )
    manifest = Manifest(
        name=name,
        format=FORMAT,
        dtype=dtype_for(vocab),
        vocab=vocab,
        tokens=len(tokens),
        documents=len(starts),
        tokenizer=blake3(tokenizer).hexdigest(),
        recipe={"kind": "test"},
        lineage={},
        counts={},
        shards=tuple(shards),
        packed=packed,
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    target = home / f"{name}@{manifest.version}"
    folder.rename(target)
    return Dataset.open(target)


def tiny_dataset(home: Path) -> str:
    """Build a dataset of 30,000 tokens with structure to learn; return its name and version."""
    from penstock.data.format.writer import DatasetWriter
    from penstock.data.tokenize.tokenizer import train_code_tokenizer

    texts = [f"def f{i}(x):\n    return x + {i % 7}\n" for i in range(1500)]
    tokenizer = train_code_tokenizer(texts, 300)
    with DatasetWriter(home / "datasets", "tiny", tokenizer.vocab, tokenizer.to_json()) as writer:
        for tokens in tokenizer.encode_batch(texts):
            writer.add(np.append(tokens, tokenizer.end))
        return writer.finish({"kind": "test"}, {"files": len(texts)}, {}).name
