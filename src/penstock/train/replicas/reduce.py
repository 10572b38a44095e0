"""The exchange between replicas: sum the accumulated, sharded gradients out of place, then vote on
the step.

FSDP2 works inside a replica and does not know the others. Nothing here hooks into backward, so a
step can be refused after the exchange and the gradients of this replica are still its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.train.codecs.codec import Codec, build_codec
from penstock.train.codecs.feedback import encode_owed
from penstock.train.parallel.parts import Grads
from penstock.train.world.world import World

# Gradients travel in buckets of about this size: large enough for full bandwidth, small enough that
# the copy costs a bounded amount of memory.
BUCKET_BYTES = 64 << 20
# Requests of a rank to all ranks, for after the step. Rank 0 alone makes those that depend on a
# clock or on a file, so that all ranks do the same.
# "busy" is any rank's own: its last copy of the state is not safe yet, so nobody begins another.
REQUESTS = ("save", "stage", "stop", "evaluate", "compare", "replay", "busy", "join", "trace",
            "tasks")  # fmt: skip


@dataclass(frozen=True)
class Vote:
    """The agreement of all ranks at the end of a step."""

    loss: float  # mean over the tokens of the global batch
    grad_norm: float  # before clipping
    requests: dict[str, bool]  # what any rank asked for
    figures: tuple[float, ...] = ()  # what else the objective measured; see `Runner.figures`

    @property
    def good(self) -> bool:
        """Return whether loss and gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass
class ReplicaReducer:
    """One sum of gradients per step, plain or by a codec with error feedback."""

    world: World
    compress: str = "none"  # or "bf16" or "int8"
    _residuals: list[Tensor] = field(default_factory=list)  # replica-local: what the codec left out
    _next_residuals: list[Tensor] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Return whether this replica sums its gradients with no other."""
        return self.world.size("replicate") == 1 or self.world.apart

    def reduce(self, grads: Grads) -> Grads:
        """Return the gradients summed over replicas; the originals stay."""
        if self.alone:
            return grads
        summed: Grads = {}
        self._next_residuals = []
        for names in buckets(grads):
            bucket = [grads[name] for name in names]
            flat = self._exchange(torch.cat([g.flatten() for g in bucket]))
            parts = flat.split([g.numel() for g in bucket])
            for name, part, grad in zip(names, parts, bucket, strict=True):
                summed[name] = part.view_as(grad)
        return summed

    def _exchange(self, flat: Tensor) -> Tensor:
        if self.compress == "none":
            return self.world.sum_replicas_(flat)
        return self._exchange_encoded(flat, build_codec(self.compress))

    def _exchange_encoded(self, flat: Tensor, codec: Codec) -> Tensor:
        """Sum with the bytes of a codec; what it leaves out is carried to the next step.

        Each replica gets one part of the bucket from all, sums it in full precision and sends the
        sum to all. An all-reduce of encoded values would round its sums where no rank could keep
        the error.
        """
        replicas = self.world.size("replicate")
        each = -(-flat.numel() // (replicas * codec.block)) * codec.block
        sent = self._encoded(F.pad(flat, (0, each * replicas - flat.numel())), codec, replicas)
        got = self.world.all_to_all_replicas(sent).view(replicas, -1)
        part = torch.stack([codec.decode(one, each).to(flat.dtype) for one in got]).sum(0)
        back = self.world.gather_replicas(self._encoded(part, codec, 1))
        summed = torch.cat([codec.decode(one, each) for one in back])
        return summed[: flat.numel()].to(flat.dtype)

    def _encoded(self, values: Tensor, codec: Codec, pieces: int) -> Tensor:
        """Encode each of equal pieces. The error is added at the same place in the next step."""
        place = len(self._next_residuals)
        owed = self._residuals[place] if self._residuals else torch.zeros_like(values)
        each = [
            encode_owed(codec, piece, rest)
            for piece, rest in zip(values.chunk(pieces), owed.chunk(pieces), strict=True)
        ]
        self._next_residuals.append(torch.cat([rest for _, rest in each]))
        return torch.cat([content for content, _ in each])

    def vote(
        self,
        loss: Tensor,
        squares: Tensor,
        requests: dict[str, bool],
        figures: Tensor | None = None,
    ) -> Vote:
        """Sum the loss, the gradient norm and every rank's requests over all ranks that step
        together, in one message.

        Reading it is the one place in a step where the host waits for the device.
        """
        asked = torch.tensor([requests.get(w, False) for w in REQUESTS], dtype=torch.float64)
        asked = asked.to(loss.device, non_blocking=True)
        parts = [torch.stack((loss.double(), squares.to(loss.device))), asked]
        parts += [] if figures is None else [figures.to(loss.device)]
        total, square, *rest = self.world.sum_together_(torch.cat(parts)).tolist()
        counts, measured = rest[: len(REQUESTS)], tuple(rest[len(REQUESTS) :])
        # A NaN has no square root in `math`; let it through so that the vote sees it.
        norm = square**0.5 if square >= 0 else float("nan")
        asked_for = {w: c > 0 for w, c in zip(REQUESTS, counts, strict=True)}
        return Vote(total, norm, asked_for, measured)

    def commit(self) -> None:
        """Keep the rounding errors for the next step, once this step is taken."""
        if not self.alone:
            self._residuals = self._next_residuals

    def local_state(self) -> dict[str, Tensor]:
        """Return state that belongs to this replica alone and has no meaning in another layout."""
        return {f"residual.{i}": r for i, r in enumerate(self._residuals)}

    def load_local_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state that `local_state` returned."""
        device = self.world.device
        self._residuals = [state[f"residual.{i}"].to(device) for i in range(len(state))]


class LiveReplicaReducer(ReplicaReducer):
    """The exchange between replicas that come and go: sum and vote are over the live ones.

    `live_world.py` notices a lost replica and handles it.
    """

    def vote(
        self,
        loss: Tensor,
        squares: Tensor,
        requests: dict[str, bool],
        figures: Tensor | None = None,
    ) -> Vote:
        """Vote with this replica's share of the norm: every replica has the whole norm."""
        return super().vote(loss, squares / self.world.size("replicate"), requests, figures)

    def drop_residuals(self) -> None:
        """Drop the rounding errors: their parts were cut for members that are gone."""
        self._residuals, self._next_residuals = [], []

    def local_state(self) -> dict[str, Tensor]:
        """Return nothing: rounding errors do not survive a change of members."""
        return {}


def squared_norm(grads: Grads, shares: Mapping[str, float]) -> Tensor:
    """Return the squared norm of all gradients; `shares` is the part of each that this rank counts.

    Each tensor's norm is fused, in fp32 or wider; the few squares are added in double. A pipeline
    stage may have no gradients, if adapters are in some layers only.
    """
    if not grads:
        return torch.zeros((), dtype=torch.float64)
    found = list(grads.values())
    wide = torch.promote_types(found[0].dtype, torch.float32)
    squares = torch.stack(torch._foreach_norm(found, 2.0, wide)).double().square()
    held = torch.tensor([shares[name] for name in grads], dtype=torch.float64)
    # Not made on the device: that would wait for all the work that is queued there.
    return (squares * held.to(squares.device, non_blocking=True)).sum()


def buckets(grads: Grads) -> list[list[str]]:
    """Return groups of gradient names; each group has one type and travels together."""
    out: list[list[str]] = []
    room, dtype = 0, None
    for name, tensor in grads.items():
        size = tensor.numel() * tensor.element_size()
        if not out or size > room or tensor.dtype != dtype:
            out.append([])
            room, dtype = BUCKET_BYTES, tensor.dtype
        out[-1].append(name)
        room -= size
    return out
