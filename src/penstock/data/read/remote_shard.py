"""One shard of a dataset behind a URL: blocks by range reads through the cache, each checked."""

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import xxhash
from blake3 import blake3

from penstock.data.format.manifest import BLOCK_BYTES, SHARDS, Shard
from penstock.data.format.shard_file import (
    BadBlock,
    bad_block,
    bad_sidecar,
    blocks_under,
    refuse_bad_docs,
    refuse_foreign_ids,
)
from penstock.data.format.types import Content, Positions, Tokens
from penstock.data.store.cache import Buffer, Cache, DamagedEntry
from penstock.data.store.objects import Store
from penstock.errors import RunFailed

# Two windows of the window order: a block is read from disk and checked once, not per sample.
MEMORY_BYTES = 768 << 20
_FIX = "It was fetched twice. Copy the dataset there again from a good one."
_MARK_USED_EVERY_S = 5.0  # how often the use of content in memory is noted in the disk cache
FETCHERS = 16


class MemoryCache:
    """Checked content in memory; the least recently used is removed first."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._content: OrderedDict[str, tuple[Content, float]] = OrderedDict()
        self._lock = Lock()

    def has(self, name: str) -> bool:
        return name in self._content

    def get(self, name: str, used: Callable[[str], None]) -> Content | None:
        with self._lock:
            entry = self._content.get(name)
            if not entry:
                return None
            content, marked_at = entry
            self._content.move_to_end(name)
            now = time.monotonic()
            if now - marked_at > _MARK_USED_EVERY_S:
                self._content[name] = content, now
        if now - marked_at > _MARK_USED_EVERY_S:
            used(name)
        return content

    def put(self, name: str, content: Content) -> None:
        with self._lock:
            if name not in self._content:
                self._bytes += content.size
            self._content[name] = content, time.monotonic()
            while self._bytes > self._max_bytes and len(self._content) > 1:
                self._bytes -= self._content.popitem(last=False)[1][0].size


class RemoteAccess:
    """Store, caches and counters that all shards of a remote dataset share."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self.store = store
        self.cache = cache
        self.memory = MemoryCache()
        self.misses = 0  # how often a reader had to wait for the store
        self.fetched_bytes = 0
        self.pool = ThreadPoolExecutor(FETCHERS, thread_name_prefix="penstock-fetch")

    def fetch(self, file: str, start: int, stop: int) -> Buffer:
        try:
            content = self.store.get_range(file, start, stop)
        except FileNotFoundError:  # deleted or cut short: treated like damage
            raise
        except OSError as error:
            raise RunFailed(
                f"The dataset cannot be read: {error.strerror or error}. Fix the network or the "
                "store, then start again: the run goes on where it was."
            ) from None
        self.fetched_bytes += stop - start
        return content


class RemoteShard:
    """Reader of one remote shard. Safe from several threads."""

    def __init__(
        self, access: RemoteAccess, shard: Shard, dtype: np.dtype, first_token: int, vocab: int
    ) -> None:
        self.shard = shard
        self._access = access
        self._dtype = dtype
        self._first_token = first_token  # its position in the dataset
        self._vocab = vocab
        self._file = f"{SHARDS}/{shard.blake3}.bin"
        self._sizes = {name: size for name, (_, size) in shard.files().items()}
        # Entries that were fetched twice and are bad: not fetched again. The value is the store's
        # error, if there was one.
        self._bad: dict[str, str] = {}

    def crops(self, starts: Positions, length: int) -> Tokens:
        itemsize = self._dtype.itemsize
        blocks = blocks_under(starts, length, itemsize, self.shard.blocks).tolist()
        tokens = {
            block: content.view(self._dtype) for block, content in self._read_blocks(blocks).items()
        }
        per_block = BLOCK_BYTES // itemsize
        out = np.empty((len(starts), length), dtype=self._dtype)
        # A batch touches nearly as many blocks as it has rows: vectorizing would not help.
        for row, start in enumerate(starts.tolist()):
            at = 0
            while at < length:
                block, inside = divmod(start + at, per_block)
                piece = tokens[block][inside : inside + length - at]
                out[row, at : at + len(piece)] = piece
                at += len(piece)
        return out

    def sidecar(self, kind: str) -> Content:
        name, size = self._sidecar_name(kind)
        if not size:
            return np.empty(0, np.uint8)
        content = self._content_for_reader(name, lambda: self._cached_sidecar(kind))
        if kind == "docs":
            where = self._access.store.where(f"{SHARDS}/{name}")
            refuse_bad_docs(content, where, self.shard, self._first_token, _FIX)
        return content

    def fetch(self, name: str, block: int) -> None:
        """Fetch a block, or (block -1) the sidecar that `name` ends with, into the cache."""
        if not self._access.cache.has(name) and not self._access.memory.has(name):
            self._fetched(name, block)

    def load(self, name: str, block: int) -> None:
        """Load an entry of the cache into memory."""
        if not self._access.memory.has(name) and self._access.cache.has(name):
            self._content(name, lambda: self._fetched(name, block))

    def _fetched(self, name: str, block: int) -> Buffer:
        return (
            self._cached_block(block)
            if block >= 0
            else self._cached_sidecar(name.rpartition(".")[2])
        )

    def block_name(self, block: int) -> str:
        return f"{self.shard.blake3}-{block}"

    def sidecar_name(self, kind: str) -> str:
        return self._sidecar_name(kind)[0]

    def _sidecar_name(self, kind: str) -> tuple[str, int]:
        name = f"{getattr(self.shard, kind)}.{kind}"
        return name, self._sizes[f"{SHARDS}/{name}"]

    def _read_blocks(self, blocks: list[int]) -> dict[int, Content]:
        memory, used = self._access.memory, self._access.cache.mark_used
        contents = {block: memory.get(self.block_name(block), used) for block in blocks}
        missing = [block for block, content in contents.items() if content is None]
        # Several at once: without read-ahead each costs a round trip.
        several = len(missing) > 1
        read = (
            self._access.pool.map(self._load_block, missing)
            if several
            else map(self._load_block, missing)
        )
        contents.update(zip(missing, read, strict=True))
        return {block: content for block, content in contents.items() if content is not None}

    def _load_block(self, block: int) -> Content:
        content = self._content_for_reader(
            self.block_name(block), lambda: self._cached_block(block)
        )
        where = self._access.store.where(self._file)
        tokens = content.view(self._dtype)
        refuse_foreign_ids(tokens, where, block, self.shard, self._first_token, self._vocab)
        return content

    def _content_for_reader(self, name: str, load: Callable[[], Buffer]) -> Content:
        """Return content for the reader; count a miss if the reader has to wait for it."""
        access = self._access
        if not access.memory.has(name) and not access.cache.has(name):
            access.misses += 1
        return self._content(name, load)

    def _content(self, name: str, load: Callable[[], Buffer]) -> Content:
        access = self._access
        content = access.memory.get(name, access.cache.mark_used)
        if content is None:
            content = np.frombuffer(load(), np.uint8)
            access.memory.put(name, content)
        return content

    def _cached_block(self, block: int) -> Buffer:
        start = block * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.shard.bytes)
        sums = self._content(f"{self.shard.sums}.sums", lambda: self._cached_sidecar("sums"))
        expected = int(sums.view("<u8")[block])
        return self._cached(
            self.block_name(block),
            lambda content: xxhash.xxh3_64_intdigest(content) == expected,
            lambda: self._access.fetch(self._file, start, stop),
            lambda fix: bad_block(
                self._access.store.where(self._file), block, self.shard, self._first_token, fix
            ),
        )

    def _cached_sidecar(self, kind: str) -> Buffer:
        name, size = self._sidecar_name(kind)
        file, digest = f"{SHARDS}/{name}", name.partition(".")[0]
        return self._cached(
            name,
            lambda content: blake3(content).hexdigest() == digest,
            lambda: self._access.fetch(file, 0, size),
            lambda fix: bad_sidecar(
                self._access.store.where(file), self.shard, self._first_token, fix
            ),
        )

    def _cached(
        self,
        name: str,
        is_good: Callable[[Buffer], bool],
        fetch: Callable[[], Buffer],
        make_error: Callable[[str], BadBlock],
    ) -> Buffer:
        access, memory, store_error = self._access, self._access.memory, ""

        def fetch_unless_in_memory() -> Buffer:
            nonlocal store_error
            content = memory.get(name, access.cache.mark_used)
            try:
                return fetch() if content is None else content.data
            except FileNotFoundError as error:
                store_error = str(error.strerror)
                return b""

        if name not in self._bad:
            try:
                return access.cache.get_or_fetch(
                    name,
                    is_good,
                    fetch_unless_in_memory,
                    lambda content: memory.put(name, np.frombuffer(content, "u1")),
                )
            except DamagedEntry:
                self._bad[name] = store_error
        # A new error each time: each thread notes its own crops in it.
        error = make_error(_FIX)
        if self._bad[name]:
            error = BadBlock(f"{self._bad[name]}. {_FIX}", error.file, error.block, error.tokens)
        raise error
