"""Copies of a rank's state into the files of a checkpoint.

The files are complete except for the tensors' bytes. On a GPU the copies run on their own stream
into pinned pages, so neither host nor device waits for them; before weights change, the device is
made to wait (`hold_device`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.guard.format.file_plan import FilePlan, local_part, torch_dtype
from penstock.guard.format.index import state_file_name
from penstock.guard.format.local_file import local_file_name, safetensors_header
from penstock.guard.format.mapped_file import MappedFile
from penstock.guard.format.skeleton import archive_skeleton


@dataclass(frozen=True)
class TensorCopy:
    """One tensor on its way into a file: where its bytes land first, and where they belong."""

    source: Tensor
    landing: Tensor
    to: Tensor


class RankFiles:
    """One rank's files in one folder: its part of the state, and its replica-local state."""

    def __init__(
        self,
        folder: Path,
        file_plan: FilePlan,
        rank: int,
        cuda: bool = False,
        twin: Tensor | None = None,
    ) -> None:
        self.folder, self.rank, self._cuda = folder, rank, cuda
        name = state_file_name(rank)
        self.state = self._map(name, file_plan.index.files[name], twin)
        self.local: MappedFile | None = None
        self._local_header = b""
        self._places: dict[str, tuple[Tensor, Tensor]] = {}
        for tensor, entry, chunk in file_plan.index.chunks_in(name):
            dtype = torch_dtype(entry.dtype)
            bones = archive_skeleton(chunk.sizes, dtype)
            self.state.put(chunk.at - len(bones.head), bones.head)
            self.state.put(chunk.at + bones.data_bytes, bones.tail)
            if bones.data_bytes:
                self._places[tensor] = _both(self.state, chunk.at, chunk.sizes, dtype)

    @property
    def names(self) -> list[str]:
        """The names of the files that a save wrote, relative to the folder."""
        return [state_file_name(self.rank)] + ([local_file_name(self.rank)] if self.local else [])

    def copies(self, state: dict[str, Tensor], local_state: dict[str, Tensor]) -> list[TensorCopy]:
        """List the copies of every tensor that this rank saves."""
        found = []
        for name, (landing, to) in self._places.items():
            source = local_part(state[name]).detach()
            assert source.shape == to.shape, f"{name}: {source.shape} now, {to.shape} when planned"
            found.append(TensorCopy(source, landing, to))
        return found + self._local_ways(local_state)

    def _local_ways(self, local_state: dict[str, Tensor]) -> list[TensorCopy]:
        if not local_state:
            self._drop_local()
            return []
        held = {name: local_part(tensor).detach() for name, tensor in local_state.items()}
        before, offsets, size = safetensors_header(held)
        if self.local is None or before != self._local_header:
            self._drop_local()
            self.local, self._local_header = self._map(local_file_name(self.rank), size), before
            self.local.put(0, before)
        return [
            TensorCopy(tensor, *_both(self.local, offsets[name], tuple(tensor.shape), tensor.dtype))
            for name, tensor in held.items()
            if tensor.numel()
        ]

    def _map(self, name: str, size: int, twin: Tensor | None = None) -> MappedFile:
        made = MappedFile(self.folder / name, size)
        if self._cuda:
            made.pin(twin)
        return made

    def _drop_local(self) -> None:
        if self.local:
            self.local.close()
        self.local = None
        (self.folder / local_file_name(self.rank)).unlink(missing_ok=True)

    def close(self) -> None:
        self._places.clear()
        self.state.close()
        if self.local:
            self.local.close()


def _both(
    file: MappedFile, at: int, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return file.landing_view(at, shape, dtype), file.view(at, shape, dtype)


class PendingCopies:
    """Copies in progress. On a CPU they are done when the object is made."""

    def __init__(self, ways: list[TensorCopy], stream: Any = None) -> None:
        self._ways = ways  # what is copied stays alive until it is through
        self._event: Any = None
        self._held: list[tuple[Any, Any]] = []
        if stream is None:
            for way in ways:
                way.to.copy_(way.source)
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for way in ways:
                way.landing.copy_(way.source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(stream)

    def hold_device(self) -> None:
        """Make later work on the device wait for the copies; the host does not wait."""
        if self._event is None or self._event.query():
            return
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        torch.cuda.current_stream().wait_event(self._event)
        last.record()
        self._held.append((first, last))

    def wait(self) -> None:
        """Wait on the host until the bytes are in the files."""
        if self._event is None:
            return
        self._event.synchronize()
        for way in self._ways:
            if way.landing.data_ptr() != way.to.data_ptr():
                way.to.copy_(way.landing)

    def held_s(self) -> float:
        """Return how long the device waited in `hold_device`, as far as it is known by now."""
        return sum(a.elapsed_time(b) / 1e3 for a, b in self._held if b.query())
