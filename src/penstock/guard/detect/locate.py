"""Locating where replicas differ: one word of one tensor, found in a few rounds of partial sums.

Two replicas that differ have both moved on by gradients that the wrong one helped to make, so
neither has the weights that a replay gives. But at the word that went wrong, the sound replica is
close to them and the other is not.
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
    """One 64-bit word, addressed by the ranks that hold it."""

    place: int  # of the rank inside its replica
    tensor: int  # its number among those of that rank
    word: int


def locate_difference(
    tensors: Mapping[str, Tensor], place: int, world: RankPlacement
) -> tuple[WordLocation, list[str]]:
    """Return the first difference at a `place`, and the names of all tensors that differ there.

    All ranks together; only the ranks at that place get the names.
    """
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
    """Return the elements in the word, by replica; all ranks together."""
    own = None
    if index_in_replica(world) == spot.place:
        tensor = list(tensors.values())[spot.tensor]
        word = as_words(tensor)[spot.word : spot.word + 1]
        own = word.view(tensor.dtype).double().view(torch.int64)
    bits = torch.tensor(_shared(own, spot.place, world))
    return [tuple(values) for values in bits.view(torch.float64).tolist()]


def _shared(own: Tensor | None, place: int, world: RankPlacement) -> Rows:
    """Return on all ranks what the ranks at `place` have; the others do not know its size."""
    count = torch.tensor([0 if own is None else len(own)])
    length = gather_by_replica(count.to(world.device), world)[0][place][0]
    row = torch.zeros(length, dtype=torch.int64) if own is None else own
    return [replica[place] for replica in gather_by_replica(row.to(world.device), world)]


def _sums(held: Tensor, size: int) -> Tensor:
    """Return the sums of pieces of `size` words."""
    return F.pad(held, (0, -len(held) % size)).view(-1, size).sum(1)


def _first(rows: Rows) -> int:
    return next(i for i, found in enumerate(zip(*rows, strict=True)) if len(set(found)) > 1)
