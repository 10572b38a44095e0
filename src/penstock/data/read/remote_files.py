"""The files of a dataset behind a URL: small files are copied here, tokens come block by block."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.format.manifest import (
    BUILD_RECORD,
    MANIFEST,
    TOKENIZER,
    Manifest,
    read_manifest,
)
from penstock.data.format.shard_file import blocks_under
from penstock.data.format.types import Positions
from penstock.data.read.read_ahead import PlannedRead, ReadAhead, block_bytes
from penstock.data.read.remote_shard import FETCHERS, RemoteAccess, RemoteShard
from penstock.data.read.shard_bounds import ShardBounds
from penstock.data.store.cache import Cache
from penstock.data.store.objects import Store
from penstock.errors import PenstockError
from penstock.files import write_synced
from penstock.untrusted import INDEX_BYTES, TOKENIZER_BYTES

_CHUNK_BYTES = 8 << 20
_MAX_KNOWN_READS = 1 << 14
_MAX_BYTES = {MANIFEST: INDEX_BYTES, TOKENIZER: TOKENIZER_BYTES, BUILD_RECORD: INDEX_BYTES}


class RemoteDatasetFiles:
    """Access to the shards of a dataset behind a URL, through the cache, with read-ahead."""

    def __init__(self, store: Store, manifest: Manifest, cache: Cache) -> None:
        self.where = store.url
        self.manifest = manifest
        self.access = RemoteAccess(store, cache)
        dtype = np.dtype(manifest.dtype)
        self._bounds = ShardBounds(manifest)
        self.shards = [
            RemoteShard(self.access, shard, dtype, first_token, manifest.vocab)
            for shard, first_token in zip(
                manifest.shards, self._bounds.starts.tolist(), strict=False
            )
        ]
        self._ahead: ReadAhead | None = None
        self._ahead_length = 0
        self._known_reads: dict[tuple[int, int], PlannedRead] = {}

    def crops(self, starts: Positions, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return crops [len(starts), length]; waits for blocks that are not in the cache yet."""
        stored = np.dtype(self.manifest.dtype)
        crops = self._bounds.gather(
            starts, length, stored, lambda k, inside, count: self.shards[k].crops(inside, count)
        )
        if self._ahead and length == self._ahead_length and len(starts):
            self._ahead.batch_taken(starts)
        return crops if np.dtype(dtype) == stored else crops.astype(dtype)

    def chunks(self, file: str) -> Iterator[memoryview]:
        """Yield a file in parts that hold whole tokens."""
        return stored_chunks(self.access.store, file)

    def plan_ahead(self, batches: Iterator[Positions], length: int) -> None:
        """Fetch the blocks of the coming batches in the background."""
        if self._ahead:
            self._ahead.close()
        self._ahead_length = length
        self._ahead = ReadAhead(
            batches,
            partial(self._reads_of_batch, length),
            self.access.cache,
            lambda: self.access.misses,
            FETCHERS,
        )

    def close(self) -> None:
        """End the background threads."""
        if self._ahead:
            self._ahead.close()
            self._ahead = None
        self.access.pool.shutdown(wait=False)

    def _reads_of_batch(self, length: int, starts: Positions) -> list[PlannedRead]:
        """Return the reads that a batch needs: blocks of tokens, and their masks."""
        shard_starts = self._bounds.starts
        itemsize = np.dtype(self.manifest.dtype).itemsize
        starts = np.asarray(starts, dtype=np.int64)
        first = np.searchsorted(shard_starts, starts, side="right") - 1
        last = np.searchsorted(shard_starts, starts + length - 1, side="right") - 1
        reads = []
        for k in np.unique(np.concatenate([first, last])).tolist():
            shard = self.shards[k].shard
            touching = starts[(first <= k) & (last >= k)]
            begin = np.clip(touching - shard_starts[k], 0, shard.tokens)
            end = np.clip(touching + length - shard_starts[k], 0, shard.tokens)
            blocks: set[int] = set()
            for size in np.unique(end - begin).tolist():
                same_size = begin[end - begin == size]
                blocks.update(blocks_under(same_size, size, itemsize, shard.blocks).tolist())
            reads += [self._planned_read(k, block) for block in sorted(blocks)]
            if shard.mask:
                reads.append(self._planned_read(k, -1))
        return reads

    def _planned_read(self, k: int, block: int) -> PlannedRead:
        """Return the read of a block of shard k, or of its mask (block -1).

        Reused: the batches of a window read the same few hundred blocks over and over.
        """
        if (k, block) not in self._known_reads:
            if len(self._known_reads) >= _MAX_KNOWN_READS:
                self._known_reads.clear()
            reader, shard = self.shards[k], self.shards[k].shard
            name = reader.sidecar_name("mask") if block < 0 else reader.block_name(block)
            size = shard.mask_bytes if block < 0 else block_bytes(block, shard.bytes)
            self._known_reads[k, block] = PlannedRead(
                name, size, partial(reader.fetch, name, block), partial(reader.load, name, block)
            )
        return self._known_reads[k, block]


def open_remote(url: str, cache: Cache) -> tuple[Path, RemoteDatasetFiles]:
    """Fetch and check manifest and tokenizer; return the folder that holds them, and the files."""
    store = Store(url)
    folder = cache.folder / "sets" / blake3(store.url.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = _fetch_manifest(store, folder)
        _fetch_tokenizer(store, folder, manifest)
        with suppress(FileNotFoundError):  # not part of the version, and may be missing
            (folder / BUILD_RECORD).unlink(missing_ok=True)
            _copy(store, BUILD_RECORD, folder)
    except FileNotFoundError as error:
        raise PenstockError(
            f"{url} is not a dataset, or not a complete one: {error.strerror}. Give the URL of a "
            "folder NAME@VERSION that `penstock data copy` has written."
        ) from None
    except OSError as error:
        raise PenstockError(f"{url} cannot be opened: {error.strerror or error}") from None
    except PenstockError as error:
        raise PenstockError(f"{url} cannot be used. {error}") from None
    return folder, RemoteDatasetFiles(store, manifest, cache)


def _fetch_manifest(store: Store, folder: Path) -> Manifest:
    _copy(store, MANIFEST, folder)
    try:
        return read_manifest(folder)
    except PenstockError:
        _copy(store, MANIFEST, folder)  # the network may have damaged it
        return read_manifest(folder)


def _fetch_tokenizer(store: Store, folder: Path, manifest: Manifest) -> None:
    path = folder / TOKENIZER
    for _ in range(2):
        if _digest(path) == manifest.tokenizer:
            return
        _copy(store, TOKENIZER, folder)
    if _digest(path) != manifest.tokenizer:
        raise PenstockError(
            f"{store.where(TOKENIZER)} is damaged: it does not match its hash. It was fetched "
            "twice. Copy the dataset there again from a good one."
        )


def stored_digest(store: Store, file: str) -> str:
    """Return the BLAKE3 of a file as it is in the store now."""
    digest = blake3()
    for chunk in stored_chunks(store, file):
        digest.update(chunk)
    return digest.hexdigest()


def stored_chunks(store: Store, file: str) -> Iterator[memoryview]:
    """Yield a file as it is in the store now."""
    size = store.head(file).size
    for at in range(0, size, _CHUNK_BYTES):
        yield store.get_range(file, at, min(at + _CHUNK_BYTES, size))


def _copy(store: Store, file: str, folder: Path) -> None:
    """Copy a small file; it is complete or absent, also with several processes at work."""
    temporary = folder / f".{file}.{os.getpid()}.{id(store)}"
    write_synced(temporary, store.get(file, _MAX_BYTES[file]))
    temporary.replace(folder / file)


def _digest(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest() if path.is_file() else ""
