"""Between replicas: sum the accumulated, sharded gradients out of place, then commit by a vote.

FSDP2 works inside a replica and knows nothing of the others. Nothing here hooks into backward, so a
step can be refused after the exchange and the gradients of this replica are still its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from penstock.errors import PenstockError
from penstock.train.world import World

# Gradients travel in buckets of about this size: large enough for full bandwidth, small enough that
# the copy costs a bounded amount of memory.
BUCKET_BYTES = 64 << 20
# What a rank may ask all ranks to do after the step. Whatever depends on a clock or on a file is
# asked for by rank 0 alone, so that all ranks do the same.
WISHES = ("save", "stop", "evaluate")


@dataclass(frozen=True)
class Vote:
    """What all ranks agreed on at the end of a step."""

    loss: float  # mean over the tokens of the global batch
    grad_norm: float  # before clipping
    wishes: dict[str, bool]  # what any rank asked for

    @property
    def good(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass
class Replicas:
    """The plain policy (one sum a step), and its bf16 compression with error feedback."""

    world: World
    params: Sequence[nn.Parameter]
    compress: str = "none"  # or "bf16"
    names: Sequence[str] = ()  # of the parameters, for messages
    _residuals: list[Tensor] = field(default_factory=list)  # replica-local: what bf16 left out
    _next_residuals: list[Tensor] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        return self.world.mesh.size(0) == 1

    def reduce(self) -> list[Tensor]:
        """Local gradients summed over replicas, in the order of `params`; the originals stay."""
        grads = [local(p.grad) for p in self.params if p.grad is not None]
        if len(grads) < len(self.params):
            without = [i for i, p in enumerate(self.params) if p.grad is None]
            names = ", ".join(self.names[i] if self.names else f"parameter {i}" for i in without)
            raise PenstockError(
                f"model: no gradient reached {names}; use it in forward, or set requires_grad=False"
            )
        if self.alone:
            return grads
        summed: list[Tensor] = []
        self._next_residuals = []
        for bucket in buckets(grads):
            flat = torch.cat([g.flatten() for g in bucket])
            flat = self._exchange(flat)
            parts = flat.split([g.numel() for g in bucket])
            summed += [part.view_as(g) for part, g in zip(parts, bucket, strict=True)]
        return summed

    def _exchange(self, flat: Tensor) -> Tensor:
        if self.compress == "bf16":
            return self._exchange_bf16(flat)
        dist.all_reduce(flat, group=self.world.group("replicate"))
        return flat

    def _exchange_bf16(self, flat: Tensor) -> Tensor:
        """Half the bytes of the plain sum, and nothing is lost for good.

        Each replica gets one part of the bucket from all, sums it in full precision and sends the
        sum to all. An all-reduce in bf16 would round its sums where nobody could keep the rest.
        """
        group, replicas = self.world.group("replicate"), self.world.mesh.size(0)
        each = -(-flat.numel() // replicas)
        sent = self._rounded(F.pad(flat, (0, each * replicas - flat.numel())))
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        part = self._rounded(got.view(replicas, each).to(flat.dtype).sum(0))
        back = torch.empty_like(sent)
        dist.all_gather(list(back.view(replicas, each)), part, group=group)
        return back[: flat.numel()].to(flat.dtype)

    def _rounded(self, values: Tensor) -> Tensor:
        """In bf16. What that leaves out is owed to the same place in the next step."""
        place = len(self._next_residuals)
        owed = values + self._residuals[place] if self._residuals else values
        sent = owed.bfloat16()
        self._next_residuals.append(owed - sent.to(owed.dtype))
        return sent

    def vote(self, loss: Tensor, squares: Tensor, wishes: dict[str, bool]) -> Vote:
        """One small sum over all ranks carries the loss, the gradient norm and every rank's wishes.

        Reading it is the one place in a step where the host waits for the device.
        """
        asked = [float(wishes.get(w, False)) for w in WISHES]
        # Replicas hold equal sums, so each brings its share of the squared norm.
        ballot = torch.cat(
            (
                torch.stack((loss.double(), squares / self.world.mesh.size(0))),
                torch.tensor(asked, dtype=torch.float64, device=squares.device),
            )
        )
        total, square, *counts = self.world.sum_(ballot).tolist()
        # A NaN has no square root in `math`; let it through so that the vote sees it.
        norm = square**0.5 if square >= 0 else float("nan")
        return Vote(total, norm, {w: c > 0 for w, c in zip(WISHES, counts, strict=True)})

    @torch.no_grad()
    def commit(self, summed: list[Tensor], scale: float) -> None:
        """Make the sums the gradients of this replica, scaled (clipping)."""
        own = [local(p.grad) for p in self.params]
        if not self.alone:
            torch._foreach_copy_(own, summed)
            self._residuals = self._next_residuals
        if scale != 1.0:
            torch._foreach_mul_(own, scale)

    def local_state(self) -> dict[str, Tensor]:
        """State that belongs to this replica alone and means nothing in another layout."""
        return {f"residual.{i}": r for i, r in enumerate(self._residuals)}

    def load_local_state(self, state: dict[str, Tensor]) -> None:
        device = self.world.device
        self._residuals = [state[f"residual.{i}"].to(device) for i in range(len(state))]


def squared_norm(tensors: list[Tensor]) -> Tensor:
    """Of all of them together. Each tensor's norm is fused; the few squares are added in double."""
    return torch.stack(torch._foreach_norm(tensors)).double().square().sum()


def local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def buckets(tensors: list[Tensor]) -> list[list[Tensor]]:
    out: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if not out or size > room:
            out.append([])
            room = BUCKET_BYTES
        out[-1].append(tensor)
        room -= size
    return out
