"""Index of a checkpoint: where every tensor's bytes are in its files. Plain JSON, read without
torch.

torch's own `.metadata` says the same in a pickle, and a pickle can run any code. It is written for
torch's tools and never read here.
"""

import json
from dataclasses import dataclass
from math import prod

from blake3 import blake3

from penstock.guard.format.file_names import check_file_names
from penstock.untrusted import is_count, parse_table

INDEX = "index.json"


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor: its offset and size in each dimension, and where its bytes are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str  # relative to the checkpoint
    at: int  # first byte in the file; elements lie there in row-major order


@dataclass(frozen=True)
class TensorEntry:
    """A whole tensor and the chunks that cover it."""

    dtype: str  # torch's name for it: "float32"
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Index:
    """All tensors of a checkpoint by name, and the size of each rank's file in bytes."""

    tensors: dict[str, TensorEntry]
    files: dict[str, int]

    @property
    def ranks(self) -> int:
        return len(self.files)

    def chunks_in(self, file: str) -> list[tuple[str, TensorEntry, Chunk]]:
        """List the chunks of one file in the order of their bytes, with their tensors."""
        found = [
            (name, entry, chunk)
            for name, entry in self.tensors.items()
            for chunk in entry.chunks
            if chunk.file == file
        ]
        return sorted(found, key=lambda one: one[2].at)

    def to_bytes(self) -> bytes:
        tensors = {
            name: {
                "dtype": entry.dtype,
                "shape": entry.shape,
                "chunks": [vars(chunk) for chunk in entry.chunks],
            }
            for name, entry in self.tensors.items()
        }
        return json.dumps({"files": self.files, "tensors": tensors}).encode()

    @staticmethod
    def from_bytes(content: bytes) -> "Index":
        """Parse an index; raises ValueError for anything else."""
        found = parse_table(content)
        files, tensors = found.get("files"), found.get("tensors")
        if not isinstance(files, dict) or not isinstance(tensors, dict):
            raise ValueError(f"{INDEX} has no tables of files and tensors")
        check_file_names(files, INDEX)
        if not all(is_count(size) for size in files.values()):
            raise ValueError(f"{INDEX}: a size of a file is no number of bytes")
        return Index({name: _entry(name, entry, files) for name, entry in tensors.items()}, files)


def _entry(name: str, found: object, files: dict[str, int]) -> TensorEntry:
    if not isinstance(found, dict) or not isinstance(found.get("dtype"), str):
        raise ValueError(f"{INDEX}: {name!r:.200} has no type")
    shape, chunks = _sizes(name, found.get("shape")), found.get("chunks")
    if not isinstance(chunks, list):
        raise ValueError(f"{INDEX}: {name!r:.200} has no chunks")
    made = tuple(_chunk(name, one, shape, files) for one in chunks)
    if sum(prod(chunk.sizes) for chunk in made) != prod(shape):
        raise ValueError(f"{INDEX}: the chunks of {name!r:.200} do not cover it")
    return TensorEntry(found["dtype"], shape, made)


def _chunk(name: str, found: object, shape: tuple[int, ...], files: dict[str, int]) -> Chunk:
    if not isinstance(found, dict):
        raise ValueError(f"{INDEX}: a chunk of {name!r:.200} is no table")
    offsets, sizes = _sizes(name, found.get("offsets")), _sizes(name, found.get("sizes"))
    ends = [at + size for at, size in zip(offsets, sizes, strict=False)]
    if len(offsets) != len(sizes) or len(ends) != len(shape):
        raise ValueError(f"{INDEX}: a chunk of {name!r:.200} has other dimensions")
    if any(end > length for end, length in zip(ends, shape, strict=True)):
        raise ValueError(f"{INDEX}: a chunk of {name!r:.200} lies outside of it")
    file, at = found.get("file"), found.get("at")
    if not isinstance(file, str) or file not in files:
        raise ValueError(f"{INDEX}: chunks in files that it does not list: {file!r:.200}")
    if not is_count(at):
        raise ValueError(f"{INDEX}: a chunk of {name!r:.200} lies at no byte of its file")
    return Chunk(offsets, sizes, file, at)


def _sizes(name: str, found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(is_count(one) for one in found):
        raise ValueError(f"{INDEX}: a size of {name!r:.200} is no list of numbers")
    return tuple(found)


def hash_bytes(content: bytes) -> str:
    return blake3(content).hexdigest()


def state_file_name(rank: int) -> str:
    """Return the name that torch's writer gives to a rank's file."""
    return f"state/__{rank}_0.distcp"
