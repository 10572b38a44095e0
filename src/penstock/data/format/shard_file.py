"""One shard of a dataset on a local disk: mapped, each part checked before its first use.

`remote_shard.py` reads the same from an object store; how tokens come from there is another matter.
`ShardFiles` is what both have.
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
    """Stored content that is not what was written. The rest of the dataset can still be read."""

    def __init__(self, message: str, file: str, block: int, tokens: tuple[int, int]) -> None:
        super().__init__(message)
        self.file = file  # path or URL
        self.block = block  # of the file; 0 for a sidecar, which is checked as a whole
        self.tokens = tokens  # [first, last) in the dataset: what cannot be used without it
        self.starts: Positions = np.empty(0, dtype=np.int64)  # of the crops asked for that need it

    def hits(self, starts: Positions, length: int) -> "BadBlock":
        """The same, telling which crops of those asked for it concerns."""
        first, last = self.tokens
        self.starts = starts[(starts < last) & (starts + length > first)]
        return self


class ShardFiles(Protocol):
    def sidecar(self, kind: str) -> Content:
        """The whole of a sidecar (`docs`, `mask` or `rows`), checked."""


class LocalShard:
    """Mapped at first use. Safe from several threads: work is at worst done twice."""

    def __init__(
        self, folder: Path, shard: Shard, dtype: np.dtype, first_token: int, vocab: int
    ) -> None:
        self._folder = folder
        self._shard = shard
        self._dtype = dtype
        self._first_token = first_token  # its place in the dataset
        self._vocab = vocab
        self._path = folder / SHARDS / f"{shard.blake3}.bin"
        self._checked = bytearray(shard.blocks)  # 1: is what was written
        self._all_checked = False
        self._sidecars: dict[str, Content] = {}

    @cached_property
    def _tokens(self) -> Tokens:
        # A map over a file that has shrunk kills the process with SIGBUS: look before mapping.
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

    def piece(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop) where they are mapped, not copied; for at least one."""
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
        # Seen from the marks each time: a count would be wrong once two threads check one block.
        self._all_checked = 0 not in self._checked


def blocks_under(
    starts: Positions, length: int, itemsize: int, blocks: int
) -> npt.NDArray[np.intp]:
    """The blocks of a shard that its crops touch, ascending."""
    first = starts * itemsize // BLOCK_BYTES
    last = ((starts + length) * itemsize - 1) // BLOCK_BYTES
    change = np.zeros(blocks + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.flatnonzero(np.cumsum(change[:-1]) > 0)


def foreign_id(tokens: Tokens, vocab: int) -> int | None:
    """Return where the first id is that the vocabulary does not have; None if there is none."""
    if vocab > np.iinfo(tokens.dtype).max or not len(tokens) or int(tokens.max()) < vocab:
        return None
    return int(np.argmax(tokens >= vocab))


def foreign_words(file: str, position: int, token: int, vocab: int) -> str:
    return f"{file}: token {token} at position {position} is not in its vocabulary of {vocab}"


def refuse_foreign_ids(
    tokens: Tokens, file: str, block: int, shard: Shard, first_token: int, vocab: int
) -> None:
    """Raise BadBlock where a block holds ids that no model for this dataset has."""
    at = foreign_id(tokens, vocab)
    if at is None:
        return
    found = bad_block(file, block, shard, first_token, "")
    position = found.tokens[0] - first_token + at
    words = foreign_words(file, position, int(tokens[at]), vocab)
    fix = "Its tokens were not made by its tokenizer; build it again."
    raise BadBlock(f"{words}. {fix}", file, block, found.tokens)


def refuse_bad_docs(content: Content, file: str, shard: Shard, first_token: int, fix: str) -> None:
    """Raise BadBlock where documents do not start one after the other within the shard."""
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
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    return "" if found == size else f"{path} has {found} bytes, expected {size}"


def how_to_fix(folder: Path) -> str:
    return f"Delete {folder} and build or copy the dataset again."
