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
from penstock.data.store.cache import Buffer, Cache, Damaged
from penstock.data.store.objects import Store
from penstock.errors import RunFailed

# Two windows of the local order: a block is read from disk and checked once, not once a sample.
HELD_BYTES = 768 << 20
_FIX = "It was fetched twice. Copy the dataset there again from a good one."
_USED_S = 5.0  # how often the use of held content is told to the cache
FETCHERS = 16


class Held:
    """Checked content in memory, least recently used first out."""

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._content: OrderedDict[str, tuple[Content, float]] = OrderedDict()
        self._lock = Lock()

    def has(self, name: str) -> bool:
        return name in self._content

    def get(self, name: str, used: Callable[[str], None]) -> Content | None:
        with self._lock:
            found = self._content.get(name)
            if not found:
                return None
            content, told = found
            self._content.move_to_end(name)
            now = time.monotonic()
            if now - told > _USED_S:
                self._content[name] = content, now
        if now - told > _USED_S:
            used(name)
        return content

    def put(self, name: str, content: Content) -> None:
        with self._lock:
            if name not in self._content:
                self._bytes += content.size
            self._content[name] = content, time.monotonic()
            while self._bytes > self._most_bytes and len(self._content) > 1:
                self._bytes -= self._content.popitem(last=False)[1][0].size


class Reach:
    """What all shards of a remote dataset share."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self.store = store
        self.cache = cache
        self.held = Held()
        self.misses = 0  # times that a reader had to wait for the store
        self.fetched_bytes = 0
        self.pool = ThreadPoolExecutor(FETCHERS, thread_name_prefix="penstock-fetch")

    def fetch(self, file: str, start: int, stop: int) -> Buffer:
        try:
            content = self.store.get_range(file, start, stop)
        except FileNotFoundError:  # deleted, or cut short: as lost as what is damaged
            raise
        except OSError as error:
            raise RunFailed(
                f"The dataset cannot be read: {error.strerror or error}. Mend the link or the "
                "store, then start again: the run goes on where it was."
            ) from None
        self.fetched_bytes += stop - start
        return content


class RemoteShard:
    def __init__(
        self, reach: Reach, shard: Shard, dtype: np.dtype, first_token: int, vocab: int
    ) -> None:
        self.shard = shard
        self._reach = reach
        self._dtype = dtype
        self._first_token = first_token  # its place in the dataset
        self._vocab = vocab
        self._file = f"{SHARDS}/{shard.blake3}.bin"
        self._sizes = {name: size for name, (_, size) in shard.files().items()}
        # Fetched twice already: not a third time. With what the store said, if it said anything.
        self._bad: dict[str, str] = {}

    def crops(self, starts: Positions, length: int) -> Tokens:
        itemsize = self._dtype.itemsize
        blocks = blocks_under(starts, length, itemsize, self.shard.blocks).tolist()
        tokens = {block: held.view(self._dtype) for block, held in self._read(blocks).items()}
        per_block = BLOCK_BYTES // itemsize
        out = np.empty((len(starts), length), dtype=self._dtype)
        # A batch touches nearly as many blocks as it has rows: nothing to do for many at once.
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
        content = self._waited(name, lambda: self._sidecar(kind))
        if kind == "docs":
            where = self._reach.store.where(f"{SHARDS}/{name}")
            refuse_bad_docs(content, where, self.shard, self._first_token, _FIX)
        return content

    def bring(self, name: str, block: int) -> None:
        """Puts a block, or (block -1) the sidecar that `name` ends with, into the cache."""
        if not self._reach.cache.has(name) and not self._reach.held.has(name):
            self._stored(name, block)

    def warm(self, name: str, block: int) -> None:
        """Puts what the cache has into memory."""
        if not self._reach.held.has(name) and self._reach.cache.has(name):
            self._content(name, lambda: self._stored(name, block))

    def _stored(self, name: str, block: int) -> Buffer:
        return self._block(block) if block >= 0 else self._sidecar(name.rpartition(".")[2])

    def block_name(self, block: int) -> str:
        return f"{self.shard.blake3}-{block}"

    def sidecar_name(self, kind: str) -> str:
        return self._sidecar_name(kind)[0]

    def _sidecar_name(self, kind: str) -> tuple[str, int]:
        name = f"{getattr(self.shard, kind)}.{kind}"
        return name, self._sizes[f"{SHARDS}/{name}"]

    def _read(self, blocks: list[int]) -> dict[int, Content]:
        held, used = self._reach.held, self._reach.cache.used
        found = {block: held.get(self.block_name(block), used) for block in blocks}
        missing = [block for block, content in found.items() if content is None]
        # Several at once: without read-ahead each costs a round trip.
        several = len(missing) > 1
        read = self._reach.pool.map(self._load, missing) if several else map(self._load, missing)
        found.update(zip(missing, read, strict=True))
        return {block: content for block, content in found.items() if content is not None}

    def _load(self, block: int) -> Content:
        content = self._waited(self.block_name(block), lambda: self._block(block))
        where = self._reach.store.where(self._file)
        tokens = content.view(self._dtype)
        refuse_foreign_ids(tokens, where, block, self.shard, self._first_token, self._vocab)
        return content

    def _waited(self, name: str, load: Callable[[], Buffer]) -> Content:
        """Content for the reader: that it had to be waited for is counted."""
        reach = self._reach
        if not reach.held.has(name) and not reach.cache.has(name):
            reach.misses += 1
        return self._content(name, load)

    def _content(self, name: str, load: Callable[[], Buffer]) -> Content:
        reach = self._reach
        content = reach.held.get(name, reach.cache.used)
        if content is None:
            content = np.frombuffer(load(), np.uint8)
            reach.held.put(name, content)
        return content

    def _block(self, block: int) -> Buffer:
        start = block * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.shard.bytes)
        sums = self._content(f"{self.shard.sums}.sums", lambda: self._sidecar("sums"))
        expected = int(sums.view("<u8")[block])
        return self._entry(
            self.block_name(block),
            lambda content: xxhash.xxh3_64_intdigest(content) == expected,
            lambda: self._reach.fetch(self._file, start, stop),
            lambda fix: bad_block(
                self._reach.store.where(self._file), block, self.shard, self._first_token, fix
            ),
        )

    def _sidecar(self, kind: str) -> Buffer:
        name, size = self._sidecar_name(kind)
        file, digest = f"{SHARDS}/{name}", name.partition(".")[0]
        return self._entry(
            name,
            lambda content: blake3(content).hexdigest() == digest,
            lambda: self._reach.fetch(file, 0, size),
            lambda fix: bad_sidecar(
                self._reach.store.where(file), self.shard, self._first_token, fix
            ),
        )

    def _entry(
        self,
        name: str,
        good: Callable[[Buffer], bool],
        fetch: Callable[[], Buffer],
        bad: Callable[[str], BadBlock],
    ) -> Buffer:
        reach, held, told = self._reach, self._reach.held, ""

        def asked() -> Buffer:
            nonlocal told
            unkept = held.get(name, reach.cache.used)
            try:
                return fetch() if unkept is None else unkept.data
            except FileNotFoundError as error:
                told = str(error.strerror)
                return b""

        if name not in self._bad:
            try:
                return reach.cache.entry(
                    name, good, asked, lambda content: held.put(name, np.frombuffer(content, "u1"))
                )
            except Damaged:
                self._bad[name] = told
        # A new one each time: threads tell theirs which crops need it.
        found = bad(_FIX)
        if self._bad[name]:
            found = BadBlock(f"{self._bad[name]}. {_FIX}", found.file, found.block, found.tokens)
        raise found
