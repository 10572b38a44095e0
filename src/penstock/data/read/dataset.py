"""A dataset open for reading: crops of tokens, loss masks and document marks.

A training run reads a dataset for months from disks and networks that flip a bit now and then. An
xxh3 over each 1 MiB block costs a fraction of the read and is paid once per block and process; a
mismatch stops with the file and the byte range. `local_files.py` reads a folder, `remote_files.py`
a URL.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from penstock.data.format.manifest import TOKENIZER, Manifest, read_manifest
from penstock.data.format.shard_file import (
    ShardFiles,
    first_foreign_id,
    foreign_id_message,
    how_to_fix,
)
from penstock.data.format.types import Positions, Progress, Tokens
from penstock.data.read.local_files import LocalDatasetFiles, file_problems
from penstock.data.read.remote_files import RemoteDatasetFiles, open_remote
from penstock.data.read.shard_bounds import ShardBounds
from penstock.data.store.cache import Cache
from penstock.data.store.objects import is_url
from penstock.errors import PenstockError
from penstock.extras import extra
from penstock.untrusted import max_unpacked_bytes


class DatasetFiles(Protocol):
    """Access to the files of a dataset, local or remote."""

    where: str  # folder or URL

    @property
    def shards(self) -> Sequence[ShardFiles]: ...

    def crops(self, starts: Positions, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]: ...

    def chunks(self, file: str) -> Iterator[memoryview]: ...

    def plan_ahead(self, batches: Iterator[Positions], length: int) -> None: ...

    def close(self) -> None: ...


class Dataset:
    """An immutable sequence of token ids. `open` checks manifest and sizes, not the content."""

    def __init__(
        self, folder: Path, manifest: Manifest, remote: RemoteDatasetFiles | None = None
    ) -> None:
        self.folder = folder  # of a remote dataset: a local copy of its small files
        self.manifest = manifest
        self.tokens = manifest.tokens
        self.documents = manifest.documents
        self.vocab = manifest.vocab
        self.dtype = np.dtype(manifest.dtype)
        self._bounds = ShardBounds(manifest)
        self._files: DatasetFiles = remote or LocalDatasetFiles(folder, manifest, self._bounds)
        self.where = self._files.where

    @staticmethod
    def open(where: Path | str, cache: Cache | None = None) -> "Dataset":
        """Open the dataset in a folder, or at a URL (s3, gs, az, http or https) through a cache."""
        if is_url(where):
            folder, remote = open_remote(str(where), cache or Cache.from_environment())
            return Dataset(folder, remote.manifest, remote)
        folder = Path(where)
        manifest = read_manifest(folder)
        if problems := file_problems(folder, manifest):
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise PenstockError(f"{problems[0]}{more}. {how_to_fix(folder)}")
        return Dataset(folder, manifest)

    @property
    def id(self) -> str:
        return f"{self.manifest.name}@{self.version}"

    @cached_property
    def version(self) -> str:
        return self.manifest.version

    @cached_property
    def masked(self) -> bool:
        """Whether some of the tokens are not targets of the loss."""
        return any(shard.mask for shard in self.manifest.shards)

    def tokenizer_json(self) -> bytes:
        """Return the tokenizer that made these tokens, checked against the manifest."""
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
        """Return tokens [start, stop), across shard borders, in the stored type."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(
                f"tokens [{start}, {stop}) are not within the {self.tokens} of {self.id}"
            )
        return self.crops(np.array([start]), stop - start)[0]

    def crops(
        self, starts: Positions, length: int, dtype: npt.DTypeLike | None = None
    ) -> npt.NDArray[Any]:
        """Return crops [len(starts), length]: row i is tokens [starts[i], starts[i] + length).

        `dtype` is the stored type unless given.
        """
        starts = np.asarray(starts, dtype=np.int64)
        return self._files.crops(starts, length, dtype or self.dtype)

    def loss_mask(self, starts: Positions, length: int) -> npt.NDArray[np.bool_] | None:
        """Return which tokens of the crops are targets of the loss; None: all of them."""
        if not self.masked:
            return None
        return self._bounds.gather(starts, length, np.dtype(bool), self._shard_mask)

    def document_marks(self, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        """Return where in the crops a document begins."""
        return self._bounds.gather(starts, length, np.dtype(bool), self._shard_marks)

    def document_starts(self, shard: int) -> Positions:
        """Return where documents start in one shard, as ascending positions in the dataset."""
        documents = self._files.shards[shard].sidecar("docs").view("<u8").astype(np.int64)
        return documents + self._bounds.starts[shard]

    def rows(self, shard: int) -> list[dict[str, Any]]:
        """Return the stored columns of each document that starts in a shard; empty if none are."""
        if not self.manifest.shards[shard].rows:
            return []
        packed = self._files.shards[shard].sidecar("rows").tobytes()
        zstandard = extra("zstandard", "Reading what a dataset tells of its documents")
        orjson = extra("orjson", "Reading what a dataset tells of its documents")
        max_bytes = max_unpacked_bytes(len(packed))
        try:
            with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
                lines = reader.read(max_bytes + 1)
            if len(lines) > max_bytes:
                raise ValueError("it unpacks to too much")
            rows = [orjson.loads(line) for line in lines.splitlines() if line]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a row is not an object")
        except (zstandard.ZstdError, ValueError) as error:
            raise PenstockError(
                f"{self.where}: the rows of the documents of shard {shard} cannot be read: "
                f"{error}. {how_to_fix(self.folder)}"
            ) from None
        return rows

    def plan_ahead(self, batches: Iterator[Positions], length: int) -> None:
        """Announce the crops that will be read, batch after batch; a new plan replaces the old one.

        A remote dataset fetches them before they are needed.
        """
        self._files.plan_ahead(batches, length)

    def close(self) -> None:
        """End the background work."""
        self._files.close()

    def verify(self, progress: Progress | None = None, limit_s: float | None = None) -> list[str]:
        """Hash every file in full and check every token id; return one line per problem.

        With a limit no file is begun after it: large datasets are then checked in part.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        expected = {TOKENIZER: self.manifest.tokenizer}
        for shard in self.manifest.shards:
            expected.update({file: digest for file, (digest, _) in shard.files().items()})
        problems = []
        for done, (file, digest) in enumerate(expected.items()):
            if until is not None and time.monotonic() > until:
                break
            if progress:
                progress("verify", done, len(expected))
            if problem := self._verify_file(file, digest):
                problems.append(problem)
        if progress:
            progress("verify", len(expected), len(expected))
        return problems

    def _verify_file(self, file: str, digest: str) -> str:
        where = f"{self.where}/{file}"
        actual, position, foreign = blake3(), 0, ""
        try:
            for chunk in self._files.chunks(file):
                actual.update(chunk)
                if not file.endswith(".bin") or foreign or len(chunk) % self.dtype.itemsize:
                    continue
                tokens: Tokens = np.frombuffer(chunk, self.dtype)
                at = first_foreign_id(tokens, self.vocab)
                if at is not None:
                    foreign = foreign_id_message(where, position + at, int(tokens[at]), self.vocab)
                position += len(tokens)
        except OSError as error:
            return f"{where} cannot be read: {error.strerror or error}"
        if actual.hexdigest() == digest:
            return foreign
        return f"{where} has changed: BLAKE3 {actual.hexdigest()[:12]}, expected {digest[:12]}"

    def _shard_marks(self, shard: int, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        documents = self._files.shards[shard].sidecar("docs").view("<i8")
        marks = np.zeros((len(starts), length), dtype=bool)
        first = np.searchsorted(documents, starts)
        count = np.searchsorted(documents, starts + length) - first
        row = np.repeat(np.arange(len(starts)), count)
        # The n-th mark of a row is document first + n.
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        marks[row, documents[first[row] + nth] - starts[row]] = True
        return marks

    def _shard_mask(self, shard: int, starts: Positions, length: int) -> npt.NDArray[np.bool_]:
        if not self.manifest.shards[shard].mask:
            return np.ones((len(starts), length), dtype=bool)
        packed = self._files.shards[shard].sidecar("mask")
        mask = np.empty((len(starts), length), dtype=bool)
        for row, start in enumerate(starts):
            bits = np.unpackbits(packed[start // 8 : (start + length + 7) // 8])
            mask[row] = bits[start % 8 : start % 8 + length]
        return mask
