"""Microbatches of equal size, laid one on the other: what torch's pipeline schedules take.

Shape suffixes: n microbatches, b rows of all of them, s sequence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.train.parallel.batch import Micro


@dataclass(frozen=True)
class Pile:
    """Rows and whole microbatches that only fill up do not count in the loss."""

    rows: int  # of each microbatch
    inputs_bs: Tensor
    targets_bs: Tensor
    counted_bs: Tensor | None  # None: all targets do
    starts_bs: Tensor | None  # of whole sequences, also where a rank has only part of them
    weights_n: Tensor  # on the host


def pile(batch: list[Micro], count: int) -> Pile:
    """`count` microbatches as large as the largest of the batch."""
    rows = max(len(micro.inputs_bs) for micro in batch)
    all_count = all(m.counted_bs is None and len(m.inputs_bs) == rows for m in batch)
    starts = {i: m.starts_bs for i, m in enumerate(batch) if m.starts_bs is not None}
    weights = [micro.weight for micro in batch]
    return Pile(
        rows,
        _stacked({i: micro.inputs_bs for i, micro in enumerate(batch)}, rows, count),
        _stacked({i: micro.targets_bs for i, micro in enumerate(batch)}, rows, count),
        None if all_count else _stacked(dict(enumerate(map(_counted, batch))), rows, count),
        _stacked(starts, rows, count) if starts else None,
        torch.tensor(weights + [0.0] * (count - len(batch)), dtype=torch.float64),
    )


def _counted(micro: Micro) -> Tensor:
    if micro.counted_bs is None:
        return torch.ones_like(micro.targets_bs, dtype=torch.bool)
    return micro.counted_bs


def _stacked(parts: dict[int, Tensor], rows: int, count: int) -> Tensor:
    """Each part at the place of its microbatch, and zeros where none is."""
    if len(parts) == count and all(len(part) == rows for part in parts.values()):
        return torch.cat(list(parts.values()))  # one kernel, and mostly so
    some = next(iter(parts.values()))
    whole = some.new_zeros(count * rows, some.shape[1])
    for i, part in parts.items():
        whole[i * rows : i * rows + len(part)] = part
    return whole
