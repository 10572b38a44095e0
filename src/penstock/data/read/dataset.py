"""Reading a dataset: crops of tokens, loss masks and document marks, from a folder or a URL.

A training run reads a dataset for months from disks and links that flip bits now and then. An xxh3
over each 1 MiB block costs a fraction of the read and is paid once per block and process; a
mismatch stops with the file and the byte range.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.format.manifest import SHARDS, TOKENIZER, Manifest, read_manifest
from penstock.data.format.shard_file import (
    BadBlock,
    LocalShard,
    ShardFiles,
    foreign_id,
    foreign_words,
    how_to_fix,
    size_problem,
)
from penstock.data.format.types import Positions, Progress, Tokens
from penstock.data.read.remote_dataset import RemoteFolder
from penstock.data.store.cache import Cache
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.untrusted import max_unpacked_bytes

_CHUNK_BYTES = 8 << 20
_Kind = TypeVar("_Kind", bound=np.generic)


def _leading_out(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files that are links to somewhere else: nothing outside is read as a dataset."""
    inside = os.path.realpath(folder)
    names = [TOKENIZER, SHARDS, *(file for shard in manifest.shards for file in shard.files())]
    found = [folder / name for name in names if os.path.islink(folder / name)]
    return [
        f"{path} is a link that leads out of the dataset"
        for path in found
        if os.path.commonpath([inside, os.path.realpath(path)]) != inside
    ]


def _chunks(path: Path) -> Iterator[memoryview]:
    """Yield a file in parts that hold whole tokens."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield memoryview(chunk)


class Dataset:
    """An immutable sequence of token ids. `open` checks manifest and sizes, not the content."""

    def __init__(
        self, folder: Path, manifest: Manifest, remote: RemoteFolder | None = None
    ) -> None:
        self.folder = folder  # of a remote dataset: its small files alone
        self.where = remote.url if remote else str(folder)
        self.manifest = manifest
        self.tokens = manifest.tokens
        self.documents = manifest.documents
        self.vocab = manifest.vocab
        self.dtype = np.dtype(manifest.dtype)
        # Shard k holds tokens [_starts[k], _starts[k + 1]).
        self._starts = np.cumsum([0, *(shard.tokens for shard in manifest.shards)], dtype=np.int64)
        self._bounds: list[int] = self._starts.tolist()
        self._remote = remote
        each = list(zip(manifest.shards, self._bounds, strict=False))
        self._near = [
            LocalShard(folder, s, self.dtype, at, manifest.vocab) for s, at in each if not remote
        ]
        self._far = [remote.shard(s, self.dtype, at) for s, at in each if remote]
        self._shards: Sequence[ShardFiles] = self._far if remote else self._near

    @staticmethod
    def open(where: Path | str, cache: Cache | None = None) -> "Dataset":
        """The dataset in a folder, or at a URL (s3, gs, az, http or https), through a cache."""
        if is_url(where):
            remote = RemoteFolder.open(str(where), cache or Cache.default())
            return Dataset(remote.folder, remote.manifest, remote)
        folder = Path(where)
        manifest = read_manifest(folder)
        wrong = [
            problem
            for shard in manifest.shards
            for file, (_, size) in shard.files().items()
            if (problem := size_problem(folder / file, size))
        ]
        wrong += _leading_out(folder, manifest)
        if not (folder / TOKENIZER).is_file():
            wrong.append(f"{folder / TOKENIZER} is missing")
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise PenstockError(f"{wrong[0]}{more}. {how_to_fix(folder)}")
        return Dataset(folder, manifest)

    @property
    def id(self) -> str:
        return f"{self.manifest.name}@{self.version}"

    @cached_property
    def version(self) -> str:
        return self.manifest.version

    @cached_property
    def masked(self) -> bool:
        """Whether some of the tokens are no targets of the loss."""
        return any(shard.mask for shard in self.manifest.shards)

    def tokenizer_json(self) -> bytes:
        """The tokenizer that made these tokens, checked against the manifest."""
        path = self.folder / TOKENIZER
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise PenstockError(f"{path} is missing. {how_to_fix(self.folder)}") from None
        if blake3(content).hexdigest() != self.manifest.tokenizer:
            raise PenstockError(
                f"{path} is damaged: it does not match its hash. {how_to_fix(self.folder)}"
            )
        return content

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop), across shard borders, as stored."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(
                f"tokens [{start}, {stop}) are not within the {self.tokens} of {self.id}"
            )
        return self.crops(np.array([start]), stop - start)[0]

    def crops(
        self, starts: Positions, length: int, dtype: npt.DTypeLike | None = None
    ) -> npt.NDArray[Any]:
        """Row i is tokens [starts[i], starts[i] + length), [len(starts), length] as stored, or as
        `dtype`."""
        starts = np.asarray(starts, dtype=np.int64)
        if not self._remote:
            return self._copied(starts, length, dtype or self.dtype)
        crops = self._gather(
            starts,
            length,
            self.dtype,
            lambda k, inside, some: self._far[k].crops(inside, some),
        )
        self._remote.took(starts, length)
        return crops if dtype is None else crops.astype(dtype)

    def _copied(self, starts: Positions, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """All rows in one copy, in which the type changes too: no work per row that it can do."""
        out = np.empty((len(starts), length), dtype=dtype)
        asked: list[int] = starts.tolist()
        if not asked:
            return out
        if min(asked) < 0 or max(asked) > self.tokens - length:
            raise ValueError(self._outside(min(asked), max(asked), length))
        bounds, near = self._bounds, self._near
        pieces = []
        try:
            for start in asked:
                k, stop = bisect_right(bounds, start) - 1, start + length
                while start < stop:
                    first, end = bounds[k], min(stop, bounds[k + 1])
                    pieces.append(near[k].piece(start - first, end - first))
                    start, k = end, k + 1
        except BadBlock as bad:
            raise bad.hits(starts, length) from None
        if pieces:
            np.concatenate(pieces, out=out.reshape(-1))
        return out

    def loss_mask(self, starts: Positions, length: int) -> npt.NDArray[np.bool_] | None:
        """Which tokens of the crops are targets of the loss; None: all of them."""
        return self._gather(starts, length, np.dtype(bool), self._mask) if self.masked else None

    def document_marks(self, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        """Where in the crops a document begins."""
        return self._gather(starts, length, np.dtype(bool), self._marks)

    def document_starts(self, shard: int) -> Positions:
        """Where documents start in one shard, as positions in the dataset, ascending."""
        return self._documents(shard) + self._starts[shard]

    def rows(self, shard: int) -> list[dict[str, Any]]:
        """What is known of each document that starts in a shard; empty where nothing was kept."""
        if not self.manifest.shards[shard].rows:
            return []
        packed = self._shards[shard].sidecar("rows").tobytes()
        zstandard = extra("zstandard", "Reading what a dataset tells of its documents")
        orjson = extra("orjson", "Reading what a dataset tells of its documents")
        most = max_unpacked_bytes(len(packed))
        try:
            with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
                lines = reader.read(most + 1)
            if len(lines) > most:
                raise ValueError("it unpacks to too much")
            found = [orjson.loads(line) for line in lines.splitlines() if line]
            if not all(isinstance(row, dict) for row in found):
                raise ValueError("a row is no object")
        except (zstandard.ZstdError, ValueError) as error:
            raise PenstockError(
                f"{self.where}: what is told of the documents of shard {shard} cannot be read: "
                f"{error}. {how_to_fix(self.folder)}"
            ) from None
        return found

    def plan_ahead(self, starts: Iterator[Positions], length: int) -> None:
        """Tells which crops will be asked for, batch after batch; a remote dataset fetches them
        before they are needed. A new plan replaces the old one."""
        if self._remote:
            self._remote.plan_ahead(starts, length, self._starts)

    def close(self) -> None:
        """Ends what works in the background."""
        if self._remote:
            self._remote.close()

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Hash every file in full and look at every token; each problem is one line."""
        expected = {TOKENIZER: self.manifest.tokenizer}
        for shard in self.manifest.shards:
            expected.update({file: digest for file, (digest, _) in shard.files().items()})
        problems = []
        for done, (file, digest) in enumerate(expected.items()):
            if progress:
                progress("verify", done, len(expected))
            if problem := self._verify(file, digest):
                problems.append(problem)
        if progress:
            progress("verify", len(expected), len(expected))
        return problems

    def _verify(self, file: str, digest: str) -> str:
        where = f"{self.where}/{file}"
        found, position, foreign = blake3(), 0, ""
        try:
            for chunk in self._remote.chunks(file) if self._remote else _chunks(Path(where)):
                found.update(chunk)
                if not file.endswith(".bin") or foreign or len(chunk) % self.dtype.itemsize:
                    continue
                tokens: Tokens = np.frombuffer(chunk, self.dtype)
                at = foreign_id(tokens, self.vocab)
                if at is not None:
                    foreign = foreign_words(where, position + at, int(tokens[at]), self.vocab)
                position += len(tokens)
        except OSError as error:
            return f"{where} cannot be read: {error.strerror or error}"
        if found.hexdigest() == digest:
            return foreign
        return f"{where} has changed: BLAKE3 {found.hexdigest()[:12]}, expected {digest[:12]}"

    def _gather(
        self,
        starts: Positions,
        length: int,
        dtype: "np.dtype[_Kind]",
        part: Callable[[int, Positions, int], npt.NDArray[_Kind]],
    ) -> npt.NDArray[_Kind]:
        """Crops put together from `part(shard, starts in it, length)`, which stay in one shard."""
        starts = np.asarray(starts, dtype=np.int64)
        out = np.empty((len(starts), length), dtype=dtype)
        if not out.size:
            return out
        if starts.min() < 0 or starts.max() + length > self.tokens:
            raise ValueError(self._outside(starts.min(), starts.max(), length))
        shard = np.searchsorted(self._starts, starts, side="right") - 1
        across = starts + length > self._starts[shard + 1]
        try:
            for row in np.flatnonzero(across):
                start, at, k = starts[row], 0, int(shard[row])
                while at < length:
                    some = int(min(length - at, self._starts[k + 1] - start - at))
                    inside = np.array([start + at - self._starts[k]])
                    out[row, at : at + some] = part(k, inside, some)[0] if some else ()
                    at, k = at + some, k + 1
            for k in np.unique(shard[~across]):
                rows = np.flatnonzero((shard == k) & ~across)
                out[rows] = part(int(k), starts[rows] - self._starts[k], length)
        except BadBlock as bad:
            raise bad.hits(starts, length) from None
        return out

    def _outside(self, first: int, last: int, length: int) -> str:
        return (
            f"crops of {length} tokens from {first} to {last} are not within the {self.tokens} of "
            f"{self.id}"
        )

    def _documents(self, shard: int) -> Positions:
        return self._shards[shard].sidecar("docs").view("<u8").astype(np.int64)

    def _marks(self, shard: int, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        documents = self._shards[shard].sidecar("docs").view("<i8")
        marks = np.zeros((len(starts), length), dtype=bool)
        first = np.searchsorted(documents, starts)
        count = np.searchsorted(documents, starts + length) - first
        row = np.repeat(np.arange(len(starts)), count)
        # The n-th mark of a row is document first + n.
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        marks[row, documents[first[row] + nth] - starts[row]] = True
        return marks

    def _mask(self, shard: int, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        if not self.manifest.shards[shard].mask:
            return np.ones((len(starts), length), dtype=bool)
        packed = self._shards[shard].sidecar("mask")
        mask = np.empty((len(starts), length), dtype=bool)
        for row, start in enumerate(starts):
            bits = np.unpackbits(packed[start // 8 : (start + length + 7) // 8])
            mask[row] = bits[start % 8 : start % 8 + length]
        return mask
