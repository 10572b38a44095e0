"""Sentinels over every step: they apply the policies' decisions and journal them.

Every rank keeps the same state and reaches the same verdict, because all of them look at numbers
that they have agreed on. The loop decides what then happens to the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import RunFailed
from penstock.ledger.journal.events import (
    BatchSkipped,
    JournalEvent,
    ReplayDiffers,
    ReplicaAtFault,
    ReplicasDiffer,
    SpikeFound,
)
from penstock.ledger.journal.writer import Journal
from penstock.policy import divergence, spike
from penstock.run.schema.code import UserCode


@dataclass
class Sentinels:
    """The checks of one run, with their state."""

    on_spike: spike.OnSpike
    journal: Journal
    is_writer: Callable[[], bool]  # whether this rank is the one that writes down what all decided
    user_code: Sequence[
        UserCode
    ] = ()  # the user's own code, which may be what computes such numbers
    # The same of what the ranks of one replica decided alone, between agreements; None: as above.
    writes_steps: Callable[[], bool] | None = None
    spikes: spike.SpikeState = field(default_factory=spike.SpikeState)
    replicas: divergence.DivergenceState = field(default_factory=divergence.DivergenceState)

    def judge(self, step: int, loss: float, norm: float) -> spike.SpikeVerdict:
        """Decide whether weights may change in `step`; raises RunFailed if the run must stop."""
        self.spikes, verdict = spike.decide(self.spikes, step, loss, norm, self.on_spike)
        if verdict.kind == "stop":
            raise self.refusal(step, verdict.why)
        if verdict.kind != "good":
            numbers = {"loss": str(loss), "grad_norm": str(norm)}  # JSON has no word for NaN
            kind = BatchSkipped if verdict.kind == "skip" else SpikeFound
            if (self.writes_steps or self.is_writer)():
                self.journal.write(kind(step=step, why=verdict.why, **numbers))
        return verdict

    def refusal(self, step: int, why: str) -> RunFailed:
        """Return the error to raise when the run cannot go on."""
        first = ""
        if self.user_code:  # the loss is the last to compute, so it is named first
            named = " and ".join(code.words for code in reversed(self.user_code))
            first = (
                f"It was computed by your own code: look at {named} first, for a division by 0, a "
                "logarithm or root of 0, or numbers that grow. If that code is right: lower "
                "train.learning_rate, "
            )
        return RunFailed(
            f"step {step}: {why}: the step was not taken. {first or 'Lower train.learning_rate, '}"
            "or look at the batch under bad/ in the run's folder; guard.on_spike says what is "
            f"done with such steps (it is {self.on_spike!r})."
        )

    def compare(
        self, step: int, prints: Sequence[divergence.Prints]
    ) -> divergence.DivergenceVerdict:
        """Decide whether all replicas hold the same weights after `step`."""
        self.replicas, verdict = divergence.decide(self.replicas, step, prints)
        if verdict.kind != "agree":  # what made the step look bad was a weight, not the batch
            self.spikes = self.spikes.forgiving(step)
        if verdict.kind == "stop":
            raise RunFailed(
                f"step {step}: replicas {_listed(verdict.replicas)} do not hold the same weights, "
                f"and did not {divergence.LIMIT} times before when the steps were done again. One "
                "of "
                "their accelerators or hosts computes wrongly: take it out of the run."
            )
        return verdict

    def record_fault(self, step: int, replicas: Sequence[int], certain: bool) -> None:
        self._record(ReplicaAtFault(step=step, replicas=list(replicas), certain=certain))

    def record_difference(
        self, verdict: divergence.DivergenceVerdict, tensors: Sequence[str], back_to: int | None
    ) -> None:
        self._record(
            ReplicasDiffer(
                step=verdict.step,
                replicas=list(verdict.replicas),
                certain=verdict.certain,
                tensors=list(tensors),
                back_to=back_to,
            )
        )

    def record_replay(
        self, step: int, pairs: Sequence[tuple[int, int]], wrong: Sequence[int]
    ) -> None:
        event = ReplayDiffers(step=step, pairs=[list(p) for p in pairs], replicas=[*wrong])
        self._record(event)

    def to_json(self) -> dict[str, Any]:
        """Return the state that goes into a checkpoint."""
        return self.spikes.to_json()

    def restore(self, saved: dict[str, Any] | None, upto: int | None = None) -> None:
        """Restore the state from a checkpoint. Steps that this process has seen since are kept.

        If the run file changed, skipped steps are known only `upto` the checkpoint's step: later
        ones may have other batches.
        """
        found = spike.SpikeState.from_json(saved) if saved else spike.SpikeState()
        if upto is not None:
            found = found.forgiving(*(step for step in found.skips if step > upto))
        self.spikes = found.knowing(self.spikes)

    def _record(self, event: JournalEvent) -> None:
        if self.is_writer():
            self.journal.write(event)


def _listed(replicas: Sequence[int]) -> str:
    return ", ".join(map(str, replicas))
