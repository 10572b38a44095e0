"""Gives a written dataset masks and rows, as the builder would."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import zstandard
from blake3 import blake3

from penstock.data.format.manifest import MANIFEST, read_manifest
from penstock.data.read.dataset import Dataset


def with_masks(folder: Path, mask: np.ndarray, shards: set[int] | None = None) -> Dataset:
    """`mask` over all tokens, stored for the named shards; rows number the documents."""
    manifest = read_manifest(folder)
    made, at, document = [], 0, 0
    for k, shard in enumerate(manifest.shards):
        lines = [json.dumps({"id": f"d{document + n}"}) for n in range(shard.documents)]
        rows = zstandard.ZstdCompressor().compress("".join(f"{line}\n" for line in lines).encode())
        named = {"rows": _store(folder, rows, "rows"), "rows_bytes": len(rows)}
        if shards is None or k in shards:
            bits = np.packbits(mask[at : at + shard.tokens]).tobytes()
            named["mask"] = _store(folder, bits, "mask")
        made.append(replace(shard, **named))
        at, document = at + shard.tokens, document + shard.documents
    manifest = replace(manifest, shards=tuple(made))
    (folder / MANIFEST).write_text(manifest.to_json())
    return Dataset.open(folder)


def _store(folder: Path, content: bytes, kind: str) -> str:
    digest = blake3(content).hexdigest()
    (folder / "shards" / f"{digest}.{kind}").write_bytes(content)
    return digest
