"""Fingerprints of weights: one number per rank, compared over replicas.

The number is a sum of the tensors' bits as 64-bit words, computed on the device, with wrap-around:
every single flipped bit changes it. Each tensor has its own multiplier, so that a flip in one is
not undone by a flip in another. It costs one read of the memory.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from blake3 import blake3
from torch import Tensor
from xxhash import xxh3_64_intdigest

from penstock.untrusted import hash_json

INSIDE = ("pipeline", "shard", "context", "tensor")  # the dimensions within one replica
WORD = 8  # bytes


class RankPlacement(Protocol):
    """The ranks, as far as a comparison needs them."""

    @property
    def device(self) -> torch.device: ...
    def size(self, dimension: str) -> int: ...
    def index(self, dimension: str) -> int: ...
    def sum_(self, values: Tensor) -> Tensor: ...


def fingerprints(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a number for each tensor, on their device, without waiting for it."""
    sums = torch.stack([as_words(tensor).sum() for tensor in tensors.values()])
    return sums * torch.tensor([_multiplier(name) for name in tensors]).to(sums.device)


def as_words(tensor: Tensor) -> Tensor:
    """Return a tensor's bits as 64-bit words, without a copy if they fill whole words."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    if rest := flat.numel() % WORD:
        flat = F.pad(flat, (0, WORD - rest))
    elif flat.storage_offset() % WORD:
        flat = flat.clone()  # words begin where memory says
    return flat.view(torch.int64)


def _multiplier(name: str) -> int:
    """Return an odd multiplier, so that no bit is shifted out."""
    return (xxh3_64_intdigest(name.encode()) >> 1) | 1


def gather_by_replica(own: Tensor, world: RankPlacement) -> list[tuple[tuple[int, ...], ...]]:
    """Return `own` of every rank: by replica, then by index inside the replica.

    It is a sum in which every rank fills its own row, so that it works over any kind of group.
    """
    replicas, inside = world.size("replicate"), _inside(world)
    rows = torch.zeros((replicas, inside, len(own)), dtype=torch.int64, device=world.device)
    rows[world.index("replicate"), index_in_replica(world)] = own
    return [tuple(map(tuple, replica)) for replica in world.sum_(rows).tolist()]


def _inside(world: RankPlacement) -> int:
    ranks = 1
    for dimension in INSIDE:
        ranks *= world.size(dimension)
    return ranks


def index_in_replica(world: RankPlacement) -> int:
    """Return this rank's index inside its replica."""
    place = 0
    for dimension in INSIDE:
        place = place * world.size(dimension) + world.index(dimension)
    return place


class Gathering(Protocol):
    """The ranks, as far as a hash over all of them needs them."""

    def gather(self, value: Any) -> list[Any]: ...


def weights_hash(weights: dict[str, Tensor], world: Gathering | None, hashing: bool = True) -> str:
    """Return one hash of the full weights: equal weights have equal hashes in any layout.

    All ranks must call it, each with the weights that it holds. Ranks with `hashing` false only
    contribute their shards.
    """
    own = {}
    for name, param in sorted(weights.items()):
        whole = param.full_tensor() if hasattr(param, "full_tensor") else param
        if not hashing:
            continue
        digest = blake3(f"{whole.dtype} {tuple(whole.shape)}\n".encode())
        digest.update(whole.detach().cpu().flatten().view(torch.uint8).numpy())
        own[name] = digest.hexdigest()
    every_own = world.gather(own) if world else [own]
    return hash_json({name: found for part in every_own for name, found in part.items()})
