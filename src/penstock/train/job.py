"""Everything one rank needs to train, built once from the run folder."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Any

import torch

from penstock.data.read.batch import Skipped
from penstock.data.read.feed import Feed
from penstock.data.read.open import open_again, stream_of
from penstock.data.read.stream import Stream
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError, RunFailed
from penstock.guard.detect.pulse import Pulse
from penstock.guard.detect.sentinels import Sentinels
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import StepClock, now
from penstock.model.build import takes_targets
from penstock.plan.job.layout import Layout
from penstock.policy.best import words
from penstock.policy.restart import EARLY
from penstock.run.folder import RunFolder
from penstock.run.schema.code import own_codes
from penstock.run.schema.run import Run
from penstock.train.draws import draw_anew
from penstock.train.drilled import Poison, handlers
from penstock.train.engine import build as build_engine
from penstock.train.export.generate import continuation
from penstock.train.feeding import Feeding
from penstock.train.keeper import Keeper
from penstock.train.live import Live
from penstock.train.parallel.batch import Loaded, Loader, Micro, Share
from penstock.train.parallel.parts import Parts
from penstock.train.parallel.runner import Runner
from penstock.train.progress import Progress
from penstock.train.replay import Replay
from penstock.train.replicas.live_world import LiveWorld
from penstock.train.replicas.reduce import WISHES, Vote
from penstock.train.replicas.rewind import Again
from penstock.train.sentry import Sentry, due
from penstock.train.state import weights
from penstock.train.step import Stepper
from penstock.train.tracer import Tracer
from penstock.train.world.world import World

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
    sentry: Sentry
    replay: Replay
    tracer: Tracer
    feeding: Feeding
    pulse: Pulse
    steps: int
    peak_rate: float
    evaluated_s: float = field(default_factory=now)  # when the last validation ended
    poison: Poison = field(default_factory=Poison)  # of a drill
    audited: bool = False  # a drill wants to know which samples were used
    progress: Progress = field(default_factory=Progress)
    live: Live | None = None
    looked: int = 0  # the last step that the sentinels looked at
    known_bad: set[tuple[str, str, int]] = field(default_factory=set)  # dataset, file, block
    warm: bool = False
    untold: Callable[[], None] | None = None  # a point of the curve

    def share(self, start: int, stop: int) -> Share:
        return Share.of(
            start, stop, self.world.data_rank, self.world.data_ranks, self.layout.microbatch
        )

    def slice(self, step: int) -> Share:
        """This rank's samples of the global batch of a step."""
        start = self.keeper.position(step - 1)
        return self.share(start, start + self.run.batch_samples)

    def feed(self, after_step: int) -> Feed[Loaded]:
        """This rank's slices of every global batch that is still to come."""

        def ranges() -> Iterator[tuple[int, int]]:
            for step in range(after_step + 1, self.steps + 1):
                share = self.slice(step)
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
        counted, skipped = (both // self.world.ways).tolist()
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
        draw_anew(self.run.train.seed, step, self.world.data_rank)

    def begin(self) -> Progress:
        """Where the run goes on: after the newest good checkpoint, or where its replicas are."""
        at = self.progress
        if self.live:
            self.warm_up(0)  # before it is let in: nobody waits for it meanwhile
            self.live.come(self.first_due)
            if self.world.saves and at.step < self.steps:
                self.keeper.prepare()
                self.keeper.prepared()
        else:
            at.step, at.whole = self.keeper.resume(), True
            at.due = self.first_due(at.step)
        at.over = (at.step == self.steps or self.keeper.stops_early) and at.due is None
        self.looked = at.looked
        return at

    def first_due(self, step: int) -> Vote | None:
        """What is to be done before the first step: a look at where the loss begins.

        Later, an evaluation that a stop cut short: `patience` must count it.
        """
        every = self.run.evaluate.every
        if not self.stream.held_out or every == "never":
            return None
        best = self.keeper.best
        missed = best.last_step is not None and best.last_step < step
        if step and not (
            missed and self._tracks_best and (due(every, step, now()) or step == self.steps)
        ):
            return None
        return Vote(nan, nan, dict.fromkeys(WISHES, False) | {"evaluate": True})

    def warm_up(self, after_step: int) -> None:
        """On the batch that comes next: no other has to be fetched, or be whole, for it.

        On a CPU it would take as long as it saves: a run that goes on leaves it out.
        """
        if self.warm:
            return
        self.warm = True
        start = now()
        self.pulse.at("warm_up", after_step)
        if self.run.guard.mode != "live":  # there the replica that saves may be another later
            self.keeper.prepare()
        if self.world.cuda or after_step == 0:
            share = self.slice(after_step + 1)
            self.stepper.warm_up(self.micros(self.loader.read(share.start, share.stop))[:1])
        self.keeper.prepared()
        self.tracer.warm_up(self.steps - after_step)
        self.journal.span("warmup", start, now())

    def accept(self, step: int, vote: Vote, samples: Loaded) -> bool:
        """Whether weights may change by this step; every rank comes to the same answer."""
        return self.sentry.accept(step, vote, samples, self.slice(step).start)

    def passed(self, step: int, vote: Vote, rate: float) -> None:
        """The step is done, by an update or without one; on record before anything else happens."""
        self.progress.step, self.progress.due = step, vote
        if not self.sentry.took(step):
            return
        if self.audited:
            self.write_audit(step)
        self.untold = partial(
            self.journal.curve, step, vote.loss, vote.grad_norm, rate, self.keeper.tokens_at(step)
        )
        if self.world.lead:
            self.tell_curve()

    def tell_curve(self) -> None:
        """Puts the last step on the curve, if this rank has not."""
        if self.untold:
            self.untold()
        self.untold = None

    def look(self, clock: StepClock) -> None:
        """What the sentinels want to know once the weights have changed."""
        step, vote = self.progress.step, self.progress.due
        assert vote is not None
        self.sentry.look(step, vote, step == self.steps, clock)
        if vote.wishes["replay"]:
            with clock.part("compute"):
                self.replay.check(step, self.keeper.position(step - 1))
        self.looked = step

    def after(self) -> None:
        """What the vote asked for, once the step is taken."""
        step, vote = self.progress.step, self.progress.due
        assert vote is not None
        if self.looked < step:  # it was cut off by the loss of a peer
            self.look(StepClock(self.world.cuda))
        self.sentry.go_back()
        if vote.wishes["evaluate"] and (more := self.judged(step)):
            vote = replace(vote, wishes=vote.wishes | more)
            self.sentry.look(step, vote, False, StepClock(self.world.cuda))  # now it is saved
            self.sentry.go_back()
        self.tracer.asked = vote.wishes["trace"]
        over = step == self.steps or vote.wishes["stop"]
        self.keeper.after(step, vote, last=step == self.steps)
        if over:
            self.keeper.settle()
            self.world.together(step)
        self.progress.due, self.progress.over = None, over
        if self.live and vote.wishes["join"] and not over:
            self.live.let_in()

    @property
    def result(self) -> str:
        """How the run ended, as its rank says."""
        if self.progress.step == self.steps:
            return "done"
        return EARLY if self.keeper.stops_early else "stopped"

    def go_back(self, again: Again) -> None:
        """To where `again` says, or where the replicas that are left agree to be."""
        if self.live:
            before = self.progress.step
            self.live.go_back(again, self.stepper.take_back)
            if self.world.rank == 0 and self.progress.step == before:
                self.tell_curve()  # the one that leads may not have come to it
        else:
            self.progress.step, self.progress.due = again.step, None
        self.looked = self.progress.looked
        self.journal.event("went_back", step=self.progress.step, why=again.why)

    def write_audit(self, step: int) -> None:
        """For a drill: the samples that this rank's part of the step was made from."""
        share = self.slice(step)
        line: dict[str, float] = {
            "attempt": self.journal.attempt,
            "step": step,
            "data_rank": self.world.data_rank,
            "data_ranks": self.world.data_ranks,
        }
        line |= {"first": share.start, "stop": share.stop, "t": now()}
        with (self.keeper.folder.audit / f"r{self.journal.ranks[0]:05d}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def wishes(self, step: int) -> dict[str, bool]:
        """What is due after `step`. Rank 0 asks, and the vote tells the others."""
        if not self.world.lead:
            return self.keeper.own_wishes()
        wishes = self.keeper.wishes(step) | self.sentry.wishes(step)
        wishes["join"] = self.live is not None and self.live.comes()
        wishes["trace"] = self.tracer.due(step + 1)
        every = self.run.evaluate.every
        if every == "never" or not self.stream.held_out:
            return wishes
        return wishes | {"evaluate": due(every, step, self.evaluated_s) or step == self.steps}

    @property
    def _tracks_best(self) -> bool:
        section = self.run.evaluate
        return bool(section.keep_best) or section.patience is not None

    def judged(self, step: int) -> dict[str, bool]:
        """Evaluate, and return what follows from it: a save of the best so far, or a stop."""
        if not self.evaluate(step):
            return {"stop": True}
        keeper, section = self.keeper, self.run.evaluate
        if step < self.steps and keeper.stops_early:
            assert section.patience is not None
            if self.world.lead:
                why = words(keeper.best, section.patience)
                self.journal.event("stopped_early", step=step, why=why)
            return {"stop": True}
        # The first evaluation comes before the first step: there is nothing to save yet.
        return {"save": True} if step and section.keep_best and keeper.best.improved else {}

    def evaluate(self, step: int) -> bool:
        """The loss on held-out samples; false when it was cut short because the run is to stop."""
        start = now()
        self.pulse.at("evaluate", step)
        count = min(self.stream.held_out, max(1, self.run.evaluate.tokens // self.stream.sequence))
        share = self.share(0, count)
        held_out = self.stream.read_held_out(share.start, share.stop, of=count)
        samples = self.loader.load(held_out)
        tokens = count * self.stream.sequence
        if self.stream.masked:
            tokens, _ = self.counting(samples)
        total = self.runner.evaluate(self.micros(samples, count), self.goes_on)
        if total is None:
            self.journal.span("evaluate", start, now())
            return False
        loss = self.world.sum_(total).item() / tokens if tokens else nan  # all of it is damaged
        self.evaluated_s = now()
        self.keeper.evaluated(step, loss)
        self.journal.span("evaluate", start, now(), step=step, val_loss=loss, samples=count)
        return True

    def goes_on(self) -> bool:
        """Asked between the microbatches of an evaluation, which may be longer than a notice of
        preemption leaves: whether nobody wants the run to stop. Every rank gets the same answer."""
        self.pulse.beat()
        asked = self.world.lead and self.keeper.folder.wishes()["stop"]
        return not self.world.sum_(torch.tensor([int(asked)])).item()

    def write_sample(self) -> None:
        """A few lines that the model writes, from the beginning of a held-out (or first) sample."""
        if takes_targets(self.parts.modules[0]):
            return  # it gives a loss, not what comes next
        start = now()
        self.pulse.at("evaluate", self.steps)
        # Of rank 0, whose disk may be another than ours: ranks go on together or not at all.
        prompt, problem = self.world.broadcast(self._prompt())
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
            said: dict[str, Any] = {"prompt": decode(prompt), "sample": decode(tokens)}
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
    loader = Loader(stream, world.device)
    sentinels = Sentinels(run.guard.on_spike, journal, lambda: world.lead, own_codes(run))
    keeper = Keeper(folder, run, layout, world, journal, stream, engine, pulse, sentinels)
    engine.stepper.pulse, engine.stepper.before_update = pulse, keeper.before_update
    poison, progress = Poison(), Progress()
    live = None
    if isinstance(world, LiveWorld):
        live = Live(world, engine, keeper, journal, pulse, progress)
    rollback = live.rollback if live else keeper.rollback
    if pulse.traps:
        pulse.traps.handlers |= handlers(
            poison,
            lambda: weights(engine.parts, engine.optimizer),
            lambda: next(iter(engine.parts.trained().values())),
        )
    return Job(
        run=run,
        world=world,
        layout=layout,
        journal=journal,
        stream=stream,
        loader=loader,
        parts=engine.parts,
        runner=engine.runner,
        stepper=engine.stepper,
        keeper=keeper,
        sentry=Sentry(sentinels, engine, world, stream, keeper, run, rollback),
        replay=Replay(run, layout, world, loader, engine.stepper, sentinels),
        tracer=Tracer(folder.traces, journal, world, run.log.trace),
        feeding=Feeding(journal, world.lead, stream.sequence * world.data_ranks),
        pulse=pulse,
        poison=poison,
        progress=progress,
        live=live,
        audited=folder.audit.is_dir(),
        steps=run.steps(stream.samples),
        peak_rate=run.learning_rate,
    )
