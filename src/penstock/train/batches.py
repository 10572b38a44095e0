"""This rank's part of every global batch: which samples a step uses, fetched as microbatches.

The position in the stream is a function of the step alone (see `data/read/order.py`), so a resumed
run reads exactly the samples that it has not used yet.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from penstock.data.read.batch import Skipped
from penstock.data.read.feed import Feed
from penstock.data.read.open import open_planned, open_stream
from penstock.data.read.stream import Stream, rank_slice
from penstock.errors import RunFailed
from penstock.ledger.journal.events import DataSkipped, FeedState
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import StepClock, now
from penstock.policy.sites import LeaseCut
from penstock.train.parallel.microbatch import (
    DeviceBatch,
    DeviceLoader,
    Microbatch,
    RankShare,
    micro_count,
)
from penstock.train.rank_context import RankContext

FEED_EVENT_S = 10.0
NO_END = 2**40  # steps of a site: its leases decide when the run ends


@dataclass
class FeedMeter:
    """The read rates of a run. One rank records them for all, since each reads as much.

    `tokens` are those of a sample, times the data ranks.
    """

    journal: Journal
    records: bool  # whether this rank is the one that records
    tokens: int
    _feed: Feed[DeviceBatch] | None = None
    _since: float = 0.0
    _consumed: int = 0
    _read: int = 0
    _reading_s: float = 0.0

    def record(self, feed: Feed[DeviceBatch]) -> None:
        """Write an event `feed` every few seconds: the rates since the last one.

        `could_tokens_per_s` is the reader's speed while it reads: the most that the run could use.
        """
        if not self.records:
            return
        spent = now() - self._since
        if feed is self._feed and spent < FEED_EVENT_S:
            return
        if feed is self._feed:
            reading_s = feed.reading_s - self._reading_s
            read = (feed.read - self._read) * self.tokens
            self.journal.write(
                FeedState(
                    ready=feed.ready,
                    capacity=feed.depth,
                    tokens_per_s=round((feed.consumed - self._consumed) * self.tokens / spent),
                    could_tokens_per_s=round(read / reading_s) if reading_s > 0 else None,
                ),
                synced=False,
            )
        self._feed, self._since = feed, now()
        self._consumed, self._read, self._reading_s = feed.consumed, feed.read, feed.reading_s


@dataclass
class Poison:
    """A factor that makes the next batch one that nobody should train on."""

    factor: float = 1.0

    def taint(self, batch: list[Microbatch]) -> list[Microbatch]:
        if self.factor == 1.0:
            return batch
        tainted = [replace(micro, weight=micro.weight * self.factor) for micro in batch]
        self.factor = 1.0
        return tainted


@dataclass(frozen=True)
class Counted:
    """Tokens that count in a global batch, over all ranks that take the step together."""

    tokens: int  # of pairs: how many pairs
    skipped: int = 0  # how often damaged data was met
    chosen_tokens: int = 0  # in the chosen sequences of the pairs, prompts included

    def weigh(self, batch: list[Microbatch]) -> list[Microbatch]:
        """Let the loss of the chosen tokens, averaged over the pairs, be their own average."""
        if not self.chosen_tokens:
            return batch
        share = self.tokens / self.chosen_tokens
        return [replace(micro, token_share=share) for micro in batch]


@dataclass(frozen=True)
class LeaseBatches:
    """The batches of a site's lease: a part of each, for steps that the site numbers on its own."""

    number: int
    first_step: int  # of this site, on this lease
    cut: LeaseCut
    done: int  # leases that all sites were through with when this one was granted
    active: int  # leases that were held then

    @property
    def last_step(self) -> int:
        return self.first_step + len(self.cut.batches(self.number)) - 1

    def batch(self, step: int) -> int:
        """Return which batch of the run a step uses a part of, from 1."""
        return self.cut.batches(self.number)[step - self.first_step]

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of the lease in a batch of positions from `start` to `stop`."""
        return rank_slice(start, stop, self.cut.part(self.number), self.cut.parts)

    def scheduled(self, step: int) -> int:
        """Return how many steps of the whole run are done with `step`, if all sites keep up."""
        own = step - self.first_step + 1
        done = (self.done * self.cut.length + own * self.active) // self.cut.parts
        return min(done, self.cut.steps)


@dataclass
class Batches:
    """Samples of a run by step, for one rank."""

    rank: RankContext
    stream: Stream
    loader: DeviceLoader
    steps: int  # of the whole run
    batch_samples: int  # of one step, over all ranks
    batch_tokens: int
    meter: FeedMeter
    poison: Poison = field(default_factory=Poison)  # set by a drill
    resumed_step: int = 0
    consumed: int = 0  # position in the stream at `resumed_step`, samples
    tokens: int = 0  # trained on up to `resumed_step`, in this run and the one it was forked from
    lease: LeaseBatches | None = None  # of a site that meets others in a bucket
    _cut: LeaseCut | None = None  # the same: what leases are cut from
    _reported: set[tuple[str, str, int]] = field(default_factory=set)  # dataset, file, block

    def __post_init__(self) -> None:
        self._audited = self.rank.folder.audit.is_dir()
        self._masked = self.stream.masked

    def open_ended(self, cut: LeaseCut) -> None:
        """Let a site go on until its leases are done: it may take more steps than the run has."""
        self._cut, self.steps = cut, NO_END

    @property
    def seed_rank(self) -> int:
        """Return the number that makes random choices differ between parts of a batch."""
        lease, world = self.lease, self.rank.world
        if lease is None:
            return world.data_rank
        return lease.cut.part(lease.number) * world.data_ranks + world.data_rank

    def scheduled(self, step: int) -> int:
        """Return where a step stands in the schedule of the run."""
        return step if self.lease is None else self.lease.scheduled(step)

    def position(self, step: int) -> int:
        """Return how many samples all optimizer steps up to and with `step` use."""
        return self.consumed + (step - self.resumed_step) * self.batch_samples

    def tokens_at(self, step: int) -> int:
        """Return how many tokens the run has trained on after `step`."""
        if self._cut:
            return self.scheduled(step) * self.batch_tokens
        return self.tokens + (step - self.resumed_step) * self.batch_tokens

    def share(self, start: int, stop: int) -> RankShare:
        """Return this rank's share of a range of positions."""
        world, microbatch = self.rank.world, self.rank.layout.microbatch
        return RankShare.of(start, stop, world.data_rank, world.data_ranks, microbatch)

    def share_of_step(self, step: int) -> RankShare:
        """Return this rank's share of the global batch of a step."""
        if self.lease:
            start = (self.lease.batch(step) - 1) * self.batch_samples
            return self.share(*self.lease.part(start, start + self.batch_samples))
        start = self.position(step - 1)
        return self.share(start, start + self.batch_samples)

    def feed(self, after_step: int) -> Feed[DeviceBatch]:
        """Start to read this rank's samples of all steps after `after_step`, ahead of the loop."""

        last = self.steps
        if self._cut:
            last = self.lease.last_step if self.lease else after_step

        def ranges() -> Iterator[tuple[int, int]]:
            for step in range(after_step + 1, last + 1):
                share = self.share_of_step(step)
                yield share.start, share.stop

        return Feed(self.loader, ranges())

    def fetch(
        self, step: int, feed: Feed[DeviceBatch], clock: StepClock
    ) -> tuple[DeviceBatch, list[Microbatch], int]:
        """Take the next batch: samples, microbatches, and how many tokens count over all ranks."""
        with clock.part("fetch"):
            self.rank.pulse.at("fetch", step)
            samples = feed.next()
            micros = self.micros(samples)
        with clock.part("exchange"):
            counted = self.count(samples)
        return samples, counted.weigh(micros), counted.tokens

    def first_micro(self, step: int) -> list[Microbatch]:
        """Read the first microbatch of a step, without the feed."""
        share = self.share_of_step(step)
        return self.micros(self.loader.read(share.start, share.stop))[:1]

    def micros(self, samples: DeviceBatch, range_samples: int | None = None) -> list[Microbatch]:
        """Cut samples into microbatches. `range_samples` is the size of the global range that they
        come from; a global batch if not given."""
        self._report(samples.skipped)
        ranks, microbatch = self.rank.world.data_ranks, self.rank.layout.microbatch
        own = range_samples or self._samples_together()
        count = micro_count(own, ranks, microbatch)
        return self.poison.taint(samples.micros(count, microbatch))

    def _samples_together(self) -> int:
        """Return the samples that are cut into this rank's microbatches and those of others."""
        if self._cut is None:
            return self.batch_samples
        start, stop = self.lease.part(0, self.batch_samples) if self.lease else (0, 1)
        return stop - start

    @property
    def _tokens_together(self) -> int:
        """Tokens of a step of all ranks that take it together."""
        if self._cut:
            return self._samples_together() * (self.batch_tokens // self.batch_samples)
        world, samples = self.rank.world, self.batch_samples
        if not world.apart:
            return self.batch_tokens
        shards, ranks = world.size("shard"), world.data_ranks
        first = world.index("replicate") * shards
        start = rank_slice(0, samples, first, ranks)[0]
        stop = rank_slice(0, samples, first + shards - 1, ranks)[1]
        return (stop - start) * (self.batch_tokens // samples)

    def count(self, samples: DeviceBatch) -> Counted:
        """Count the tokens of the global batch in the loss: its sum is divided by them. For
        pairs, count the pairs. Replicas that take local steps count their own part.

        Ranks exchange it only where some tokens may not count.
        """
        if not self._masked:
            return Counted(self._tokens_together)
        counted = self._counted(samples, self.rank.world.sum_together_)
        if counted.skipped and not counted.tokens:
            raise RunFailed(
                'data.on_bad_shard = "skip": the data of a whole batch is damaged, so nothing is '
                f"left of it to train on. Look at `penstock data verify {self.stream.id}`, delete "
                "the dataset and build or copy it again, then give the same command."
            )
        return replace(counted, tokens=max(1, counted.tokens))

    def count_over_ranks(self, samples: DeviceBatch) -> Counted:
        """Count over all ranks, also where replicas take local steps."""
        return self._counted(samples, self.rank.world.sum_)

    def _counted(
        self, samples: DeviceBatch, add: Callable[[torch.Tensor], torch.Tensor]
    ) -> Counted:
        own = torch.tensor([samples.counted, len(samples.skipped), samples.chosen_tokens])
        return Counted(*(add(own) // self.rank.world.same_data_ranks).tolist())

    def audit(self, step: int) -> None:
        """Write down, for a drill, the samples that this rank's part of a step was made from."""
        if not self._audited:
            return
        rank, folder = self.rank, self.rank.folder.audit
        share = self.share_of_step(step)
        line: dict[str, float] = {
            "attempt": rank.journal.attempt,
            "step": self.lease.batch(step) if self.lease else step,
            "data_rank": self.seed_rank,
            "data_ranks": rank.world.data_ranks * (self._cut.parts if self._cut else 1),
        }
        line |= {"first": share.start, "stop": share.stop, "t": now()}
        with (folder / f"r{rank.journal.ranks[0]:05d}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _report(self, skipped: tuple[Skipped, ...]) -> None:
        """Record damaged data in the journal, once for each block."""
        for bad in skipped:
            key = (bad.dataset, bad.file, bad.block)
            if key not in self._reported:
                self._reported.add(key)
                self.rank.journal.write(
                    DataSkipped(
                        dataset=bad.dataset,
                        shard=bad.file,
                        block=bad.block,
                        samples=list(bad.samples),
                    )
                )


def open_batches(rank: RankContext) -> Batches:
    """Open the data of a run for one rank."""
    run, world = rank.run, rank.world
    stream = open_stream(run, open_planned(run, rank.folder.read_launch_record().dataset))
    meter = FeedMeter(rank.journal, world.lead, stream.sequence * world.data_ranks)
    return Batches(
        rank=rank,
        stream=stream,
        loader=DeviceLoader(stream, world.device, stream.pairs),
        steps=run.steps(stream.samples),
        batch_samples=run.batch_samples,
        batch_tokens=run.batch_tokens,
        meter=meter,
    )
