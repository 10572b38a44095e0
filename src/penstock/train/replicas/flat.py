"""Tensors side by side in one flat vector, each at the beginning of a block of the codec.

So one call encodes them all, no block has values of two tensors, and anchor, momentum and error
feedback are one vector each. The vector is cut into parts of about equal length, between tensors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from penstock.policy.rounds import part_of


@dataclass(frozen=True)
class Place:
    """The place of a tensor in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    part: int

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)


class FlatLayout:
    """The places of all tensors, and the parts that they are exchanged in."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], block: int, parts: int = 1) -> None:
        lengths = [-(-prod(shape) // block) * block for shape in shapes.values()]
        self.length = sum(lengths)
        self.places: list[Place] = []
        start = 0
        for (name, shape), length in zip(shapes.items(), lengths, strict=True):
            part = part_of(start, length, self.length, parts)
            self.places.append(Place(name, tuple(shape), start, part))
            start += length
        starts = [min((p.start for p in self.of(n)), default=-1) for n in range(parts)]
        after = self.length
        self.parts = [slice(0, 0)] * parts
        for n in reversed(range(parts)):
            if starts[n] >= 0:  # a part between two large tensors may be empty
                self.parts[n], after = slice(starts[n], after), starts[n]

    def of(self, part: int) -> Iterator[Place]:
        """Yield the places of the tensors of a part."""
        return (place for place in self.places if place.part == part)

    def view(self, flat: Tensor, place: Place) -> Tensor:
        """Return one tensor of a flat vector of all of them."""
        return flat[place.start : place.stop].view(place.shape)

    def pack(self, tensors: Mapping[str, Tensor], part: int, dtype: torch.dtype) -> Tensor:
        """Copy the tensors of a part into a vector, with zeros between them."""
        whole = self.parts[part]
        device = next((tensor.device for tensor in tensors.values()), None)
        flat = torch.zeros(whole.stop - whole.start, dtype=dtype, device=device)
        for place in self.of(part):
            at = slice(place.start - whole.start, place.stop - whole.start)
            flat[at].view(place.shape).copy_(tensors[place.name])
        return flat

    def clear_gaps(self, flat: Tensor, part: int) -> None:
        """Set what lies between the tensors of a part to zero, in a vector of that part."""
        first, gap = self.parts[part].start, self.parts[part].stop
        for place in reversed(list(self.of(part))):
            if place.stop < gap:
                flat[place.stop - first : gap - first].zero_()
            gap = place.start
