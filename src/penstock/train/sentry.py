"""The sentinels' place in the loop: what they look at, and what is done by their verdicts.

A bad step is not taken. Replicas that differ, and a spike, send the run back to the last
checkpoint; that happens once the step is over, so that its time is on record.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from penstock.data.read.stream import Stream
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.guard.detect import bad_batch
from penstock.guard.detect.bad_batch import BadBatch
from penstock.guard.detect.fingerprints import fingerprints, gather_by_replica
from penstock.guard.detect.locate import WordLocation, locate_difference, values_at
from penstock.guard.detect.sentinels import Sentinels
from penstock.meter.clock import StepClock, now
from penstock.policy import differ
from penstock.run.schema.quantity import Every
from penstock.run.schema.run import Run
from penstock.train.engine import Engine
from penstock.train.keeper import Keeper
from penstock.train.parallel.batch import Loaded
from penstock.train.parallel.parts import local
from penstock.train.replicas.reduce import Vote
from penstock.train.replicas.rewind import Again
from penstock.train.world.world import World

SHOWN = 5  # tensors that are named when replicas differ


@dataclass
class Sentry:
    sentinels: Sentinels
    engine: Engine
    world: World
    stream: Stream
    keeper: Keeper
    run: Run
    rollback: Callable[[int], int | None]  # to the newest checkpoint from before a step
    compared_s: float = field(default_factory=now)  # when rank 0 last asked for it
    replayed_s: float = field(default_factory=now)
    _back: Callable[[], None] | None = field(default=None, init=False)  # what is to be done
    # The word at which replicas were last found to differ, and what each of them had there.
    _evidence: tuple[WordLocation, list[tuple[float, ...]]] | None = field(default=None, init=False)
    _refused: int = field(default=0, init=False)  # the last step that was not taken

    def accept(self, step: int, vote: Vote, samples: Loaded, first: int) -> bool:
        """Whether weights may change by this step, whose own samples begin at position `first`."""
        try:
            verdict = self.sentinels.judge(step, vote.loss, vote.grad_norm)
        except Exception:
            self._keep(step, vote, samples, first)
            raise
        if verdict.kind == "good":
            self._refused = 0
            return True
        self._refused = step
        if not verdict.known:
            self._keep(step, vote, samples, first)
        if verdict.kind == "rollback":
            self._back = lambda: self._go_back(verdict.first, step, verdict.why, vote.good)
        return False

    def took(self, step: int) -> bool:
        return step != self._refused

    def wishes(self, step: int) -> dict[str, bool]:
        """What is due after `step`. One rank asks: it may depend on a clock, or on what only those
        remember that were there."""
        if self.world.size("replicate") == 1:
            return {}
        guard = self.run.guard
        wishes = {
            "compare": due(guard.compare, step, self.compared_s)
            or step == self.sentinels.replicas.open_step,  # to learn who was wrong there
            "replay": due(guard.replay, step, self.replayed_s),
        }
        self.compared_s = now() if wishes["compare"] else self.compared_s
        self.replayed_s = now() if wishes["replay"] else self.replayed_s
        return wishes

    def look(self, step: int, vote: Vote, last: bool, clock: StepClock) -> None:
        """Compare the replicas if it is due, before every save, and when a step was refused: the
        batch may be sound, and a weight may not."""
        asked = vote.wishes
        saves = asked["save"] or asked["stop"] or (asked["stage"] and not asked["busy"]) or last
        wanted = asked["compare"] or saves or not self.took(step)
        if wanted and self.world.size("replicate") > 1:
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
            self._back = lambda: self._rejoin(verdict, place)
        elif verdict.replicas:
            self._name(verdict)

    def go_back(self) -> None:
        """Raises `Again`, if a verdict asked for it."""
        if self._back:
            back, self._back = self._back, None
            back()

    def _go_back(self, before_step: int, bad_step: int, why: str, finite: bool) -> None:
        step = self._load(before_step)
        if step is not None:
            raise Again(step, f"step {bad_step}: {why}")
        # Nothing is saved from before it. Its batch can be left out; but weights that give no
        # number on any batch will not get better.
        if not finite:
            raise self.sentinels.refusal(bad_step, why)

    def _load(self, before_step: int) -> int | None:
        start = now()
        step = self.rollback(before_step)
        self.sentinels.journal.span("rollback", start, now(), before=before_step, to=step)
        return step

    def _rejoin(self, verdict: differ.Verdict, place: int) -> None:
        """Back to what all replicas agreed on: every save was compared before it was made."""
        spot, names = locate_difference(self._held(), place, self.world)
        self._evidence = spot, values_at(spot, self._held(), self.world)
        tensors = dict.fromkeys(name for part in self.world.gather(names) for name in part)
        step = self._load(verdict.step)
        self.sentinels.tell_differing(verdict, list(tensors)[:SHOWN], step)
        if step is None:
            raise RuntimeError("replicas differ, and nothing is saved: the ranks begin again")
        raise Again(step, f"step {verdict.step}: replicas differ")

    def _name(self, verdict: differ.Verdict) -> None:
        """The steps have been done again, and the replicas agree: who was wrong before?"""
        wrong, certain = verdict.replicas, verdict.certain
        if not certain and self._evidence:
            spot, had = self._evidence
            right = values_at(spot, self._held(), self.world)[0]
            far = differ.farthest(had, right)
            wrong, certain = far or wrong, bool(far)
        self.sentinels.tell_fault(verdict.step, wrong, certain)
        self._evidence = None

    def _held(self) -> dict[str, Tensor]:
        """All that an update changes. Not buffers: statistics of a replica's own samples may lie
        in them."""
        optimizer = self.engine.optimizer
        found = {name: local(p.detach()) for name, p in self.engine.parts.trained().items()}
        for name, own in optimizer.moments.items():
            found |= {f"{name}/{key}": local(tensor) for key, tensor in own.items()}
        return found

    def _keep(self, step: int, vote: Vote, samples: Loaded, first: int) -> None:
        """The samples, for people. Of ranks that read the same ones, the first writes them."""
        if any(self.world.place(d) for d in ("pipeline", "context", "tensor")):
            return
        about = {
            "loss": str(vote.loss),
            "grad_norm": str(vote.grad_norm),
            "dataset": self.stream.id,
            "sequence": self.stream.sequence,
        }
        rank = self.sentinels.journal.ranks[0]
        batch = BadBatch(step, rank, first, samples.tokens_ns.cpu().numpy())
        about = about if self.sentinels.tells() else {}
        with suppress(OSError):  # no room for a record is no reason to stop
            bad_batch.save_bad_batch(self.keeper.folder.bad, batch, about, self._tokenizer.decode)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_json(self.stream.dataset.tokenizer_json())


def due(every: Every | str, step: int, last_s: float) -> bool:
    """Whether an interval of the run file ends with `step`."""
    if not isinstance(every, Every):
        return False  # never
    if every.steps is not None:
        return step % every.steps == 0
    return now() - last_s >= (every.seconds or 0.0)
