"""One shard of a dataset on a local disk: memory-mapped, each block checked before its first use.

`read/remote_shard.py` reads the same files from an object store. Both implement `ShardFiles`.
"""

from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from blake3 import blake3

from penstock.data.format.manifest import BLOCK_BYTES, SHARDS, Shard
from penstock.data.format.types import Content, Positions, Tokens
from penstock.errors import PenstockError, RunFailed


class BadBlock(RunFailed):
    """Stored content that fails its checksum. The rest of the dataset can still be read."""

    def __init__(self, message: str, file: str, block: int, tokens: tuple[int, int]) -> None:
        super().__init__(message)
        self.file = file  # path or URL
        self.block = block  # of the file; 0 for a sidecar, which is checked as a whole
        self.tokens = tokens  # [first, last) in the dataset: unusable without this block
        self.starts: Positions = np.empty(0, dtype=np.int64)  # requested crops that need it

    def for_crops(self, starts: Positions, length: int) -> "BadBlock":
        """Note which of the requested crops need this block; return the error."""
        first, last = self.tokens
        self.starts = starts[(starts < last) & (starts + length > first)]
        return self


class ShardFiles(Protocol):
    """Access to the sidecars of a shard, local or remote."""

    def sidecar(self, kind: str) -> Content:
        """Return a whole sidecar (`docs`, `mask` or `rows`), checked."""


class LocalShard:
    """A shard in a folder, mapped at first use.

    Safe from several threads: at worst a block is checked twice.
    """

    def __init__(
        self, folder: Path, shard: Shard, dtype: np.dtype, first_token: int, vocab: int
    ) -> None:
        self._folder = folder
        self._shard = shard
        self._dtype = dtype
        self._first_token = first_token  # its position in the dataset
        self._vocab = vocab
        self._path = folder / SHARDS / f"{shard.blake3}.bin"
        self._checked = bytearray(shard.blocks)  # 1: the block passed its check
        self._all_checked = False
        self._sidecars: dict[str, Content] = {}

    @cached_property
    def _tokens(self) -> Tokens:
        # Reading a map over a file that has shrunk kills the process with SIGBUS: check first.
        if problem := size_problem(self._path, self._shard.bytes):
            raise PenstockError(f"{problem}. {how_to_fix(self._folder)}")
        return np.asarray(np.memmap(self._path, dtype=self._dtype, mode="r"))

    @cached_property
    def _sums(self) -> npt.NDArray[np.uint64]:
        return self.sidecar("sums").view("<u8")

    def sidecar(self, kind: str) -> Content:
        if kind not in self._sidecars:
            digest = getattr(self._shard, kind)
            path = self._folder / SHARDS / f"{digest}.{kind}"
            try:
                empty = not path.stat().st_size
                content = np.empty(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
            except FileNotFoundError:
                raise PenstockError(f"{path} is missing. {how_to_fix(self._folder)}") from None
            if blake3(content.data).hexdigest() != digest:
                raise bad_sidecar(
                    str(path), self._shard, self._first_token, how_to_fix(self._folder)
                )
            if kind == "docs":
                refuse_bad_docs(
                    content, str(path), self._shard, self._first_token, how_to_fix(self._folder)
                )
            self._sidecars[kind] = np.asarray(content)
        return self._sidecars[kind]

    def view(self, start: int, stop: int) -> Tokens:
        """Return tokens [start, stop), at least one, as a view of the map, not a copy."""
        if not self._all_checked:
            size = self._dtype.itemsize
            first, last = start * size // BLOCK_BYTES, (stop * size - 1) // BLOCK_BYTES
            while (block := self._checked.find(0, first, last + 1)) >= 0:
                self._check(block)
        return self._tokens[start:stop]

    def _check(self, block: int) -> None:
        start = block * BLOCK_BYTES
        content = self._tokens.view(np.uint8)[start : start + BLOCK_BYTES]
        if xxhash.xxh3_64_intdigest(content.data) != int(self._sums[block]):
            raise bad_block(
                str(self._path), block, self._shard, self._first_token, how_to_fix(self._folder)
            )
        refuse_foreign_ids(
            content.view(self._dtype), str(self._path), block, self._shard, self._first_token,
            self._vocab,
        )  # fmt: skip
        self._checked[block] = 1
        # Not counted: a counter would be wrong once two threads check the same block.
        self._all_checked = 0 not in self._checked


def blocks_under(
    starts: Positions, length: int, itemsize: int, blocks: int
) -> npt.NDArray[np.intp]:
    """Return the blocks of a shard that the crops touch, ascending."""
    first = starts * itemsize // BLOCK_BYTES
    last = ((starts + length) * itemsize - 1) // BLOCK_BYTES
    change = np.zeros(blocks + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.flatnonzero(np.cumsum(change[:-1]) > 0)


def first_foreign_id(tokens: Tokens, vocab: int) -> int | None:
    """Return the position of the first id outside the vocabulary; None if there is none."""
    if vocab > np.iinfo(tokens.dtype).max or not len(tokens) or int(tokens.max()) < vocab:
        return None
    return int(np.argmax(tokens >= vocab))


def foreign_id_message(file: str, position: int, token: int, vocab: int) -> str:
    return f"{file}: token {token} at position {position} is not in its vocabulary of {vocab}"


def refuse_foreign_ids(
    tokens: Tokens, file: str, block: int, shard: Shard, first_token: int, vocab: int
) -> None:
    """Raise BadBlock if a block holds ids outside the vocabulary."""
    at = first_foreign_id(tokens, vocab)
    if at is None:
        return
    block_tokens = bad_block(file, block, shard, first_token, "").tokens
    position = block_tokens[0] - first_token + at
    message = foreign_id_message(file, position, int(tokens[at]), vocab)
    fix = "Its tokens were not made by its tokenizer; build it again."
    raise BadBlock(f"{message}. {fix}", file, block, block_tokens)


def refuse_bad_docs(content: Content, file: str, shard: Shard, first_token: int, fix: str) -> None:
    """Raise BadBlock if the document starts do not ascend, or lie outside the shard."""
    starts = np.asarray(content).view("<u8")
    if len(starts) and (int(starts[-1]) >= shard.tokens or bool((starts[1:] < starts[:-1]).any())):
        raise BadBlock(
            f"{file}: its documents do not start one after the other. {fix}",
            file,
            0,
            (first_token, first_token + shard.tokens),
        )


def bad_block(file: str, block: int, shard: Shard, first_token: int, fix: str) -> BadBlock:
    start = block * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, shard.bytes)
    itemsize = shard.bytes // shard.tokens
    return BadBlock(
        f"{file} is damaged: block {block} (bytes {start} to {stop}) does not match its checksum, "
        f"so its tokens are not those that were written. {fix}",
        file,
        block,
        (first_token + start // itemsize, first_token + stop // itemsize),
    )


def bad_sidecar(file: str, shard: Shard, first_token: int, fix: str) -> BadBlock:
    return BadBlock(
        f"{file} is damaged: it does not match its hash. {fix}",
        file,
        0,
        (first_token, first_token + shard.tokens),
    )


def size_problem(path: Path, size: int) -> str:
    """Return what is wrong with the size of a file; empty if it is right."""
    try:
        actual = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    return "" if actual == size else f"{path} has {actual} bytes, expected {size}"


def how_to_fix(folder: Path) -> str:
    return f"Delete {folder} and build or copy the dataset again."
