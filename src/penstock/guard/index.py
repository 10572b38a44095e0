"""Where every tensor's bytes lie in the files of a checkpoint. Plain JSON, read without torch.

torch's own `.metadata` says the same in a pickle, which could run anything; it is written for
torch's tools and never read here.
"""

import json
from dataclasses import dataclass
from math import prod

from blake3 import blake3

NAME = "index.json"


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor: where it begins and how long it is, in each dimension, and its bytes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str  # relative to the checkpoint
    at: int  # first byte in the file; elements lie there in row-major order


@dataclass(frozen=True)
class Entry:
    """A whole tensor, in chunks that cover it."""

    dtype: str  # torch's name for it: "float32"
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Index:
    """All tensors of a checkpoint by name, and the size of each rank's file in bytes."""

    tensors: dict[str, Entry]
    files: dict[str, int]

    @property
    def ranks(self) -> int:
        return len(self.files)

    def of_file(self, file: str) -> list[tuple[str, Entry, Chunk]]:
        """What lies in one file, in the order of its bytes."""
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
        found = json.loads(content)
        tensors = {name: _entry(**entry) for name, entry in found["tensors"].items()}
        used = {chunk.file for entry in tensors.values() for chunk in entry.chunks}
        if strange := used - found["files"].keys():
            raise ValueError(f"{NAME}: chunks in files that it does not list: {strange}")
        return Index(tensors, found["files"])


def _entry(dtype: str, shape: list[int], chunks: list[dict]) -> Entry:
    return Entry(
        dtype,
        tuple(shape),
        tuple(Chunk(tuple(c["offsets"]), tuple(c["sizes"]), c["file"], c["at"]) for c in chunks),
    )


def digest(content: bytes) -> str:
    return blake3(content).hexdigest()


def state_file(rank: int) -> str:
    """The name that torch's writer would give to a rank's file."""
    return f"state/__{rank}_0.distcp"
