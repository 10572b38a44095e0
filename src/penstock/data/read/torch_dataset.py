"""A loader for other trainers: a torch `IterableDataset` over a stream.

It gives whole batches, each a rank's slice of a global batch, so that

    DataLoader(TokenBatches(stream, batch=512, rank=r, ranks=n), batch_size=None, num_workers=2)

hands out the same batches in the same order for any number of workers: worker w makes batches w,
w + W, w + 2 W … and the DataLoader takes them in turn. The saved state is the stream's own: one
position for the whole job, good for any number of ranks and workers.
"""

from collections.abc import Iterator
from typing import TypedDict

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from penstock.data.read.stream import Stream, StreamState, rank_slice


class TokenBatch(TypedDict, total=False):
    """Tensors of one batch, [n, S]. A mask that would be the same for every token is left out."""

    inputs: Tensor
    targets: Tensor
    counted: Tensor  # whether a target counts in the loss
    starts: Tensor  # whether an input begins a document
    position: int  # end of the global batch: save it once the batch has been trained on


class TokenBatches(IterableDataset[TokenBatch]):
    """An endless sequence of batches, from the position of the last `load_state_dict`."""

    def __init__(self, stream: Stream, batch: int, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        if batch < 1:
            raise ValueError(f"batch is {batch} samples; it must be at least 1")
        rank_slice(0, batch, rank, ranks)  # refuses a rank that is not one of them
        self.stream = stream
        self.batch = batch  # samples, over all ranks
        self.rank, self.ranks = rank, ranks
        self.position = 0  # samples, over all ranks

    def __iter__(self) -> Iterator[TokenBatch]:
        worker = get_worker_info()
        first, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        start = self.position + first * self.batch
        while True:
            stop = start + self.batch
            batch = self._batch(start, stop)
            if worker is None:
                self.position = stop
            yield batch
            start += workers * self.batch

    def state_dict(self, position: int | None = None) -> StreamState:
        """Return the state after this process's last batch, or after `position`.

        With worker processes, give the `position` of the last batch that was trained on.
        """
        return self.stream.state(self.position if position is None else position)

    def load_state_dict(self, state: StreamState) -> None:
        """Set the position; refuse a state of other data or of another order."""
        self.stream.check(state)
        self.position = int(state["consumed"])

    def _batch(self, start: int, stop: int) -> TokenBatch:
        samples = self.stream.read(*rank_slice(start, stop, self.rank, self.ranks))
        tokens = torch.from_numpy(samples.tokens)
        batch = TokenBatch(inputs=tokens[:, :-1], targets=tokens[:, 1:], position=stop)
        if samples.loss is not None:
            batch["counted"] = torch.from_numpy(samples.loss)[:, 1:]
        if samples.starts is not None:
            batch["starts"] = torch.from_numpy(samples.starts)[:, :-1]
        return batch
