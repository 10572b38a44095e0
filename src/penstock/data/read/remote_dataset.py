"""A dataset behind a URL: its small files are copied here, its tokens come block by block."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from penstock.data.format.manifest import (
    MANIFEST,
    RECORD,
    TOKENIZER,
    Manifest,
    Shard,
    read_manifest,
)
from penstock.data.format.shard_file import blocks_under
from penstock.data.format.types import Positions
from penstock.data.read.read_ahead import Ahead, Want, block_bytes
from penstock.data.read.remote_shard import FETCHERS, Reach, RemoteShard
from penstock.data.store.cache import Cache
from penstock.data.store.objects import Store
from penstock.errors import PenstockError
from penstock.files import write_synced
from penstock.untrusted import INDEX_BYTES, TOKENIZER_BYTES

_CHUNK_BYTES = 8 << 20
_MOST_KNOWN = 1 << 14
_LARGEST = {MANIFEST: INDEX_BYTES, TOKENIZER: TOKENIZER_BYTES, RECORD: INDEX_BYTES}


class RemoteFolder:
    """`open` fetches manifest and tokenizer and checks them; nothing else is read until needed."""

    def __init__(self, store: Store, folder: Path, manifest: Manifest, cache: Cache) -> None:
        self.url = store.url
        self.folder = folder
        self.manifest = manifest
        self.reach = Reach(store, cache)
        self._shards: list[RemoteShard] = []
        self._ahead: Ahead | None = None
        self._ahead_length = 0
        self._known: dict[tuple[int, int], Want] = {}

    @staticmethod
    def open(url: str, cache: Cache) -> "RemoteFolder":
        store = Store(url)
        folder = cache.folder / "sets" / blake3(store.url.encode()).hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            manifest = _manifest(store, folder)
            _tokenizer(store, folder, manifest)
            with suppress(FileNotFoundError):  # belongs to no version, and may be missing
                (folder / RECORD).unlink(missing_ok=True)
                _copy(store, RECORD, folder)
        except FileNotFoundError as error:
            raise PenstockError(
                f"{url} is not a dataset, or not a whole one: {error.strerror}. Give the URL of a "
                "folder NAME@VERSION that `penstock data copy` has written."
            ) from None
        except OSError as error:
            raise PenstockError(f"{url} cannot be opened: {error.strerror or error}") from None
        except PenstockError as error:
            raise PenstockError(f"{url} cannot be used. {error}") from None
        return RemoteFolder(store, folder, manifest, cache)

    def shard(self, shard: Shard, dtype: np.dtype, first_token: int) -> RemoteShard:
        vocab = self.manifest.vocab
        self._shards.append(RemoteShard(self.reach, shard, dtype, first_token, vocab))
        return self._shards[-1]

    def chunks(self, file: str) -> Iterator[memoryview]:
        return stored_chunks(self.reach.store, file)

    def plan_ahead(
        self, batches: Iterator[Positions], length: int, shard_starts: Positions
    ) -> None:
        if self._ahead:
            self._ahead.close()
        wants = partial(self._wants, length, shard_starts)
        self._ahead_length = length
        self._ahead = Ahead(batches, wants, self.reach.cache, lambda: self.reach.misses, FETCHERS)

    def took(self, starts: Positions, length: int) -> None:
        if self._ahead and length == self._ahead_length and len(starts):
            self._ahead.took(starts)

    def close(self) -> None:
        if self._ahead:
            self._ahead.close()
            self._ahead = None
        self.reach.pool.shutdown(wait=False)

    def _wants(self, length: int, shard_starts: Positions, starts: Positions) -> list[Want]:
        """What a batch needs: blocks of tokens, and the masks beside them."""
        itemsize = np.dtype(self.manifest.dtype).itemsize
        starts = np.asarray(starts, dtype=np.int64)
        first = np.searchsorted(shard_starts, starts, side="right") - 1
        last = np.searchsorted(shard_starts, starts + length - 1, side="right") - 1
        wants = []
        for k in np.unique(np.concatenate([first, last])).tolist():
            shard = self._shards[k].shard
            touching = starts[(first <= k) & (last >= k)]
            begin = np.clip(touching - shard_starts[k], 0, shard.tokens)
            end = np.clip(touching + length - shard_starts[k], 0, shard.tokens)
            blocks: set[int] = set()
            for size in np.unique(end - begin).tolist():
                some = begin[end - begin == size]
                blocks.update(blocks_under(some, size, itemsize, shard.blocks).tolist())
            wants += [self._want(k, block) for block in sorted(blocks)]
            if shard.mask:
                wants.append(self._want(k, -1))
        return wants

    def _want(self, k: int, block: int) -> Want:
        """Made once: the batches of a window want the same few hundred blocks over and over."""
        if (k, block) not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            reader, shard = self._shards[k], self._shards[k].shard
            name = reader.sidecar_name("mask") if block < 0 else reader.block_name(block)
            size = shard.mask_bytes if block < 0 else block_bytes(block, shard.bytes)
            bring, warm = partial(reader.bring, name, block), partial(reader.warm, name, block)
            self._known[k, block] = Want(name, size, bring, warm)
        return self._known[k, block]


def _manifest(store: Store, folder: Path) -> Manifest:
    _copy(store, MANIFEST, folder)
    try:
        return read_manifest(folder)
    except PenstockError:
        _copy(store, MANIFEST, folder)  # the link may have changed it
        return read_manifest(folder)


def _tokenizer(store: Store, folder: Path, manifest: Manifest) -> None:
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
    """BLAKE3 of a file as it is in the store now."""
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
    """Copy a small file: whole or not there, also with several processes at it."""
    aside = folder / f".{file}.{os.getpid()}.{id(store)}"
    write_synced(aside, store.get(file, _LARGEST[file]))
    aside.replace(folder / file)


def _digest(path: Path) -> str:
    return blake3(path.read_bytes()).hexdigest() if path.is_file() else ""
