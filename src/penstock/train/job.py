"""Everything one rank needs to train, built once from the run folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan
from typing import cast

import torch
from xxhash import xxh3_64_intdigest

from penstock.data.feed import Feed
from penstock.data.stream import Stream
from penstock.data.stream_batch import Skipped
from penstock.data.stream_open import open_again, stream_of
from penstock.data.tokenizer import Tokenizer
from penstock.errors import PenstockError, RunFailed
from penstock.guard.pulse import Pulse
from penstock.ledger.journal import Journal
from penstock.meter.clock import now
from penstock.model.build import takes_targets
from penstock.plan.layout import Layout
from penstock.run.file import Run
from penstock.run.folder import RunFolder
from penstock.train.again import Again
from penstock.train.batch import Loaded, Loader, Micro, Share
from penstock.train.drilled import Poison, handlers
from penstock.train.engine import build as build_engine
from penstock.train.generate import continuation
from penstock.train.keeper import Keeper
from penstock.train.parts import Parts
from penstock.train.replicas import Vote
from penstock.train.runner import Runner
from penstock.train.state import weights
from penstock.train.step import Stepper
from penstock.train.world import World

SAMPLE_TOKENS = 64  # written at the end of a run, so that a person can look at what the model says
PROMPT_TOKENS = 24


@dataclass
class Job:
    run: Run
    world: World
    layout: Layout
    journal: Journal
    stream: Stream
    loader: Loader
    parts: Parts
    runner: Runner
    stepper: Stepper
    keeper: Keeper
    pulse: Pulse
    steps: int
    peak_rate: float
    evaluated_s: float = field(default_factory=now)  # when the last validation ended
    poison: Poison = field(default_factory=Poison)  # of a drill
    audited: bool = False  # a drill wants to know which samples were used
    known_bad: set[tuple[str, str, int]] = field(default_factory=set)  # dataset, file, block

    def share(self, start: int, stop: int) -> Share:
        return Share.of(
            start, stop, self.world.data_rank, self.world.data_ranks, self.layout.microbatch
        )

    def feed(self, after_step: int) -> Feed[Loaded]:
        """This rank's slices of every global batch that is still to come."""

        def ranges() -> Iterator[tuple[int, int]]:
            for step in range(after_step, self.steps):
                start = self.keeper.position(step)
                share = self.share(start, start + self.run.batch_samples)
                yield share.start, share.stop

        return Feed(self.loader, ranges())

    def micros(self, samples: Loaded, of: int | None = None) -> list[Micro]:
        """A rank's samples in microbatches; `of` is the size of the global range they are from."""
        self.tell(samples.skipped)
        count = self.share(0, of or self.run.batch_samples).micros
        return self.poison.taint(samples.micros(count, self.layout.microbatch))

    def counted(self, samples: Loaded) -> int:
        """Tokens of the global batch that count in the loss: what its sum is divided by.

        Only where some may not count do the ranks have to agree on it.
        """
        if not self.stream.masked:
            return self.run.batch_tokens
        counted, skipped = self.counting(samples)
        if skipped and not counted:
            raise RunFailed(
                'data.on_bad_shard = "skip": the data of a whole batch is damaged, so nothing is '
                f"left of it to train on. Look at `penstock data verify {self.stream.id}`, delete "
                "the dataset and build or copy it again, then give the same command."
            )
        return max(1, counted)

    def counting(self, samples: Loaded) -> tuple[int, int]:
        """Tokens of all ranks together that count, and how often damaged data was met."""
        both = self.world.sum_(torch.tensor([samples.counted, len(samples.skipped)]))
        ways = self.world.ranks // self.world.data_ranks  # ranks that read the same samples
        counted, skipped = (both // ways).tolist()
        return int(counted), int(skipped)

    def tell(self, skipped: tuple[Skipped, ...]) -> None:
        """Put damaged data on record, once for each block."""
        for bad in skipped:
            key = (bad.dataset, bad.file, bad.block)
            if key not in self.known_bad:
                self.known_bad.add(key)
                self.journal.event(
                    "data_skipped",
                    dataset=bad.dataset,
                    shard=bad.file,
                    block=bad.block,
                    samples=list(bad.samples),
                )

    def reseed(self, step: int) -> None:
        """What a module draws in a step (dropout) follows from (seed, step, data rank) alone."""
        drawn = f"{self.run.train.seed}:{step}:{self.world.data_rank}".encode()
        torch.manual_seed(xxh3_64_intdigest(drawn) >> 1)

    def warm_up(self, after_step: int) -> None:
        """On the batch that comes next: no other has to be fetched, or be whole, for it."""
        start = now()
        self.pulse.at("warm_up", after_step)
        first = self.keeper.position(after_step)
        share = self.share(first, first + self.run.batch_samples)
        before = [b.clone() for b in self.parts.buffers()]
        self.stepper.warm_up(self.micros(self.loader.read(share.start, share.stop))[:1])
        for buffer, value in zip(self.parts.buffers(), before, strict=True):
            buffer.copy_(value)  # running statistics must not see the warm-up
        self.journal.span("warmup", start, now())

    def accept(self, step: int, vote: Vote, samples: Loaded) -> bool:
        """Whether weights may change by this step; every rank comes to the same answer."""
        self.keeper.refuse_bad(step, vote)
        return True

    def after(self, step: int, vote: Vote) -> bool:
        """What the vote asked for, once the step is taken. Whether to stop now."""
        if vote.wishes["evaluate"]:
            self.evaluate(step)
        self.keeper.after(step, vote, last=step == self.steps)
        return vote.wishes["stop"]

    def went_back(self, again: Again) -> None:
        self.journal.event("went_back", step=again.step, why=again.why)

    def record(self, step: int, vote: Vote, rate: float, spent: dict[str, float]) -> None:
        self.journal.step(step, **spent)
        if self.audited:
            self.write_audit(step)
        if self.world.rank == 0:
            self.journal.curve(step, vote.loss, vote.grad_norm, rate, self.keeper.tokens_at(step))

    def write_audit(self, step: int) -> None:
        """For a drill: the samples that this rank's part of the step was made from."""
        start = self.keeper.position(step - 1)
        share = self.share(start, start + self.run.batch_samples)
        line: dict[str, float] = {
            "attempt": self.journal.attempt,
            "step": step,
            "data_rank": self.world.data_rank,
        }
        line |= {"first": share.start, "stop": share.stop, "t": now()}
        with (self.keeper.folder.audit / f"r{self.journal.ranks[0]:05d}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def wishes(self, step: int) -> dict[str, bool]:
        """What is due after `step`. Rank 0 asks, and the vote tells the others."""
        if self.world.rank != 0:
            return self.keeper.own_wishes()
        every = self.run.evaluate.every
        if every == "never" or not self.stream.held_out:
            return self.keeper.wishes(step)
        if every.steps is not None:
            due = step % every.steps == 0
        else:
            due = now() - self.evaluated_s >= (every.seconds or 0.0)
        return self.keeper.wishes(step) | {"evaluate": due or step == self.steps}

    def evaluate(self, step: int) -> None:
        """The loss on held-out samples."""
        start = now()
        self.pulse.at("evaluate", step)
        count = min(self.stream.held_out, max(1, self.run.evaluate.tokens // self.stream.sequence))
        share = self.share(0, count)
        held_out = self.stream.read_held_out(share.start, share.stop, of=count)
        samples = self.loader.load(held_out)
        tokens = count * self.stream.sequence
        if self.stream.masked:
            tokens, _ = self.counting(samples)
        total = self.runner.evaluate(self.micros(samples, count))
        loss = self.world.sum_(total).item() / tokens if tokens else nan  # all of it is damaged
        self.evaluated_s = now()
        self.journal.span("evaluate", start, now(), step=step, val_loss=loss, samples=count)

    def write_sample(self) -> None:
        """A few lines that the model writes, from the beginning of a held-out (or first) sample."""
        if takes_targets(self.parts.modules[0]):
            return  # it gives a loss, not what comes next
        start = now()
        # Of rank 0, whose disk may be another than ours: ranks go on together or not at all.
        prompt, problem = cast(tuple[list[int], str], self.world.broadcast(self._prompt()))
        try:
            if problem:
                raise PenstockError(problem)
            self.parts.train(False)
            tokens = continuation(
                self.runner.logits,
                prompt,
                SAMPLE_TOKENS,
                self.stream.sequence,
                self.run.train.seed,
                device=self.world.device,
                multiple=2 * self.layout.context * self.layout.tensor,
            )
            self.parts.train()
            decode = Tokenizer.from_json(self.stream.dataset.tokenizer_json()).decode
            said = {"prompt": decode(prompt), "sample": decode(tokens)}
        except Exception as error:  # a look at the model must not fail a run that is done
            self.journal.event("sample_failed", error=f"{type(error).__name__}: {error}")
            return
        self.journal.span("evaluate", start, now(), **said)

    def _prompt(self) -> tuple[list[int], str]:
        """The beginning of the first sample, or why there is none."""
        read = self.stream.read_held_out if self.stream.held_out else self.stream.read
        try:
            first = read(0, 1)
        except PenstockError as error:
            return [], str(error)
        prompt = first.tokens[0, :PROMPT_TOKENS].tolist()
        return prompt, f"{first.skipped[0].file} is damaged" if first.skipped else ""


def build(
    folder: RunFolder, run: Run, layout: Layout, world: World, journal: Journal, pulse: Pulse
) -> Job:
    stream = stream_of(run, open_again(run, folder.read_plan()))
    engine = build_engine(run, layout, stream.vocab, world)
    keeper = Keeper(folder, run, layout, world, journal, stream, engine, pulse)
    engine.stepper.pulse, engine.stepper.before_update = pulse, keeper.before_update
    poison = Poison()
    if pulse.traps:
        pulse.traps.handlers |= handlers(poison, lambda: weights(engine.parts, engine.optimizer))
    return Job(
        run=run,
        world=world,
        layout=layout,
        journal=journal,
        stream=stream,
        loader=Loader(stream, world.device),
        parts=engine.parts,
        runner=engine.runner,
        stepper=engine.stepper,
        keeper=keeper,
        pulse=pulse,
        poison=poison,
        audited=folder.audit.is_dir(),
        steps=run.steps(stream.samples),
        peak_rate=run.learning_rate,
    )
