"""Work on whole matrices whose parts are on several ranks: each matrix is processed by one rank,
its owner.

Gathering every matrix on every rank would repeat the work on each rank, and send each part to all
of them. Here the ranks that hold the parts divide the matrices among them: one all-to-all brings
the parts of a matrix to its owner, another brings the parts of the result back.

Matrices of one shape travel together, stacked: suffix n matrices, r rows, c columns. Experts are
stacked from the start; a cut along the stack leaves its matrices whole and needs no exchange.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from penstock.train.parallel.parts import chunk_sizes, cut_axes


@dataclass(frozen=True)
class MatrixCut:
    """One cut of a matrix along a dimension, into a part for each rank of a group."""

    group: dist.ProcessGroup
    place: int  # of this rank in it
    dim: int  # of the matrix: -2 rows, -1 columns
    sizes: tuple[int, ...]  # of every rank's part


def matrix_cuts(param: Tensor) -> list[MatrixCut]:
    """Return the cuts that made this rank's part of a matrix, or of a stack of them, in their
    order.
    """
    if not isinstance(param, DTensor):
        return []
    mesh, size = param.device_mesh, list(param.shape)
    found = []
    for axis, cut in cut_axes(param):
        if (ranks := mesh.size(axis)) == 1:
            continue
        place, dim = mesh.get_local_rank(axis), cut - param.dim()
        sizes = chunk_sizes(size[dim], ranks)
        size[dim] = sizes[place]
        if dim >= -2:
            found.append(MatrixCut(mesh.get_group(axis), place, dim, sizes))
    assert tuple(size) == param.to_local().shape, (param.placements, size)
    return found


def map_whole_matrices(
    work: Callable[[Tensor], Tensor], parts_nrc: Tensor, cuts: Sequence[MatrixCut], first: int = 0
) -> Tensor:
    """Return this rank's parts of `work(matrices)`, from its parts of the matrices.

    All ranks of the cuts' groups call it together. Matrices go to ranks in turn, beginning with
    rank `first`, so that stacks which leave some ranks idle do not all leave the same ones idle.
    """
    if not cuts:
        return work(parts_nrc)
    *before, cut = cuts  # the last cut is mended first
    each, more = divmod(len(parts_nrc), len(cut.sizes))
    ranks = range(len(cut.sizes))
    owned = [each + ((rank - first) % len(ranks) < more) for rank in ranks]
    joined_nrc = _exchange_parts(parts_nrc, 0, owned, cut.dim, cut.sizes, cut)
    done_nrc = map_whole_matrices(work, joined_nrc, before, first)
    return _exchange_parts(done_nrc, cut.dim, cut.sizes, 0, owned, cut)


def _exchange_parts(
    x_nrc: Tensor, split: int, sent: Sequence[int], join: int, got: Sequence[int], cut: MatrixCut
) -> Tensor:
    """Split along one dimension, a piece for each rank; join the received pieces along another."""
    pieces = x_nrc.split(list(sent), split)
    shapes = []
    for size in got:
        shape = list(pieces[cut.place].shape)
        shape[join] = size
        shapes.append(shape)
    counts = [math.prod(shape) for shape in shapes]
    flat = x_nrc.new_empty(sum(counts))
    dist.all_to_all_single(
        flat,
        torch.cat([piece.flatten() for piece in pieces]),
        counts,
        [piece.numel() for piece in pieces],
        group=cut.group,
    )
    parts = [part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)]
    return torch.cat(parts, join)
