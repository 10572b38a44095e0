"""Memory-mapped files of a fixed size: a copy into their tensors is a write to the file.

The pages are allocated before anything is written. Otherwise a full tmpfs would end the process
with a bus error in the middle of a copy.
"""

import mmap
import os
from math import prod
from pathlib import Path

import torch
from torch import Tensor


class MappedFile:
    """A file and the tensor of its bytes. The file is created anew unless it has the right size."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size != size:
                os.ftruncate(file, 0)
            os.posix_fallocate(file, 0, size)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._map = mmap.mmap(file, size, flags)
        finally:
            os.close(file)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.landing = self.bytes  # where copies go first
        self._pinned = False

    def view(self, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return _view(self.bytes, at, shape, dtype)

    def landing_view(self, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return _view(self.landing, at, shape, dtype)

    def put(self, at: int, content: bytes) -> None:
        """Write bytes that are not there already."""
        if self._map[at : at + len(content)] != content:
            self._map[at : at + len(content)] = content

    def pin(self, twin: Tensor | None = None) -> None:
        """Let the GPU copy on its own, while host and device go on.

        It copies into the file, or, where the system does not allow that, into a `twin` from which
        the host copies later.
        """
        error = torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.size, 0)
        self._pinned = not int(error)
        if not self._pinned:
            fits = twin is not None and twin.numel() >= self.size
            made = torch.empty(0 if fits else self.size, dtype=torch.uint8, pin_memory=True)
            self.landing = twin if twin is not None and fits else made

    @property
    def direct(self) -> bool:
        """Whether landed bytes are in the file already."""
        return self.landing is self.bytes

    def close(self) -> None:
        """Unmap the file; views of it must never be used again."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
            self._pinned = False
        del self.bytes, self.landing, self._map  # unmapped when the last view is gone


def _view(whole: Tensor, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return whole[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape)


def map_read_only(path: Path) -> Tensor:
    """Return the bytes of a file as a tensor; nothing is read before it is used."""
    if not path.stat().st_size:
        return torch.empty(0, dtype=torch.uint8)
    with path.open("rb") as file:
        # A private copy: torch wants a buffer that could be written to.
        held = mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    return torch.frombuffer(held, dtype=torch.uint8)
