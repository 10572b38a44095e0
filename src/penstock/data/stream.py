"""What a run reads: fixed-length samples in an endless shuffled order, less a held-out tail.

The batch of a step is a range of positions; ranks take slices of that range. The state of a stream
is one counter and what identifies the order, so that a run resumes at once, exactly, and on any
number of ranks.
"""

import numpy as np
import numpy.typing as npt

from penstock.data.order import ORDER, index
from penstock.data.shards import Dataset
from penstock.errors import PenstockError

Batch = npt.NDArray[np.int64]
State = dict[str, str | int]


class Stream:
    """Sample i is tokens[i*S : i*S + S + 1]: inputs are its first S tokens, targets its last S.

    `holdout` is the share of the samples, at the end of the dataset, that training never sees.
    """

    def __init__(self, dataset: Dataset, sequence: int, seed: int, holdout: float) -> None:
        if sequence < 1:
            raise PenstockError(f"sequence is {sequence} tokens; it must be at least 1.")
        if not 0.0 <= holdout < 1.0:
            raise PenstockError(
                f"holdout is {holdout}; it is a share of the samples, from 0 to under 1."
            )
        total = max(dataset.tokens - 1, 0) // sequence
        held_out = max(1, int(total * holdout)) if holdout > 0 else 0
        if total - held_out < 1:
            raise PenstockError(_too_small(dataset, sequence, total, held_out))
        self.dataset = dataset
        self.sequence = sequence  # tokens
        self.seed = seed
        self.samples = total - held_out  # in each epoch of the training order
        self.held_out = held_out  # samples

    def read(self, start: int, stop: int) -> Batch:
        """Positions [start, stop) of the training order, [stop - start, S + 1]."""
        if not 0 <= start <= stop:
            raise ValueError(f"positions [{start}, {stop}) are not a range")
        positions = np.arange(start, stop, dtype=np.uint64)
        return self._crops(index(positions, self.samples, self.seed))

    def read_held_out(self, start: int, stop: int, of: int | None = None) -> Batch:
        """Held-out samples [start, stop) in storage order, [stop - start, S + 1].

        With `of`, [start, stop) of a selection of that many, spread evenly over all of them: the
        documents at the end of a set are few, and a part of them would be fewer still.
        """
        of = self.held_out if of is None else of
        if not 0 <= start <= stop <= of <= self.held_out:
            raise ValueError(
                f"[{start}, {stop}) of {of} is not within the {self.held_out} held-out samples"
            )
        chosen = np.arange(start, stop, dtype=np.int64) * self.held_out // max(of, 1)
        return self._crops(self.samples + chosen)

    def state(self, consumed: int) -> State:
        """All it takes to go on; `consumed` counts the samples that optimizer steps have used."""
        return {
            "dataset": self.dataset.id,
            "order": ORDER,
            "seed": self.seed,
            "sequence": self.sequence,
            "held_out": self.held_out,
            "consumed": consumed,
        }

    def check(self, state: State) -> None:
        """Refuses a state that was saved with another order of samples."""
        here = self.state(consumed=0)
        differs = [
            f"  {name}: saved {state.get(name)!r}, here {here[name]!r}"
            for name in here
            if name != "consumed" and state.get(name) != here[name]
        ]
        if differs:
            raise PenstockError(
                "The saved run read other data, so its position means nothing here:\n"
                + "\n".join(differs)
                + "\nSet these back to the saved values, or start a new run."
            )
        consumed = state.get("consumed")
        if not isinstance(consumed, int) or consumed < 0:
            raise PenstockError(
                f"The saved position is {consumed!r}; it must be a number of samples, 0 or more. "
                "The state is damaged: resume from another checkpoint."
            )

    def _crops(self, samples: Batch) -> Batch:
        crops = self.dataset.crops(samples * self.sequence, self.sequence + 1)
        return crops.astype(np.int64)


def _too_small(dataset: Dataset, sequence: int, total: int, held_out: int) -> str:
    kept = f", of which {held_out} would be held out" if held_out else ""
    return (
        f"Dataset {dataset.id} is too small: {dataset.tokens} tokens make {total} samples of "
        f"{sequence} tokens{kept}, and training needs at least one. "
        "Use a shorter sequence, a smaller holdout or a larger dataset."
    )


def rank_slice(start: int, stop: int, rank: int, ranks: int) -> tuple[int, int]:
    """The part of [start, stop) that `rank` reads: contiguous, sizes within one of each other."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    count = stop - start
    return start + count * rank // ranks, start + count * (rank + 1) // ranks
