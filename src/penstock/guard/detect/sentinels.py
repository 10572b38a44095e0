"""What watches every step of a run: takes the policies' decisions, and puts them on record.

Every rank keeps the same state and comes to the same verdict, because all of them look at numbers
that they have agreed on. What then happens to weights is the loop's business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import RunFailed
from penstock.ledger.journal.writer import Journal
from penstock.policy import divergence, spike
from penstock.run.schema.code import Code


@dataclass
class Sentinels:
    on_spike: spike.OnSpike
    journal: Journal
    tells: Callable[[], bool]  # whether this rank is the one that writes down what all decided
    own: Sequence[Code] = ()  # the user's own code, which may be what computes such numbers
    spikes: spike.SpikeState = field(default_factory=spike.SpikeState)
    replicas: divergence.DivergenceState = field(default_factory=divergence.DivergenceState)

    def judge(self, step: int, loss: float, norm: float) -> spike.SpikeVerdict:
        """Whether weights may change by `step`."""
        self.spikes, verdict = spike.decide(self.spikes, step, loss, norm, self.on_spike)
        if verdict.kind == "stop":
            raise self.refusal(step, verdict.why)
        if verdict.kind != "good":
            numbers = {"loss": str(loss), "grad_norm": str(norm)}  # JSON has no word for NaN
            kind = "batch_skipped" if verdict.kind == "skip" else "spike"
            self._tell(kind, step=step, why=verdict.why, **numbers)
        return verdict

    def refusal(self, step: int, why: str) -> RunFailed:
        """What is raised when there is no way on."""
        first = ""
        if self.own:  # the loss is the last to compute, so it is named first
            named = " and ".join(code.words for code in reversed(self.own))
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
        """Whether all replicas hold the same after `step`."""
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

    def tell_fault(self, step: int, replicas: Sequence[int], certain: bool) -> None:
        self._tell("replica_at_fault", step=step, replicas=list(replicas), certain=certain)

    def tell_differing(
        self, verdict: divergence.DivergenceVerdict, tensors: Sequence[str], back_to: int | None
    ) -> None:
        self._tell(
            "replicas_differ",
            step=verdict.step,
            replicas=list(verdict.replicas),
            certain=verdict.certain,
            tensors=list(tensors),
            back_to=back_to,
        )

    def tell_replayed(
        self, step: int, pairs: Sequence[tuple[int, int]], wrong: Sequence[int]
    ) -> None:
        self._tell("replay_differs", step=step, pairs=[list(p) for p in pairs], replicas=[*wrong])

    def to_json(self) -> dict[str, Any]:
        """What goes into a checkpoint."""
        return self.spikes.to_json()

    def restore(self, saved: dict[str, Any] | None, upto: int | None = None) -> None:
        """From a checkpoint. What this process has seen since is not forgotten.

        Of another run file, what was held against steps is known only `upto` the one it is of:
        later ones may have other batches.
        """
        found = spike.SpikeState.from_json(saved) if saved else spike.SpikeState()
        if upto is not None:
            found = found.forgiving(*(step for step in found.skips if step > upto))
        self.spikes = found.knowing(self.spikes)

    def _tell(self, kind: str, **what: object) -> None:
        if self.tells():
            self.journal.event(kind, t=None, synced=True, **what)


def _listed(replicas: Sequence[int]) -> str:
    return ", ".join(map(str, replicas))
