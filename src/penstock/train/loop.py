"""The training loop of one rank. It builds its parts, then repeats one step; each part is a file.

A step reads: fetch, forward and backward, reduce, vote, judge, update, agree, record, save if due.
"""

from dataclasses import dataclass, replace

from penstock.data.read.feed import Feed
from penstock.guard.detect.sentinels import Sentinels
from penstock.ledger.journal.events import PairsRewarded, RankReady, RankWentBack, WarmUpSpan
from penstock.ledger.journal.writer import Journal
from penstock.meter.clock import StepClock, now
from penstock.policy.restart import EARLY
from penstock.policy.rounds import Rounds
from penstock.run.schema.code import user_codes
from penstock.train.anomaly import AnomalyGuard
from penstock.train.batches import Batches, open_batches
from penstock.train.drill_faults import arm_drill_faults
from penstock.train.engine import Engine, build_engine
from penstock.train.evaluate import Evaluator, rewards_of
from penstock.train.live import LiveRecovery
from penstock.train.local_steps import LocalSteps
from penstock.train.parallel.microbatch import DeviceBatch
from penstock.train.progress import Progress
from penstock.train.rank_context import RankContext
from penstock.train.recovery import Recovery
from penstock.train.reference import load_or_compute_reference
from penstock.train.replicas.reduce import Vote
from penstock.train.replicas.rewind import Rewind
from penstock.train.replicas.rounds import RoundExchange
from penstock.train.saving import CheckpointSaver
from penstock.train.site_rounds import SiteRounds
from penstock.train.state import TrainingState
from penstock.train.step import LearningRate, seed_step
from penstock.train.task_scores import TaskEvaluator
from penstock.train.tracer import Tracer
from penstock.train.world.world import World


@dataclass
class LossCurve:
    """The points of the loss curve, one per step that changed the weights.

    One rank writes them. All others remember the last point: in live mode the rank that writes may
    be lost before it has written it.
    """

    journal: Journal
    world: World
    _last: tuple[int, float, float, float, int] | None = None

    def add(self, step: int, vote: Vote, rate: float, tokens: int) -> None:
        """Add the point of a step; `tokens` is how many the run has trained on."""
        self._last = step, vote.loss, vote.grad_norm, rate, tokens
        if self.world.lead:
            self.flush()

    def flush(self) -> None:
        """Write the last point, if this rank has not."""
        if self._last:
            self.journal.curve(*self._last)
        self._last = None


class EveryStep:
    """Replicas that agree in every step: its vote was all of it. The other way is `LocalSteps`."""

    back_before = 0  # a step that is refused is refused by all of them

    def begin_step(self, at: Progress) -> bool:
        """Return whether the next step needs another feed than those before it."""
        return False

    def ends(self, step: int) -> bool:
        """Return whether all replicas agree after `step`."""
        return True

    def before(self, step: int) -> int:
        """Return the last step after which all replicas agreed, before `step`."""
        return step - 1

    def close(self, step: int, vote: Vote, tokens: int, back_before: int, clock: StepClock) -> Vote:
        """Return what all ranks do after `step`."""
        return vote


@dataclass
class Trainer:
    """All parts of a rank that trains, and the order in which a step uses them."""

    rank: RankContext
    batches: Batches
    engine: Engine
    state: TrainingState
    saver: CheckpointSaver
    evaluator: Evaluator
    progress: Progress
    recovery: Recovery
    anomalies: AnomalyGuard
    tracer: Tracer
    curve: LossCurve
    learning_rate: LearningRate
    agreement: EveryStep | LocalSteps | SiteRounds
    live: bool  # replicas come and go
    warm: bool = False

    def fit(self) -> str:
        """Train from the newest good checkpoint to the end. Return how the run ended."""
        at, clock = self.progress, StepClock(self.rank.world.cuda)
        self.resume()
        feed = self.batches.feed(after_step=at.step)
        self.warm_up(after_step=at.step)
        self.rank.pulse.at("ready", at.step)
        self.rank.journal.write(RankReady(step=at.step))

        while not at.finished:
            try:
                # A vote is pending at the start (the first evaluation) and after a rewind that cut
                # its step's end off: then only the end of the step is done.
                if at.pending is None and self.agreement.begin_step(at):
                    feed.close()
                    feed = self.batches.feed(after_step=at.step)
                if at.pending is None:
                    with self.tracer.trace_if_requested(at.step + 1, clock):
                        self.train_step(at.step + 1, feed, clock)
                    self.batches.meter.record(feed)
                self.finish_step()
            except Rewind as rewind:  # a peer was lost or came, or the guard took steps back
                self.rewind(rewind)
                feed.close()
                feed = self.batches.feed(after_step=at.step)

        feed.close()
        self.tracer.close()
        self.saver.finish()
        if at.step == self.batches.steps:
            self.evaluator.write_sample()
            return "done"
        return EARLY if self.state.stops_early else "stopped"

    def train_step(self, step: int, feed: Feed[DeviceBatch], clock: StepClock) -> None:
        """Do one optimizer step and record it."""
        run, stepper = self.rank.run, self.engine.stepper
        clock.begin()
        seed_step(run.train.seed, step, self.batches.seed_rank)
        samples, micros, tokens = self.batches.fetch(step, feed, clock)
        loss, grads = stepper.forward_backward(micros, tokens, clock)
        summed = stepper.reduce(grads, clock)
        asked = self.requests(step) if self.agreement.ends(step) else {}
        vote = stepper.vote(loss, summed, asked, clock)
        rate = self.learning_rate.at(self.batches.scheduled(step) - 1)
        accepted = self.anomalies.accepts(step, vote, samples)
        self.saver.wait_until_copied(clock)
        if accepted:
            stepper.update(summed, vote.grad_norm, rate, clock)
            self.batches.audit(step)  # before a site takes its next lease
        else:
            stepper.discard()
        if self.agreement.ends(step):
            self.anomalies.compare_before_publishing(step, clock)
        taken, back_before = tokens if accepted else 0, self.anomalies.back_before
        vote = self.agreement.close(step, vote, taken, back_before, clock)
        self.anomalies.go_back(step, self.agreement.back_before)
        self.record(step, vote, rate, accepted)
        self.anomalies.check_weights(self.progress, clock)
        self.rank.journal.step(step, **clock.settle())

    def record(self, step: int, vote: Vote, rate: float, accepted: bool) -> None:
        """Record that a step is passed, before anything else happens."""
        self.progress.step, self.progress.pending = step, vote
        if accepted:
            self.curve.add(step, vote, rate, self.batches.tokens_at(step))
            if vote.figures and self.rank.world.lead:
                rewards = PairsRewarded(step=step, **rewards_of(vote.figures))
                self.rank.journal.write(rewards, synced=False)

    def finish_step(self) -> None:
        """Do what the vote of the last step asked for: evaluate, save, stop, let a replica in."""
        at, world = self.progress, self.rank.world
        step, vote = at.step, at.pending
        assert vote is not None
        if at.checked_step < step:  # the loss of a peer cut the check off
            self.anomalies.check_weights(at, StepClock(world.cuda))
        if self.agreement.ends(step):
            self.anomalies.rewind_if_needed()
        if vote.requests["evaluate"] and (more := self.evaluator.run(step)):
            vote = replace(vote, requests=vote.requests | more)
            self.anomalies.compare_if_due(step, vote, StepClock(world.cuda))  # now it is saved
            self.anomalies.rewind_if_needed()
        tasks = self.evaluator.tasks
        if tasks and (vote.requests["tasks"] or self.evaluator.tasks_at_early_end()):
            vote = replace(vote, requests=vote.requests | tasks.run(step))
        self.tracer.requested = vote.requests["trace"]
        last = step == self.batches.steps
        self.saver.save_if_due(step, vote, last)
        if last or vote.requests["stop"]:
            self.saver.finish()
            world.finish_together(step)
            at.finished = True
        at.pending = None
        if vote.requests["join"] and not at.finished:
            self.recovery.admit_replica()

    def requests(self, step: int) -> dict[str, bool]:
        """Return what is due after `step`. Rank 0 asks, and the vote tells the others."""
        if not self.rank.world.lead:
            return self.saver.own_requests()
        since = self.agreement.before(step)
        return (
            self.saver.requests(step)
            | self.anomalies.requests(step, since)
            | self.evaluator.requests(step, since)
            | {"join": self.live and self.recovery.replica_waits()}
            | {"trace": self.tracer.due(step + 1)}
        )

    def resume(self) -> None:
        """Go to where the run continues: the newest good checkpoint, or where its replicas are."""
        at = self.progress
        if self.live:
            self.warm_up(0)  # before it joins: nobody waits for it meanwhile
        self.recovery.begin(self.batches.steps)
        done = at.step == self.batches.steps or self.state.stops_early
        at.finished = done and at.pending is None
        at.reset_checked()

    def warm_up(self, after_step: int) -> None:
        """Run the first kernels on the next batch: no other has to be fetched, or be whole, for it.

        On a CPU it would take as long as it saves, so a resumed run leaves it out.
        """
        if self.warm:
            return
        self.warm = True
        start, rank = now(), self.rank
        rank.pulse.at("warm_up", after_step)
        self.tracer.begin_warm_up(self.batches.steps - after_step)
        if not self.live:  # there the replica that saves may be another later
            self.saver.prepare()
        if rank.world.cuda or after_step == 0:
            self.engine.stepper.warm_up(self.batches.first_micro(after_step + 1))
        stepped = now()
        self.saver.wait_prepared()
        prepared = now()
        self.tracer.wait_warm()
        end = now()
        parts = {"kernels": stepped - start, "saver": prepared - stepped, "tracer": end - prepared}
        rank.journal.write_span(WarmUpSpan(parts=parts), start, end)

    def rewind(self, rewind: Rewind) -> None:
        """Go back to the step that `rewind` names, or that the remaining replicas agree on."""
        before, at = self.progress.step, self.progress
        self.recovery.rewind(rewind)
        if self.rank.world.rank == 0 and at.step == before:
            self.curve.flush()  # the rank that led may have died before it wrote this step
        at.reset_checked()
        self.rank.journal.write(RankWentBack(step=at.step, why=rewind.why))


def build(rank: RankContext) -> Trainer:
    """Build the parts of a rank, in the order in which they need each other."""
    batches = open_batches(rank)
    engine = build_engine(rank.run, rank.layout, batches.stream.vocab, rank.world, rank.pulse)
    if rank.run.train.has_reference and not rank.run.model.adapter:
        batches.loader.reference = load_or_compute_reference(rank, engine, batches)
    sentinels = Sentinels(
        rank.run.guard.on_spike,
        rank.journal,
        rank.leads,
        user_codes(rank.run),
        writes_steps=rank.leads_steps,
    )
    sync = rank.run.train.sync
    steps = batches.steps
    rounds = Rounds(steps, sync.inner_steps, sync.stream)
    exchange: RoundExchange | SiteRounds | None = None
    if engine.outer and rank.run.sites:
        exchange = SiteRounds(rank, batches, engine.outer, engine.optimizer, engine.parts)
    elif engine.outer:
        exchange = RoundExchange(rounds, engine.outer)
    state = TrainingState(rank, engine, batches, sentinels, exchange)
    saver = CheckpointSaver(rank, state)
    tasks = (
        TaskEvaluator(rank, engine, batches.steps, batches.stream.vocab)
        if rank.run.evaluate.tasks
        else None
    )
    evaluator = Evaluator(rank, engine, batches, state, tasks, rounds)
    progress = Progress()
    live = rank.run.guard.mode == "live"
    recovery = (LiveRecovery if live else Recovery)(rank, state, saver, evaluator, progress)
    anomalies = AnomalyGuard(rank, engine, batches, sentinels, recovery, rounds)
    agreement: EveryStep | LocalSteps | SiteRounds = EveryStep()
    if isinstance(exchange, SiteRounds):
        agreement, exchange.save_due = exchange, saver.due_by_number
    elif exchange:
        agreement = LocalSteps(rounds, exchange, engine.optimizer, rank, saver.due_by_number)
    tracer = Tracer(rank.folder.traces, rank.journal, rank.world, rank.run.log.trace)
    curve = LossCurve(rank.journal, rank.world)
    arm_drill_faults(rank.pulse, batches, engine)
    return Trainer(
        rank=rank,
        batches=batches,
        engine=engine,
        state=state,
        saver=saver,
        evaluator=evaluator,
        progress=progress,
        recovery=recovery,
        anomalies=anomalies,
        tracer=tracer,
        curve=curve,
        learning_rate=LearningRate.of(rank.run.train, rank.run.learning_rate, steps),
        agreement=agreement,
        live=live,
    )
