"""Where replicas differ: one word of one tensor, found in a few rounds of sums of pieces.

Two replicas that differ have both moved on by gradients that the wrong one helped to make, so that
neither has the weights that come out when the steps are done again. But at the word that went wrong
the sound one is close to them, and the other is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.guard.detect.fingerprints import (
    RankPlacement,
    as_words,
    fingerprints,
    gather_by_replica,
    index_in_replica,
)

PIECES = 1024  # compared in one round
Rows = list[tuple[int, ...]]  # by replica


@dataclass(frozen=True)
class WordLocation:
    """One word, known by its place to the ranks that hold it."""

    place: int  # of the rank inside its replica
    tensor: int  # its number among those of that rank
    word: int


def locate_difference(
    tensors: Mapping[str, Tensor], place: int, world: RankPlacement
) -> tuple[WordLocation, list[str]]:
    """All ranks together: the first difference at a `place`, and the names of all tensors that
    differ there; the names only on the ranks that have that place."""
    here = index_in_replica(world) == place
    numbers = _shared(fingerprints(tensors) if here else None, place, world)
    wrong = [i for i, found in enumerate(zip(*numbers, strict=True)) if len(set(found)) > 1]
    held = as_words(list(tensors.values())[wrong[0]]) if here else None
    ((length,), *_) = _shared(None if held is None else torch.tensor([len(held)]), place, world)
    first, size = 0, 0
    while size != 1:
        size = -(-length // PIECES)
        own = None if held is None else _sums(held[first : first + length], size)
        piece = _first(_shared(own, place, world))
        first, length = first + piece * size, min(size, length - piece * size)
    names = list(tensors)
    return WordLocation(place, wrong[0], first), [names[i] for i in wrong] if here else []


def values_at(
    spot: WordLocation, tensors: Mapping[str, Tensor], world: RankPlacement
) -> list[tuple[float, ...]]:
    """All ranks together: the elements that lie in the word, by replica."""
    own = None
    if index_in_replica(world) == spot.place:
        tensor = list(tensors.values())[spot.tensor]
        word = as_words(tensor)[spot.word : spot.word + 1]
        own = word.view(tensor.dtype).double().view(torch.int64)
    bits = torch.tensor(_shared(own, spot.place, world))
    return [tuple(values) for values in bits.view(torch.float64).tolist()]


def _shared(own: Tensor | None, place: int, world: RankPlacement) -> Rows:
    """What the ranks at `place` have, on all ranks; the others do not know how much it is."""
    count = torch.tensor([0 if own is None else len(own)])
    length = gather_by_replica(count.to(world.device), world)[0][place][0]
    row = torch.zeros(length, dtype=torch.int64) if own is None else own
    return [replica[place] for replica in gather_by_replica(row.to(world.device), world)]


def _sums(held: Tensor, size: int) -> Tensor:
    """Of pieces of `size` words."""
    return F.pad(held, (0, -len(held) % size)).view(-1, size).sum(1)


def _first(rows: Rows) -> int:
    return next(i for i, found in enumerate(zip(*rows, strict=True)) if len(set(found)) > 1)
