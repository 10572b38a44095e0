"""The microbatches of one rank in a step (principle 2: the run file sets the global batch)."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.data.read.batch import Batch, Skipped
from penstock.data.read.stream import Ranges, Stream, rank_slice

LENGTHS = 8  # that padded rows are cut to


@dataclass(frozen=True)
class Microbatch:
    """A microbatch on the device. `weight` is 0 for the filler of a rank with less to do."""

    inputs_bs: Tensor
    targets_bs: Tensor
    weight: float
    counted_bs: Tensor | None = None  # the targets that count in the loss; None: all of them
    starts_bs: Tensor | None = None  # the inputs that begin a document; None: it does not matter
    # Pairs only, whose two sequences follow each other: log-probabilities by the reference.
    reference_b: Tensor | None = None
    # Pairs only: weight of a chosen token's loss in the loss of its pair, for orpo.
    token_share: float = 1.0

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
            None if self.reference_b is None else F.pad(self.reference_b, (0, missing)),
            self.token_share,
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
    pairs: bool = False  # a sample is two sequences, a chosen and a rejected answer
    reference_n2: Tensor | None = None  # their log-probabilities by the reference
    used: tuple[int, ...] = ()  # tokens of each pair's longer sequence that are not padding
    chosen_tokens: int = 0  # targets in the chosen sequences of the pairs, prompts included

    def __len__(self) -> int:
        return len(self.tokens_ns)

    def wait_for_copy(self) -> None:
        """Make the device's current stream wait for the copy; the host does not wait."""
        if self.copied is None:
            return
        present = torch.cuda.current_stream(self.tokens_ns.device)
        present.wait_event(self.copied)
        for tensor in (self.tokens_ns, self.loss_ns, self.starts_ns, self.reference_n2):
            if tensor is not None:
                # Its memory belongs to the copying stream, which would give it to a later batch
                # while this one is still being read.
                tensor.record_stream(present)

    def micros(self, count: int, microbatch: int) -> list[Microbatch]:
        """Cut them into `count` microbatches, topped up with fillers of weight 0."""
        self.wait_for_copy()
        if self.pairs:
            return self._pair_micros(count, microbatch)
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

    def _pair_micros(self, count: int, microbatch: int) -> list[Microbatch]:
        """Do the same for pairs: two rows each, as long as the longest of the microbatch needs."""
        assert self.loss_ns is not None
        sequence = self.tokens_ns.shape[1] // 2
        tokens, loss = (both_rows(x, sequence) for x in (self.tokens_ns, self.loss_ns))
        out = []
        for at in range(0, len(self), microbatch):
            rows = slice(2 * at, 2 * (at + microbatch))
            stop = trimmed_length(self.used[at : at + microbatch], sequence)
            known = self.reference_n2
            out.append(
                Microbatch(
                    tokens[rows, :stop],
                    tokens[rows, 1 : stop + 1],
                    1.0,
                    loss[rows, 1 : stop + 1],
                    reference_b=None if known is None else known[at : at + microbatch].flatten(),
                )
            )
        if len(out) < count:
            blank = tokens.new_zeros(2, trimmed_length((), sequence))
            none = torch.zeros_like(blank, dtype=torch.bool)
            zero = torch.zeros(2, dtype=torch.float64, device=blank.device)
            known = None if self.reference_n2 is None else zero
            filler = Microbatch(blank, blank, 0.0, none, reference_b=known)
            out += [filler] * (count - len(out))
        return out


def both_rows(pairs_nt: Tensor, sequence: int) -> Tensor:
    """Return the two sequences of every pair [2n, S + 1] of samples [n, 2S + 1]."""
    return pairs_nt.unfold(1, sequence + 1, sequence).flatten(0, 1)


def trimmed_length(used: tuple[int, ...], sequence: int) -> int:
    """Return how many tokens of padded rows a model has to read.

    One of a few lengths: a compiled model would be compiled again for each.
    """
    unit = -(-sequence // LENGTHS)
    return min(sequence, max(1, -(-max(used, default=1) // unit)) * unit)


class DeviceLoader:
    """A reader of batches that copies them to the device while the device computes.

    A `Feed` calls it on a thread of its own: while a step runs, the next batch is copied from
    pinned memory on a separate stream.
    """

    def __init__(self, stream: Stream, device: torch.device, pairs: bool = False) -> None:
        self.stream, self.pairs = stream, pairs
        self.device = device
        self.reference: np.ndarray | None = None  # of all pairs of the stream, by their numbers
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def read(self, start: int, stop: int) -> DeviceBatch:
        """Read the samples at these positions and begin their copy."""
        return self.load(self.stream.read(start, stop))

    def plan_ahead(self, ranges: Ranges) -> None:
        self.stream.plan_ahead(ranges)

    def load(self, batch: Batch) -> DeviceBatch:
        """Begin to copy a batch to the device."""
        if not self.pairs:
            return send_to_device(batch, self.device, self._copy_stream)
        known = None if self.reference is None else self.reference[batch.numbers]
        return send_to_device(batch, self.device, self._copy_stream, True, known)


def send_to_device(
    batch: Batch,
    device: torch.device,
    copy_stream: torch.cuda.Stream | None = None,
    pairs: bool = False,
    reference: np.ndarray | None = None,
) -> DeviceBatch:
    """Begin to copy a batch to the device; on CUDA, on the stream `copy_stream`.

    `reference` are log-probabilities of `pairs`. They are counted in whole pairs, not in tokens.
    """
    used, chosen_tokens = _used_tokens(batch) if pairs else ((), 0)

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
            counted=sum(map(bool, used)) if pairs else batch.counted,
            skipped=batch.skipped,
            pairs=pairs,
            reference_n2=None if reference is None else send(reference),
            used=used,
            chosen_tokens=chosen_tokens,
            copied=copy_stream.record_event() if copy_stream else None,
        )


def _used_tokens(batch: Batch) -> tuple[tuple[int, ...], int]:
    """Return, for each pair, the inputs up to the last answer token, 0 for a damaged pair; and how
    many they are in all chosen sequences.
    """
    assert batch.loss is not None
    sequence = batch.tokens.shape[1] // 2
    both = (batch.loss[:, 1 : sequence + 1], batch.loss[:, sequence + 1 :])
    ends = [(rows * np.arange(1, sequence + 1)).max(1) for rows in both]
    whole = (ends[0] > 0) & (ends[1] > 0)
    return tuple((np.maximum(*ends) * whole).tolist()), int((ends[0] * whole).sum())
