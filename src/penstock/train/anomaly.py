"""Anomalies of a step and of the replicas: what is checked, and what is done about it.

A bad step is not taken. Replicas that differ, and a spike, send the run back to the last
checkpoint; that happens once the step is over, so that its time is on record.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.guard.detect import bad_batch
from penstock.guard.detect.bad_batch import BadBatch
from penstock.guard.detect.fingerprints import fingerprints, gather_by_replica
from penstock.guard.detect.locate import WordLocation, locate_difference, values_at
from penstock.guard.detect.sentinels import Sentinels
from penstock.ledger.journal.events import RollbackSpan
from penstock.meter.clock import StepClock, now
from penstock.policy import divergence
from penstock.policy.checkpoint import interval_ends
from penstock.policy.rounds import Rounds
from penstock.train.batches import Batches
from penstock.train.engine import Engine
from penstock.train.parallel.microbatch import DeviceBatch
from penstock.train.parallel.parts import local_tensor
from penstock.train.progress import Progress
from penstock.train.rank_context import RankContext
from penstock.train.recovery import Recovery
from penstock.train.replay import Replay
from penstock.train.replicas.reduce import Vote
from penstock.train.replicas.rewind import Rewind

SHOWN = 5  # tensors that are named when replicas differ


@dataclass(frozen=True)
class BadStep:
    """A step that was not taken, for which the run goes back."""

    step: int
    go_before: int  # the checkpoint must be from before this step
    why: str
    finite: bool


@dataclass(frozen=True)
class Divergence:
    """Replicas that hold different weights, and the first place of a replica where they do."""

    verdict: divergence.DivergenceVerdict
    place: int


@dataclass
class AnomalyGuard:
    """Checks of every step: loss and gradient norm, equal replicas, replayed microbatches."""

    rank: RankContext
    engine: Engine
    batches: Batches
    sentinels: Sentinels
    recovery: Recovery
    rounds: Rounds  # replicas that take local steps are compared when a round ends
    compared_s: float = field(default_factory=now)  # when rank 0 last asked for it
    replayed_s: float = field(default_factory=now)
    _rewind_for: BadStep | Divergence | None = field(default=None, init=False)
    # The word at which replicas were last found to differ, and what each of them had there.
    _evidence: tuple[WordLocation, list[tuple[float, ...]]] | None = field(default=None, init=False)
    _refused: int = field(default=0, init=False)  # the last step that was not taken

    def __post_init__(self) -> None:
        self.world = self.rank.world
        self.replay = Replay(self.rank, self.batches, self.engine.stepper, self.sentinels)

    def accepts(self, step: int, vote: Vote, samples: DeviceBatch) -> bool:
        """Return whether weights may change by this step; every rank gives the same answer."""
        try:
            verdict = self.sentinels.judge(step, vote.loss, vote.grad_norm)
        except Exception:
            self._save_batch(step, vote, samples)
            raise
        if verdict.kind == "good":
            self._refused = 0
            return True
        self._refused = step
        if not verdict.known:
            self._save_batch(step, vote, samples)
        if verdict.kind == "rollback":
            self._rewind_for = BadStep(step, verdict.first, verdict.why, vote.good)
        return False

    def requests(self, step: int, since: int) -> dict[str, bool]:
        """Return which checks are due after `step`, or were after a step since `since`.

        One rank asks: it may depend on a clock, or on what only ranks remember that were there.
        """
        if self.world.size("replicate") == 1:
            return {}
        guard = self.rank.run.guard
        compare = (
            interval_ends(guard.compare, step, now() - self.compared_s, since)
            or step == self.sentinels.replicas.open_step  # to learn which replica was wrong there
        )
        # Streamed replicas never hold equal weights, which a replay needs.
        # Sites have other weights and other batches by the time of it.
        alike = self.rounds.parts == 1 and self.rank.run.sites is None
        replay = alike and interval_ends(guard.replay, step, now() - self.replayed_s, since)
        self.compared_s = now() if compare else self.compared_s
        self.replayed_s = now() if replay else self.replayed_s
        return {"compare": compare, "replay": replay}

    def check_weights(self, at: Progress, clock: StepClock) -> None:
        """Compare and replay after an update, where the vote of the step asked for it."""
        step, vote = at.step, at.pending
        assert vote is not None
        self.compare_if_due(step, vote, clock, last=step == self.batches.steps)
        if vote.requests["replay"]:
            with clock.part("compute"):
                self.replay.check(step, self.batches.position(step - 1))
        at.checked_step = step

    def compare_if_due(self, step: int, vote: Vote, clock: StepClock, last: bool = False) -> None:
        """Compare the replicas when it is due, before every save, and when a step was refused: the
        batch may be sound, and a weight may not."""
        asked = vote.requests
        saves = asked["save"] or asked["stop"] or (asked["stage"] and not asked["busy"]) or last
        wanted = asked["compare"] or saves or step == self._refused
        if wanted and self.world.size("replicate") > 1 and self._alike_after(step):
            self._compare(step, clock)

    def _alike_after(self, step: int) -> bool:
        """Return whether replicas hold the same after `step`: those of a site after every one."""
        return self.rank.run.sites is not None or self.rounds.ends(step)

    def compare_before_publishing(self, step: int, clock: StepClock) -> None:
        """Compare the ranks of a site, one of which publishes for all: the others' weights must be
        the same, or nothing goes to other sites.
        """
        if self.rank.run.sites and self.world.size("replicate") > 1:
            self._compare(step, clock)

    def _compare(self, step: int, clock: StepClock) -> None:
        tensors = self._held()
        with clock.part("compute"):
            own = fingerprints(tensors).sum(dim=0, keepdim=True)
        with clock.part("exchange"):
            found = gather_by_replica(own, self.world)
            verdict = self.sentinels.compare(step, [tuple(p for (p,) in each) for each in found])
        if verdict.kind == "rollback":
            place = next(i for i, at in enumerate(zip(*found, strict=True)) if len(set(at)) > 1)
            self._rewind_for = Divergence(verdict, place)
        elif verdict.replicas:
            self._name_faulty(verdict)

    @property
    def back_before(self) -> int:
        """Return the step that a bad step asks to go back before, or ranks of a site that differ;
        0 if none does.
        """
        cause = self._rewind_for
        if isinstance(cause, Divergence):
            return cause.verdict.step
        return cause.go_before if cause else 0

    def go_back(self, step: int, before: int) -> None:
        """Go back before a step, which another replica may have asked for."""
        if before and self._rewind_for is None:
            why = "a step of another replica was bad"
            self._rewind_for = BadStep(step, before, why, finite=True)

    def rewind_if_needed(self) -> None:
        """Load an earlier checkpoint and raise `Rewind`, if a check asked for it."""
        cause, self._rewind_for = self._rewind_for, None
        if isinstance(cause, BadStep):
            self._rewind_before(cause)
        elif isinstance(cause, Divergence):
            self._rewind_to_agreement(cause)

    def _rewind_before(self, bad: BadStep) -> None:
        step = self._load(bad.go_before)
        if step is not None:
            raise Rewind(step, f"step {bad.step}: {bad.why}")
        # Nothing is saved from before it. Its batch can be left out; but weights that give no
        # number on any batch will not get better.
        if not bad.finite:
            raise self.sentinels.refusal(bad.step, bad.why)

    def _load(self, before_step: int) -> int | None:
        start = now()
        step = self.recovery.rollback(before_step)
        self.sentinels.journal.write_span(RollbackSpan(before=before_step, to=step), start, now())
        return step

    def _rewind_to_agreement(self, found: Divergence) -> None:
        """Go back to what all replicas agreed on: every save was compared before it was made."""
        verdict = found.verdict
        spot, names = locate_difference(self._held(), found.place, self.world)
        self._evidence = spot, values_at(spot, self._held(), self.world)
        tensors = dict.fromkeys(name for part in self.world.gather(names) for name in part)
        step = self._load(verdict.step)
        self.sentinels.record_difference(verdict, list(tensors)[:SHOWN], step)
        if step is None:
            raise RuntimeError("replicas differ, and nothing is saved: the ranks begin again")
        raise Rewind(step, f"step {verdict.step}: replicas differ")

    def _name_faulty(self, verdict: divergence.DivergenceVerdict) -> None:
        """Find which replica was wrong, once steps were repeated and the replicas agree."""
        wrong, certain = verdict.replicas, verdict.certain
        if not certain and self._evidence:
            spot, had = self._evidence
            right = values_at(spot, self._held(), self.world)[0]
            far = divergence.farthest(had, right)
            wrong, certain = far or wrong, bool(far)
        self.sentinels.record_fault(verdict.step, wrong, certain)
        self._evidence = None

    def _held(self) -> dict[str, Tensor]:
        """Return all that an update changes. Not buffers: they may hold statistics of a replica's
        own samples. With local steps, only the tensors that the outer step changes on all
        replicas alike; in a site both, since its ranks take every step together."""
        optimizer, outer = self.engine.optimizer, self.engine.outer
        found: dict[str, Tensor] = {}
        if outer is not None:
            found = {"anchor": outer.anchor, "outer momentum": outer.velocity}
            if self.rank.run.sites and outer.owed is not None:
                found["owed"] = outer.owed
        if self.world.apart:
            return found
        found |= {name: local_tensor(p.detach()) for name, p in self.engine.parts.trained().items()}
        for name, own in optimizer.moments.items():
            found |= {f"{name}/{key}": local_tensor(tensor) for key, tensor in own.items()}
        return found

    def _save_batch(self, step: int, vote: Vote, samples: DeviceBatch) -> None:
        """Save the samples of a bad step for people. One of the ranks that read the same writes."""
        if any(self.world.index(d) for d in ("pipeline", "context", "tensor")):
            return
        stream = self.batches.stream
        about = {
            "loss": str(vote.loss),
            "grad_norm": str(vote.grad_norm),
            "dataset": stream.id,
            "sequence": stream.sequence,
        }
        first = self.batches.share_of_step(step).start
        batch = BadBatch(step, self.rank.journal.ranks[0], first, samples.tokens_ns.cpu().numpy())
        about = about if self.world.lead else {}
        with suppress(OSError):  # no room for a record is no reason to stop
            bad_batch.save_bad_batch(self.rank.folder.bad, batch, about, self._tokenizer.decode)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_json(self.batches.stream.dataset.tokenizer_json())
