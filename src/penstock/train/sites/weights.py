"""The weights of a site as its exchange sees them: messages, merges, snapshots, hashes.

Each rank keeps anchor, outer momentum and what the codec owes of its own part of the model. What
goes to the bucket or comes from it is whole, and rank 0 has it on its host: the bytes of messages
and snapshots. All ranks work through the model together, one bucket at a time (`whole.py`): no rank
ever holds the whole model as numbers, unless its own part is all of it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor

from penstock.errors import PenstockError, RunFailed
from penstock.train.codecs.codec import (
    block_ranges,
    check_finite,
    encoded_bytes,
)
from penstock.train.replicas.outer import HEADER, OuterStep
from penstock.train.sites.whole import Bucket, WholeModel

# Of a snapshot, which is an object of its own: it may be 80 GB, and S3 takes 5 GB at once. All
# sites of a run must cut alike.
PART_BYTES = 512 << 20
Part = list[tuple[Mapping[str, Tensor], Bucket]]  # buckets, of the anchor or of the momentum


class MemberWeights(Protocol):
    """The weights of a site, as the one that talks to the bucket uses them."""

    @property
    def message_bytes(self) -> int:
        """Bytes of what a site publishes."""

    @property
    def snapshot_sizes(self) -> list[int]:
        """Bytes of each part of a snapshot."""

    def message(self, tokens: int) -> bytes:
        """Return the difference that `tokens` of training have made."""

    def keep_owed(self, payload: bytes) -> None:
        """Owe what a message leaves out of the difference that was to be sent: it is published."""

    def check(self, payload: bytes) -> str:
        """Return why what a site published cannot be merged; empty if it can."""

    def merge(self, payloads: list[bytes], share: float) -> None:
        """Move the anchor by the mean of what sites published; `share` is how much of it counts."""

    def adopt(self) -> None:
        """Go on from the anchor."""

    def anchor_hash(self) -> str:
        """Return the hash of anchor and outer momentum, on which all sites agree."""

    def snapshot(self, part: int) -> bytes:
        """Return a part of anchor and outer momentum."""

    def load_snapshot(self, part: int, payload: bytes) -> None:
        """Take a part of anchor and outer momentum over from another site."""


class SiteWeights:
    """Anchor, outer momentum and weights of a site, on one of its ranks.

    All ranks call its methods together, but `check`, which rank 0 calls alone. Only rank 0 has
    payloads, and gets them; the others give and get empty ones.
    """

    def __init__(
        self,
        outer: OuterStep,
        whole: WholeModel,
        beat: Callable[[], None] = lambda: None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.outer, self.whole = outer, whole
        self._beat = beat  # a sign of life: a bucket is done
        self._hash: str | None = None  # of anchor and momentum as they are
        self._anchors, self._velocities = outer.views(outer.anchor), outer.views(outer.velocity)
        self._owed = {} if outer.owed is None else outer.views(outer.owed)
        self._parts = list(self._cut_snapshot(part_bytes))

    @property
    def message_bytes(self) -> int:
        return HEADER.size + encoded_bytes(self.outer.codec, self.whole.layout.length)

    @property
    def snapshot_sizes(self) -> list[int]:
        item = self.outer.dtype.itemsize
        return [sum(bucket.count for _, bucket in part) * item for part in self._parts]

    def loaded(self) -> None:
        """Note that the tensors were changed from outside: a checkpoint was loaded."""
        self._hash = None

    @torch.no_grad()
    def message(self, tokens: int) -> bytes:
        self._refuse_bad()
        lossy = self.outer.owed is not None
        # Without tokens it counts nothing, so nothing is taken from what is owed.
        wanted = self._wanted if tokens or not lossy else self._nothing
        lead = self.whole.world.lead
        made = bytearray(self.message_bytes if lead else 0)
        made[: HEADER.size] = HEADER.pack(tokens) if lead else b""
        for bucket in self._buckets():
            values = self.whole.gather(bucket, wanted, self.outer.dtype)
            if lead:
                self._put(made, bucket, self.outer.codec.encode(values))
        return bytes(made)

    @torch.no_grad()
    def keep_owed(self, payload: bytes) -> None:
        lead, codec = self.whole.world.lead, self.outer.codec
        head = HEADER.unpack(payload[: HEADER.size])[0] if lead else 0
        if self.outer.owed is None or not self.whole.world.broadcast(head):
            return
        for bucket in self._buckets():
            content = self._cut(payload, bucket) if lead else None
            sent = codec.decode(self._from_lead(bucket, content), bucket.count)
            for name, own, there in self.whole.own_rows(bucket, sent.to(self.outer.dtype)):
                _rows(self._owed[name], own).copy_(self._wanted(name, own) - there)

    def _wanted(self, name: str, own: slice) -> Tensor:
        """Return rows of the difference to be sent, with what is owed from before."""
        inner = _rows(self.outer.weights[name], own).to(self.outer.dtype)
        difference = _rows(self._anchors[name], own) - inner
        return difference + _rows(self._owed[name], own) if self._owed else difference

    def _nothing(self, name: str, own: slice) -> Tensor:
        return torch.zeros_like(_rows(self._anchors[name], own))

    def check(self, payload: bytes) -> str:
        """Return why what a site published cannot be merged; empty if it can. Rank 0 alone calls
        it."""
        if len(payload) != self.message_bytes:
            return f"holds {len(payload)} bytes, and {self.message_bytes} were expected"
        (tokens,) = HEADER.unpack(payload[: HEADER.size])
        if tokens < 0:
            return f"is a difference of {tokens} tokens"
        try:
            for bucket in self.whole.buckets:
                decoded = self.outer.codec.decode(self._cut(payload, bucket), bucket.count)
                check_finite(decoded, "its difference of weights")
        except PenstockError as error:
            return f"cannot be merged: {error}"
        return ""

    @torch.no_grad()
    def merge(self, payloads: list[bytes], share: float) -> None:
        outer, world = self.outer, self.whole.world
        heads = [HEADER.unpack(one[: HEADER.size])[0] for one in payloads]
        tokens: list[int] = world.broadcast(heads)
        if any(own < 0 for own in tokens):
            raise RunFailed(f"sites sent differences of {tokens} tokens")
        if not any(tokens):
            return
        self._hash = None
        for bucket in self._buckets():
            mean = self.whole.empty(bucket, outer.dtype)
            for number, own in enumerate(tokens):
                if own:
                    content = self._cut(payloads[number], bucket) if world.lead else None
                    decoded = outer.codec.decode(self._from_lead(bucket, content), bucket.count)
                    mean.add_(decoded.to(outer.dtype), alpha=own / sum(tokens))
            if not bool(mean.isfinite().all()):
                raise RunFailed("the mean difference of weights of the sites is not finite")
            if share != 1:
                mean.mul_(share)
            for name, own_rows, there in self.whole.own_rows(bucket, mean):
                outer.optimizer.step(
                    _rows(self._anchors[name], own_rows),
                    _rows(self._velocities[name], own_rows),
                    there,
                )

    def adopt(self) -> None:
        self.outer.adopt()

    def anchor_hash(self) -> str:
        if self._hash is None:
            found = blake3()
            for part in self._parts:
                for values in self._gathered(part):
                    found.update(_to_bytes(values))
            self._hash = found.hexdigest()
        return self._hash

    def snapshot(self, part: int) -> bytes:
        return b"".join(_to_bytes(values) for values in self._gathered(self._parts[part]))

    @torch.no_grad()
    def load_snapshot(self, part: int, payload: bytes) -> None:
        world, dtype = self.whole.world, self.outer.dtype
        size, expected = world.broadcast(len(payload)), self.snapshot_sizes[part]
        if size != expected:
            raise PenstockError(
                f"a snapshot in the bucket has {size} bytes in part {part}, and {expected} were "
                "expected: it is of another model than this one; put the model back as it is in "
                "the other sites"
            )
        self._hash, start = None, 0
        for held, bucket in self._parts[part]:
            whole, stop = self.whole.empty(bucket, dtype), start + bucket.count * dtype.itemsize
            if world.lead:
                whole.copy_(_from_bytes(payload[start:stop]).view(dtype))
            world.broadcast_(whole)
            for name, own, there in self.whole.own_rows(bucket, whole):
                _rows(held[name], own).copy_(there)
            start = stop
            self._beat()

    def _cut_snapshot(self, part_bytes: int) -> Iterator[Part]:
        """Cut anchor and then outer momentum into parts of at most so many bytes, or one bucket."""
        part: Part = []
        size = 0
        for held in (self._anchors, self._velocities):
            for bucket in self.whole.buckets:
                more = bucket.count * self.outer.dtype.itemsize
                if part and size + more > part_bytes:
                    yield part
                    part, size = [], 0
                part.append((held, bucket))
                size += more
        yield part

    def _buckets(self) -> Iterator[Bucket]:
        for bucket in self.whole.buckets:
            yield bucket
            self._beat()

    def _gathered(self, part: Part) -> Iterator[Tensor]:
        """Yield the values of a part of a snapshot, a bucket at a time; only to rank 0."""
        for held, bucket in part:
            values = self.whole.gather(bucket, partial(_rows_of, held), self.outer.dtype)
            self._beat()
            if self.whole.world.lead:
                yield values

    def _put(self, message: bytearray, bucket: Bucket, content: Tensor) -> None:
        """Put the bytes of a bucket to their places in a message."""
        ends = accumulate(self.outer.codec.sections(bucket.count), initial=0)
        own = memoryview(_to_bytes(content))
        for at, (begin, end) in zip(self._places(bucket), pairwise(ends), strict=True):
            message[at] = own[begin:end]

    def _cut(self, payload: bytes, bucket: Bucket) -> Tensor:
        """Return the bytes of a bucket in a message, on this rank's device."""
        whole = memoryview(payload)
        parts = b"".join(whole[at] for at in self._places(bucket))
        return _from_bytes(parts).to(self.whole.world.device)

    def _places(self, bucket: Bucket) -> list[slice]:
        length = self.whole.layout.length
        found = block_ranges(self.outer.codec, length, bucket.start, bucket.count)
        return [slice(HEADER.size + at.start, HEADER.size + at.stop) for at in found]

    def _from_lead(self, bucket: Bucket, content: Tensor | None) -> Tensor:
        """Return the bytes of a bucket, which rank 0 has."""
        world = self.whole.world
        if content is None:
            size = encoded_bytes(self.outer.codec, bucket.count)
            content = torch.empty(size, dtype=torch.uint8, device=world.device)
        return world.broadcast_(content)

    def _refuse_bad(self) -> None:
        """Refuse weights that are not finite, on all ranks alike."""
        why = ""
        for name, weight in self.outer.weights.items():
            difference = self._anchors[name] - weight.to(self.outer.dtype)
            if not why and not bool(difference.isfinite().all()):
                try:
                    check_finite(weight, f"weights {name} after local steps")
                    why = f"the difference of weights {name} is not finite"
                except PenstockError as error:
                    why = str(error)
        found = [one for one in self.whole.world.gather(why) if one]
        if found:
            raise RunFailed(found[0])


def _rows(held: Tensor, own: slice) -> Tensor:
    """Return rows of a rank's part of a tensor; a number is one row."""
    return (held if held.dim() else held.view(1))[own]


def _rows_of(held: Mapping[str, Tensor], name: str, own: slice) -> Tensor:
    return _rows(held[name], own)


def _to_bytes(values: Tensor) -> bytes:
    return values.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _from_bytes(payload: bytes) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)
