"""The microbatches of one rank in a step (principle 2: the run file sets the global batch)."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.data.read.batch import Batch, Skipped
from penstock.data.read.stream import Ranges, Stream, rank_slice


@dataclass(frozen=True)
class Microbatch:
    """A microbatch on the device. `weight` is 0 for the filler of a rank with less to do."""

    inputs_bs: Tensor
    targets_bs: Tensor
    weight: float
    counted_bs: Tensor | None = None  # the targets that count in the loss; None: all of them
    starts_bs: Tensor | None = None  # the inputs that begin a document; None: it does not matter

    def padded(self, rows: int) -> "Microbatch":
        """Return it with so many rows: the first one again and again, and not counted."""
        missing = rows - len(self.inputs_bs)
        if missing <= 0:
            return self

        def pad(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor[:1].expand(missing, -1)])

        counted_bs = self.counted_bs
        if counted_bs is None:
            counted_bs = torch.ones_like(self.targets_bs, dtype=torch.bool)
        return Microbatch(
            pad(self.inputs_bs),
            pad(self.targets_bs),
            self.weight,
            torch.cat([counted_bs, torch.zeros_like(counted_bs[:1]).expand(missing, -1)]),
            None if self.starts_bs is None else pad(self.starts_bs),
        )


@dataclass(frozen=True)
class RankShare:
    """The samples of a step that one rank processes."""

    start: int
    stop: int
    micros: int  # the same on every rank: collectives must meet

    @classmethod
    def of(cls, start: int, stop: int, rank: int, ranks: int, microbatch: int) -> "RankShare":
        """Return the share of data rank `rank` in the positions from `start` to `stop`."""
        own_start, own_stop = rank_slice(start, stop, rank, ranks)
        return cls(own_start, own_stop, micro_count(stop - start, ranks, microbatch))


def micro_count(samples: int, ranks: int, microbatch: int) -> int:
    """Return how many microbatches each rank does for a global range of samples."""
    most = -(-samples // ranks)
    return -(-most // microbatch)


@dataclass(frozen=True)
class DeviceBatch:
    """A rank's samples on the device, or on their way there."""

    tokens_ns: Tensor
    loss_ns: Tensor | None
    starts_ns: Tensor | None
    counted: int  # targets that count
    skipped: tuple[Skipped, ...]
    copied: torch.cuda.Event | None = None

    def __len__(self) -> int:
        return len(self.tokens_ns)

    def wait_for_copy(self) -> None:
        """Make the device's current stream wait for the copy; the host does not wait."""
        if self.copied is None:
            return
        present = torch.cuda.current_stream(self.tokens_ns.device)
        present.wait_event(self.copied)
        for tensor in (self.tokens_ns, self.loss_ns, self.starts_ns):
            if tensor is not None:
                # Its memory belongs to the copying stream, which would give it to a later batch
                # while this one is still being read.
                tensor.record_stream(present)

    def micros(self, count: int, microbatch: int) -> list[Microbatch]:
        """Cut them into `count` microbatches, topped up with fillers of weight 0."""
        self.wait_for_copy()
        tokens, loss, starts = self.tokens_ns, self.loss_ns, self.starts_ns
        out = []
        for at in range(0, len(tokens), microbatch):
            rows = slice(at, at + microbatch)
            out.append(
                Microbatch(
                    tokens[rows, :-1],
                    tokens[rows, 1:],
                    1.0,
                    None if loss is None else loss[rows, 1:],
                    None if starts is None else starts[rows, :-1],
                )
            )
        if len(out) < count:
            blank = tokens[:1] if len(tokens) else tokens.new_zeros(1, tokens.shape[1])
            out += [Microbatch(blank[:, :-1], blank[:, 1:], 0.0)] * (count - len(out))
        return out


class DeviceLoader:
    """A reader of batches that copies them to the device while the device computes.

    A `Feed` calls it on a thread of its own: while a step runs, the next batch is copied from
    pinned memory on a separate stream.
    """

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.stream = stream
        self.device = device
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def read(self, start: int, stop: int) -> DeviceBatch:
        """Read the samples at these positions and begin their copy."""
        return self.load(self.stream.read(start, stop))

    def plan_ahead(self, ranges: Ranges) -> None:
        self.stream.plan_ahead(ranges)

    def load(self, batch: Batch) -> DeviceBatch:
        """Begin to copy a batch to the device."""
        return send_to_device(batch, self.device, self._copy_stream)


def send_to_device(
    batch: Batch, device: torch.device, copy_stream: torch.cuda.Stream | None = None
) -> DeviceBatch:
    """Begin to copy a batch to the device; on CUDA, on the stream `copy_stream`."""

    def send(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        # The pinned copy goes back to its allocator at once; that one waits for the stream.
        return tensor if copy_stream is None else tensor.pin_memory().to(device, non_blocking=True)

    # This also sets the thread's device: pinning must not open a context on another one.
    with torch.cuda.stream(copy_stream) if copy_stream else nullcontext():
        return DeviceBatch(
            tokens_ns=send(batch.tokens),
            loss_ns=None if batch.loss is None else send(batch.loss),
            starts_ns=None if batch.starts is None else send(batch.starts),
            counted=batch.counted,
            skipped=batch.skipped,
            copied=copy_stream.record_event() if copy_stream else None,
        )
