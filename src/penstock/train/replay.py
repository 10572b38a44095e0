"""A check for silent data corruption: now and then each replica also computes a microbatch of its
neighbour.

Equal weights and equal samples must give equal gradients. The neighbour's samples are read, not
sent: they follow from a position. The check leaves no trace in the run.
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.guard.detect.fingerprints import fingerprints, gather_by_replica
from penstock.guard.detect.sentinels import Sentinels
from penstock.policy.replay import ReplayResult, Results, at_fault, differing
from penstock.train.batches import Batches
from penstock.train.parallel.microbatch import Microbatch, RankShare
from penstock.train.rank_context import RankContext
from penstock.train.replicas.reduce import squared_norm
from penstock.train.step import Stepper, seed_step


@dataclass
class Replay:
    """A check of one microbatch by two replicas."""

    rank: RankContext
    batches: Batches
    stepper: Stepper
    sentinels: Sentinels

    def __post_init__(self) -> None:
        self.run, self.world = self.rank.run, self.rank.world

    def check(self, step: int, position: int) -> None:
        """Compute, on all ranks together, samples of the batch that begins at `position`."""
        replica, replicas = self.world.index("replicate"), self.world.size("replicate")
        own = self._of_all(self._compute(step, position, replica))
        of_next = self._of_all(self._compute(step, position, (replica + 1) % replicas))
        if pairs := differing(own, of_next, self._exact):
            again = self._of_all(self._compute(step, position, replica))
            wrong = at_fault(pairs, own, again, self._exact)
            self.sentinels.record_replay(step, pairs, wrong)

    @property
    def _exact(self) -> bool:
        return not self.world.cuda or self.run.train.deterministic

    def _compute(self, step: int, position: int, replica: int) -> Tensor:
        """Return the loss, the norm and the bits of the gradients, as three numbers of 64 bits."""
        shards = self.world.size("shard")
        data_rank = replica * shards + self.world.index("shard")
        micro = self._first(position, data_rank)
        seed_step(self.run.train.seed, step, data_rank)
        self.stepper.begin()
        loss = self.stepper.runner.backward([micro], self.run.batch_tokens)
        grads = self.stepper.gradients.collect()
        self.stepper.runner.add_shared_gradients(grads)
        norm = squared_norm(grads, dict.fromkeys(grads, 1.0)).sqrt().to(loss.device)
        numbers = torch.stack((loss.double(), norm)).view(torch.int64)
        bits = fingerprints({"loss": loss} | grads).sum(dim=0, keepdim=True)
        self.stepper.discard()
        return torch.cat((numbers, bits.to(numbers.device)))

    def _first(self, position: int, data_rank: int) -> Microbatch:
        """Read the first microbatch of a rank's share."""
        size, ranks = self.rank.layout.microbatch, self.world.data_ranks
        share = RankShare.of(position, position + self.run.batch_samples, data_rank, ranks, size)
        samples = self.batches.loader.read(share.start, min(share.start + size, share.stop))
        return samples.micros(1, size)[0]

    def _of_all(self, own: Tensor) -> list[Results]:
        return [
            tuple(ReplayResult(_double(loss), _double(norm), bits) for loss, norm, bits in replica)
            for replica in gather_by_replica(own, self.world)
        ]


def _double(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<q", bits))[0]
