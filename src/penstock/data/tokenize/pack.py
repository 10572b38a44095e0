"""Packing of whole documents into bins of one sequence each.

Best fit, longest first: each document goes into the fullest bin that has room for it. A document is
cut only if it is longer than a sequence, into full bins and a rest that is packed like any other
document. The bins are then shuffled by a hash of their number: packing creates the bins of long
documents first, but the tail of a dataset must be a fair sample for the holdout.

A bin has exactly `sequence` tokens. It is padded with END, which is not a target of the loss;
neither is a bin's first token, since the token before it belongs to another bin.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.data.format.types import Tokens

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PackedBins:
    """The pieces of documents in each bin.

    Bin b holds the pieces [starts[b], starts[b + 1]). Piece p is `lengths[p]` tokens of document
    `documents[p]`, from its token `offsets[p]` on.
    """

    documents: Ints
    offsets: Ints
    lengths: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of all bins, with the position and the document of each piece."""

    tokens: Tokens
    mask: Mask
    starts: Ints
    documents: Ints


def pack_documents(lengths: npt.ArrayLike, sequence: int) -> PackedBins:
    """Assign documents to bins by their lengths in tokens. Empty documents are left out."""
    if sequence < 1:
        raise ValueError(f"a sequence has at least 1 token, found {sequence}")
    sizes = np.asarray(lengths, dtype=np.int64)
    documents, offsets, pieces = _cut(sizes, sequence)
    bins = _best_fit(pieces, sequence)
    count = int(bins.max(initial=-1)) + 1
    shuffled = np.argsort(_hashed(count), kind="stable")
    place = np.empty(count, np.int64)
    place[shuffled] = np.arange(count)
    order = np.argsort(place[bins], kind="stable")  # in a bin: the longest first
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(place[bins], minlength=count), out=starts[1:])
    return PackedBins(documents[order], offsets[order], pieces[order], starts)


def lay_out_bins(
    tokens: Tokens, starts: Ints, mask: Mask | None, bins: PackedBins, end_id: int, sequence: int
) -> PackedTokens:
    """Copy the tokens of documents into their bins.

    Document d is tokens[starts[d] : starts[d + 1]]. `mask` says which tokens are loss targets; None
    means all.
    """
    ends = np.append(0, np.cumsum(bins.lengths))  # of pieces, over all bins
    bin_of = np.repeat(np.arange(len(bins)), np.diff(bins.starts))
    places = bin_of * sequence + ends[:-1] - ends[bins.starts[bin_of]]
    sources = starts[bins.documents] + bins.offsets
    out = np.full(len(bins) * sequence, end_id, tokens.dtype)
    counted = np.zeros(len(out), np.bool_)
    # One copy per piece: an index of all tokens would be larger than the tokens, and slower.
    for to, source, length in zip(
        places.tolist(), sources.tolist(), bins.lengths.tolist(), strict=True
    ):
        out[to : to + length] = tokens[source : source + length]
        counted[to : to + length] = True if mask is None else mask[source : source + length]
    counted[::sequence] = False
    return PackedTokens(out, counted, places, bins.documents)


def _cut(sizes: Ints, sequence: int) -> tuple[Ints, Ints, Ints]:
    """Return pieces of at most `sequence` tokens, longest first: documents, offsets, lengths."""
    counts = -(-sizes // sequence)
    documents = np.repeat(np.arange(len(sizes)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offsets = (np.arange(len(documents)) - first) * sequence
    lengths = np.minimum(sizes[documents] - offsets, sequence)
    order = np.argsort(-lengths, kind="stable")
    return documents[order], offsets[order], lengths[order]


def _best_fit(lengths: Ints, sequence: int) -> Ints:
    """Return the bin of each piece. `lengths` must be in falling order."""
    bins = np.empty(len(lengths), np.int64)
    room = defaultdict[int, list[int]](list)  # tokens left → bins with that much
    rooms: list[int] = []  # the keys of `room`, rising
    count = 0
    for piece, length in enumerate(lengths.tolist()):
        at = bisect_left(rooms, length)
        if at == len(rooms):
            here, left = count, sequence - length
            count += 1
        else:
            most = rooms[at]
            here, left = room[most].pop(), most - length
            if not room[most]:
                del rooms[at]
        bins[piece] = here
        if left:
            if not room[left]:
                insort(rooms, left)
            room[left].append(here)
    return bins


def _hashed(count: int) -> npt.NDArray[np.uint64]:
    """Return splitmix64 of 0, 1, …, which is the same on every machine."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
