"""The rewards of an objective on pairs, by step: of the training pairs, and of held-out ones."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from penstock.ledger.journal.events import EvaluateSpan, PairsRewarded
from penstock.ledger.journal.values import number, whole
from penstock.style import format_percent
from penstock.watch.facts.run_view import RunView

LAST = 10  # steps: one batch alone is noisy


@dataclass(frozen=True)
class Rewards:
    """Mean rewards of the pairs of a step, or of the held-out pairs after it."""

    step: int
    chosen: float
    rejected: float
    accuracy: float  # share of pairs whose chosen answer has the higher reward

    @property
    def margin(self) -> float:
        return self.chosen - self.rejected

    @classmethod
    def of(cls, event: PairsRewarded | EvaluateSpan) -> "Rewards | None":
        """Return what an event tells; None if that is not all."""
        step = whole(event.step)
        values = [number(one) for one in (event.chosen, event.rejected, event.accuracy)]
        if step is None or None in values:
            return None
        return cls(step, *(float(value) for value in values if value is not None))

    def to_json(self) -> dict[str, float]:
        return asdict(self) | {"margin": self.margin}

    def words(self) -> str:
        return (
            f"chosen {self.chosen:+.3f}, rejected {self.rejected:+.3f}, margin {self.margin:.3f}, "
            f"accuracy {format_percent(self.accuracy)}"
        )


def training_rewards(view: RunView) -> list[Rewards]:
    """Return the rewards of the steps, without steps that a restart took back."""
    return _by_step((line.event for line in view.rank_events_of(PairsRewarded)), view.step)


def held_out_rewards(view: RunView) -> list[Rewards]:
    """Return the rewards of the evaluations."""
    return _by_step((line.event for line in view.rank_events_of(EvaluateSpan)), view.step)


def latest_rewards(view: RunView) -> Rewards | None:
    """Return those of the last evaluation, or else the mean of the last steps; None for others."""
    return recent(held_out_rewards(view)[-1:]) or recent(training_rewards(view))


def recent(found: list[Rewards]) -> Rewards | None:
    """Return the mean of the last steps; None if there are none."""
    last = found[-LAST:]
    if not last:
        return None
    means = (
        sum(getattr(one, name) for one in last) / len(last)
        for name in ("chosen", "rejected", "accuracy")
    )
    return Rewards(last[-1].step, *means)


def _by_step(events: Iterable[PairsRewarded | EvaluateSpan], last: int) -> list[Rewards]:
    found: dict[int, Rewards] = {}
    for event in events:
        if (one := Rewards.of(event)) and one.step <= last:
            found[one.step] = one
    return [found[step] for step in sorted(found)]
