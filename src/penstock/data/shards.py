"""Reading a dataset: memory-mapped shards, each block checked against its sum before first use.

A training run reads a dataset for months from disks that flip bits now and then. An xxh3 over each
1 MiB block costs a fraction of the read and is paid once per block and process; a mismatch stops
with the file and the byte range.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
from blake3 import blake3

from penstock.data.manifest import BLOCK_BYTES, SHARDS, TOKENIZER, Manifest, Shard, read_manifest
from penstock.errors import PenstockError

Tokens: TypeAlias = npt.NDArray[np.unsignedinteger]
Progress: TypeAlias = Callable[[str, int, int], None]


class Dataset:
    """An immutable sequence of token ids. `open` checks manifest and sizes, not the content."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens = manifest.tokens
        self.documents = manifest.documents
        self.vocab = manifest.vocab
        self.dtype = np.dtype(manifest.dtype)
        self._shards = [_ShardReader(folder, shard, self.dtype) for shard in manifest.shards]
        # Shard k holds tokens [_starts[k], _starts[k + 1]).
        self._starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)], dtype=np.int64)

    @staticmethod
    def open(folder: Path | str) -> "Dataset":
        folder = Path(folder)
        manifest = read_manifest(folder)
        wrong = [
            problem
            for shard in manifest.shards
            for file, (_, size) in shard.files().items()
            if (problem := _size_problem(folder / file, size))
        ]
        if not (folder / TOKENIZER).is_file():
            wrong.append(f"{folder / TOKENIZER} is missing")
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise PenstockError(f"{wrong[0]}{more}. {_how_to_fix(folder)}")
        return Dataset(folder, manifest)

    @property
    def id(self) -> str:
        return f"{self.manifest.name}@{self.version}"

    @cached_property
    def version(self) -> str:
        return self.manifest.version

    def tokenizer_json(self) -> bytes:
        """The tokenizer that made these tokens, checked against the manifest."""
        path = self.folder / TOKENIZER
        return _read_checked(path, self.manifest.tokenizer, self.folder)

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop), across shard borders, as stored."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(
                f"tokens [{start}, {stop}) are not within the {self.tokens} of {self.id}"
            )
        out = np.empty(stop - start, dtype=self.dtype)
        at = start
        while at < stop:
            k = int(np.searchsorted(self._starts, at, side="right")) - 1
            first, last = int(self._starts[k]), int(self._starts[k + 1])
            end = min(stop, last)
            out[at - start : end - start] = self._shards[k].read(at - first, end - first)
            at = end
        return out

    def crops(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """Row i is tokens [starts[i], starts[i] + length), [len(starts), length] as stored."""
        starts = np.asarray(starts, dtype=np.int64)
        out = np.empty((len(starts), length), dtype=self.dtype)
        if not out.size:
            return out
        if starts.min() < 0 or starts.max() + length > self.tokens:
            raise ValueError(
                f"crops of {length} tokens from {starts.min()} to {starts.max()} "
                f"are not within the {self.tokens} of {self.id}"
            )
        inside = np.searchsorted(self._starts, starts, side="right") - 1
        across = starts + length > self._starts[inside + 1]
        for row in np.flatnonzero(across):
            out[row] = self.read(int(starts[row]), int(starts[row]) + length)
        for k in np.unique(inside[~across]):
            rows = np.flatnonzero((inside == k) & ~across)
            out[rows] = self._shards[k].crops(starts[rows] - self._starts[k], length)
        return out

    def document_starts(self, shard: int) -> npt.NDArray[np.int64]:
        """Where documents start in one shard, as positions in the dataset, ascending."""
        offsets = self._shards[shard].sidecar("docs")
        return offsets.astype(np.int64) + self._starts[shard]

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Hashes every file in full; each problem is one line. No problem, empty list."""
        expected = {TOKENIZER: self.manifest.tokenizer}
        for shard in self.manifest.shards:
            expected.update({file: digest for file, (digest, _) in shard.files().items()})
        problems = []
        for done, (file, digest) in enumerate(expected.items()):
            if progress:
                progress("verify", done, len(expected))
            path = self.folder / file
            try:
                found = blake3().update_mmap(path).hexdigest()
            except OSError as error:
                problems.append(f"{path} cannot be read: {error.strerror}")
                continue
            if found != digest:
                problems.append(f"{path} has changed: BLAKE3 {found[:12]}, expected {digest[:12]}")
        if progress:
            progress("verify", len(expected), len(expected))
        return problems


class _ShardReader:
    """One shard, mapped at first use. Safe from several threads: work is at worst done twice."""

    def __init__(self, folder: Path, shard: Shard, dtype: np.dtype) -> None:
        self._folder = folder
        self._shard = shard
        self._dtype = dtype
        self._path = folder / SHARDS / f"{shard.blake3}.bin"
        self._checked = np.zeros(shard.blocks, dtype=bool)

    @cached_property
    def _tokens(self) -> Tokens:
        # A map over a file that has shrunk kills the process with SIGBUS: look before mapping.
        if problem := _size_problem(self._path, self._shard.bytes):
            raise PenstockError(f"{problem}. {_how_to_fix(self._folder)}")
        return np.asarray(np.memmap(self._path, dtype=self._dtype, mode="r"))

    @cached_property
    def _sums(self) -> npt.NDArray[np.uint64]:
        return self.sidecar("sums")

    def sidecar(self, kind: str) -> npt.NDArray[np.uint64]:
        digest = self._shard.sums if kind == "sums" else self._shard.docs
        path = self._folder / SHARDS / f"{digest}.{kind}"
        return np.frombuffer(_read_checked(path, digest, self._folder), dtype="<u8")

    def read(self, start: int, stop: int) -> Tokens:
        self._check(np.array([start]), stop - start)
        return self._tokens[start:stop]

    def crops(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        self._check(starts, length)
        # Rows of an overlapping view are copied whole, with no index per token.
        return np.lib.stride_tricks.sliding_window_view(self._tokens, length)[starts]

    def _check(self, starts: npt.NDArray[np.int64], length: int) -> None:
        """Checks the blocks under the crops that this process has not checked before."""
        if self._checked.all():
            return
        first = starts * self._dtype.itemsize // BLOCK_BYTES
        last = ((starts + length) * self._dtype.itemsize - 1) // BLOCK_BYTES
        change = np.zeros(len(self._checked) + 1, dtype=np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, last + 1, -1)
        for block in np.flatnonzero((np.cumsum(change[:-1]) > 0) & ~self._checked):
            self._check_block(int(block))

    def _check_block(self, block: int) -> None:
        start = block * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self._shard.bytes)
        content = self._tokens.view(np.uint8)[start:stop]
        if xxhash.xxh3_64_intdigest(content.data) != int(self._sums[block]):
            raise PenstockError(
                f"{self._path} is damaged: block {block} (bytes {start} to {stop}) does not "
                "match its checksum, so its tokens are not those that were written. "
                f"{_how_to_fix(self._folder)}"
            )
        self._checked[block] = True


def _size_problem(path: Path, size: int) -> str:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    return "" if found == size else f"{path} has {found} bytes, expected {size}"


def _read_checked(path: Path, digest: str, folder: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PenstockError(f"{path} is missing. {_how_to_fix(folder)}") from None
    if blake3(content).hexdigest() != digest:
        raise PenstockError(f"{path} is damaged: it does not match its hash. {_how_to_fix(folder)}")
    return content


def _how_to_fix(folder: Path) -> str:
    return f"Delete {folder} and build or copy the dataset again."
