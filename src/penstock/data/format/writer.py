"""Writer of datasets: documents stream into shards; the finished folder appears in one rename.

Everything is written into a hidden folder next to the target and synced to disk before the rename,
so a dataset that has a name is complete. A killed writer leaves only the hidden folder, which
`build/home.py` removes.
"""

import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import xxhash
from blake3 import blake3

from penstock.data.format.manifest import (
    BLOCK_BYTES,
    FORMAT,
    MANIFEST,
    SHARDS,
    TOKENIZER,
    Json,
    Manifest,
    Shard,
    dtype_for,
)
from penstock.data.format.types import Tokens
from penstock.errors import PenstockError
from penstock.files import process_name, sync, write_synced

SHARD_BYTES = 128 << 20
UNFINISHED = ".writing-"  # prefix of files that are not complete yet


def unfinished_prefix(name: str) -> str:
    """Return the prefix of a writer's hidden folders; the '@' keeps 'a' from matching 'a-b'."""
    return f"{UNFINISHED}{name}@"


class DatasetWriter:
    """Writer of one dataset. Use as a context manager; without `finish` nothing is left behind."""

    def __init__(
        self,
        home: Path,
        name: str,
        vocab: int,
        tokenizer_json: bytes,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._dtype = np.dtype(dtype_for(vocab))
        if shard_bytes < self._dtype.itemsize or shard_bytes % self._dtype.itemsize:
            raise ValueError(f"shard_bytes must be a multiple of {self._dtype.itemsize}")
        self._home = home
        self._name = name
        self._vocab = vocab
        self._tokenizer = tokenizer_json
        self._shard_bytes = shard_bytes
        self._folder = home / f"{unfinished_prefix(name)}{uuid.uuid4().hex}"
        (self._folder / SHARDS).mkdir(parents=True)
        self._done: list[Shard] = []
        self._open: _TokenShardWriter | None = None

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open:
            self._open.file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, tokens: npt.ArrayLike) -> None:
        """Append one document. It may continue in the next shard."""
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not ids.size:
            raise ValueError(f"a document is a row of tokens, found shape {ids.shape}")
        if ids.min() < 0 or ids.max() >= self._vocab:
            raise PenstockError(
                f"Dataset {self._name}: a document has tokens from {ids.min()} to {ids.max()}, "
                f"outside the vocabulary of {self._vocab}. Encode with this dataset's tokenizer."
            )
        content = memoryview(ids.astype(self._dtype, copy=False).tobytes())
        starts = True
        while content:
            if self._open is None:
                self._open = _TokenShardWriter(self._folder / SHARDS, self._dtype.itemsize)
            room = self._shard_bytes - self._open.bytes
            self._open.write(content[:room], starts)
            content, starts = content[room:], False
            if self._open.bytes == self._shard_bytes:
                self._close_shard()

    def finish(
        self, recipe: dict[str, Json], lineage: dict[str, Json], counts: dict[str, dict[str, int]]
    ) -> Path:
        """Name the dataset and make it visible; return its folder."""
        if self._open:
            self._close_shard()
        manifest = Manifest(
            name=self._name,
            format=FORMAT,
            dtype=self._dtype.str,
            vocab=self._vocab,
            tokens=sum(shard.tokens for shard in self._done),
            documents=sum(shard.documents for shard in self._done),
            tokenizer=blake3(self._tokenizer).hexdigest(),
            recipe=recipe,
            lineage=lineage,
            counts=counts,
            shards=tuple(self._done),
        )
        write_synced(self._folder / TOKENIZER, self._tokenizer)
        write_synced(self._folder / MANIFEST, manifest.to_json().encode())
        sync(self._folder / SHARDS)
        sync(self._folder)
        target = self._home / f"{self._name}@{manifest.version}"
        try:
            self._folder.rename(target)
        except OSError:
            # The version is a hash of the content: a folder of that name is this same dataset.
            if not target.is_dir():
                raise
        sync(self._home)
        return target

    def _close_shard(self) -> None:
        assert self._open is not None
        self._done.append(self._open.close())
        self._open = None


def write_shard(
    folder: Path,
    tokens: Tokens,
    starts: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_] | None = None,
    rows: bytes = b"",
) -> Shard:
    """Write one shard; `starts` are the first tokens of its documents, `rows` a stored sidecar."""
    writer = _TokenShardWriter(folder, tokens.itemsize)
    writer.write(np.ascontiguousarray(tokens).data.cast("B"), starts_document=False)
    shard = writer.close(starts)
    if mask is not None:
        shard = replace(shard, mask=_sidecar(folder, "mask", np.packbits(mask).tobytes()))
    if rows:
        shard = replace(shard, rows=_sidecar(folder, "rows", rows), rows_bytes=len(rows))
    return shard


class _TokenShardWriter:
    """The token file of one shard, hashed while it is written and then named by its hash."""

    def __init__(self, folder: Path, itemsize: int) -> None:
        self.bytes = 0
        self._temporary = folder / f"{UNFINISHED}{process_name()}"
        self.file = self._temporary.open("wb")
        self._folder = folder
        self._itemsize = itemsize
        self._hash = blake3()
        self._block = xxhash.xxh3_64()
        self._sums: list[int] = []
        self._docs: list[int] = []

    def write(self, content: memoryview, starts_document: bool) -> None:
        if starts_document:
            self._docs.append(self.bytes // self._itemsize)
        self.file.write(content)
        self._hash.update(content)
        while content:
            room = BLOCK_BYTES - self.bytes % BLOCK_BYTES
            self._block.update(content[:room])
            self.bytes += len(content[:room])
            if self.bytes % BLOCK_BYTES == 0:
                self._close_block()
            content = content[room:]

    def close(self, starts: npt.ArrayLike | None = None) -> Shard:
        """Name the file; `starts` of documents replace those that `write` collected."""
        docs = np.asarray(self._docs if starts is None else starts, dtype="<u8")
        if self.bytes % BLOCK_BYTES:
            self._close_block()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        digest = self._hash.hexdigest()
        self._temporary.rename(self._folder / f"{digest}.bin")
        return Shard(
            blake3=digest,
            tokens=self.bytes // self._itemsize,
            bytes=self.bytes,
            sums=_sidecar(self._folder, "sums", np.array(self._sums, dtype="<u8").tobytes()),
            docs=_sidecar(self._folder, "docs", docs.tobytes()),
            documents=len(docs),
        )

    def _close_block(self) -> None:
        self._sums.append(self._block.intdigest())
        self._block.reset()


def _sidecar(folder: Path, kind: str, content: bytes) -> str:
    digest = blake3(content).hexdigest()
    # Renamed: two workers may write the same sidecar, and one may be killed while it writes.
    temporary = folder / f"{UNFINISHED}{digest}.{process_name()}"
    write_synced(temporary, content)
    temporary.rename(folder / f"{digest}.{kind}")
    return digest
