"""The whole model of a site as one flat vector, of which each of its ranks holds some boxes.

The vector is that of a site whose one rank holds everything: `FlatLayout` over the whole tensors,
in the order of the model. So what a site publishes depends on the model and the codec alone. It is
never all in one place: it is cut into buckets of 64 MiB in fp32, between blocks of the codec and
between rows of a tensor (a longer row is not cut), and ranks gather one bucket at a time on rank 0,
or get one from it.

    anchor of a matrix 6 × 4, layout.shard = 2       rank 0 holds rows 0 to 2, rank 1 rows 3 to 5
    in the vector                                    24 values at the beginning of a block

A box that several ranks hold (replicas, norms under tensor parallel, a tied embedding) is given by
the first of them. Ranks add integers, of which all but one are 0: bits stay what they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.plan.memory.state import BUCKET_VALUES
from penstock.train.parallel.parts import local_box
from penstock.train.replicas.flat import FlatLayout, Place

_BITS = {4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Rows:
    """Some rows of a tensor, and where they begin in their bucket."""

    place: Place
    first: int
    last: int
    at: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.last - self.first, *_shape(self.place)[1:])

    def view(self, bucket: Tensor) -> Tensor:
        """Return the rows in a bucket's values."""
        return bucket[self.at : self.at + prod(self.shape)].view(self.shape)


@dataclass(frozen=True)
class Bucket:
    """A part of the vector that begins and ends with a block."""

    start: int
    count: int
    rows: tuple[Rows, ...]


@dataclass(frozen=True)
class Box:
    """A rank's part of a tensor: the first index and the size along each dimension."""

    first: tuple[int, ...]
    size: tuple[int, ...]

    def rows_in(self, rows: Rows) -> tuple[slice, tuple[slice, ...]] | None:
        """Return which of its rows are among `rows`, and where they are there; None if none is."""
        begin = max(rows.first, self.first[0])
        end = min(rows.last, self.first[0] + self.size[0])
        if begin >= end or 0 in self.size:
            return None
        beside = (slice(a, a + n) for a, n in zip(self.first[1:], self.size[1:], strict=True))
        own = slice(begin - self.first[0], end - self.first[0])
        return own, (slice(begin - rows.first, end - rows.first), *beside)


class SiteRanks(Protocol):
    """The ranks of a site, as far as its exchange needs them."""

    @property
    def rank(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def lead(self) -> bool: ...
    def index(self, dimension: str) -> int: ...
    def gather(self, value: Any) -> list[Any]: ...
    def broadcast(self, value: Any) -> Any: ...
    def broadcast_(self, values: Tensor) -> Tensor: ...


class WholeModel:
    """The trained tensors of a site, whichever of its ranks hold them. All ranks build it.

    `trained` are those of this rank, and `pieces` their names: a list, or one for each piece that
    the rank has of a pipeline.
    """

    def __init__(
        self,
        trained: Mapping[str, Tensor],
        pieces: Sequence[Sequence[str]],
        world: SiteRanks,
        block: int,
        bucket_values: int = BUCKET_VALUES,
    ) -> None:
        self.world = world
        self.boxes = {name: Box(*local_box(tensor)) for name, tensor in trained.items()}
        every = world.gather(
            {
                "stage": world.index("pipeline"),
                "pieces": [list(names) for names in pieces],
                "tensors": {
                    name: (tuple(trained[name].shape), box.first, box.size)
                    for name, box in self.boxes.items()
                },
            }
        )
        shapes = _whole_shapes(every)
        givers = {name: _givers(name, shape, every) for name, shape in shapes.items()}
        self.layout = FlatLayout(shapes, block)
        self.given = {name for name, ranks in givers.items() if world.rank in ranks}
        elsewhere = {name for name, ranks in givers.items() if ranks != {0}}
        self.buckets = list(_buckets(self.layout, block, bucket_values))
        self._spread = {
            bucket.start for bucket in self.buckets
            if any(rows.place.name in elsewhere for rows in bucket.rows)
        }  # fmt: skip

    def empty(self, bucket: Bucket, dtype: torch.dtype) -> Tensor:
        """Return room for the values of a bucket, all 0."""
        return torch.zeros(bucket.count, dtype=dtype, device=self.world.device)

    def gather(
        self, bucket: Bucket, values: Callable[[str, slice], Tensor], dtype: torch.dtype
    ) -> Tensor:
        """Return the values of a bucket on rank 0; between the tensors they are 0. On other ranks
        what it returns is of no use.

        `values` returns rows of this rank's part of a tensor.
        """
        whole = self.empty(bucket, dtype)
        for name, own, there in self.own_rows(bucket, whole):
            if name in self.given:
                there.copy_(values(name, own))
        if bucket.start in self._spread:
            dist.reduce(whole.view(_BITS[dtype.itemsize]), dst=0)
        return whole

    def own_rows(self, bucket: Bucket, whole: Tensor) -> Iterator[tuple[str, slice, Tensor]]:
        """Yield what this rank holds of a bucket: the name, the rows of its own part of the tensor,
        and the same values in `whole`."""
        for rows in bucket.rows:
            box = self.boxes.get(rows.place.name)
            found = box.rows_in(rows) if box else None
            if found:
                own, there = found
                yield rows.place.name, own, rows.view(whole)[there]


def _whole_shapes(every: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in the order of the model, by what each rank holds."""
    stages = 1 + max(one["stage"] for one in every)
    # The stages of an interleaved pipeline get pieces in turn.
    in_turn = {
        piece * stages + one["stage"]: names
        for one in every
        for piece, names in enumerate(one["pieces"])
    }
    shapes = {name: about[0] for one in every for name, about in one["tensors"].items()}
    return {name: shapes[name] for number in sorted(in_turn) for name in in_turn[number]}


def _givers(name: str, shape: tuple[int, ...], every: list[dict[str, Any]]) -> set[int]:
    """Return the ranks that give the boxes of a tensor: of those that hold one, the first."""
    seen: dict[Any, int] = {}
    for rank, one in enumerate(every):
        if name in one["tensors"]:
            _, first, size = one["tensors"][name]
            if prod(size):
                seen.setdefault((first, size), rank)
    held = sum(prod(size) for _, size in seen)
    assert held == prod(shape), f"{name}: its ranks hold {held} of {prod(shape)} values"
    return set(seen.values())


def _buckets(layout: FlatLayout, block: int, most: int) -> Iterator[Bucket]:
    """Cut the vector into buckets of about `most` values at the most."""
    rows: list[Rows] = []
    start = end = 0
    ends = [place.start for place in layout.places[1:]] + [layout.length]
    for place, after in zip(layout.places, ends, strict=True):
        count, *rest = _shape(place)
        width = prod(rest)
        together = block // gcd(width, block)  # rows that fill whole blocks
        step = max(together, most // max(1, width) // together * together)
        for first in range(0, count, step):
            last = min(count, first + step)
            begin = place.start + first * width
            stop = after if last == count else place.start + last * width
            if rows and stop - start > most:
                yield Bucket(start, end - start, tuple(rows))
                rows, start = [], begin
            rows.append(Rows(place, first, last, begin - start))
            end = stop
    if rows:
        yield Bucket(start, end - start, tuple(rows))


def _shape(place: Place) -> tuple[int, ...]:
    return place.shape or (1,)
