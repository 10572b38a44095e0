"""The best evaluation so far, and when a run that does not improve stops: pure decisions.

The state is a function of the evaluations so far. It is saved with every checkpoint, so a run that
was killed or went back decides exactly as one that was not.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

SPARE = 2  # more steps are remembered than are kept: the save of one of them may have failed


@dataclass(frozen=True)
class BestState:
    """The evaluations so far, as far as the decision needs them."""

    lowest: tuple[tuple[int, float], ...] = ()  # (step, loss), best first
    reference: float | None = None  # the loss that an improvement has to beat
    reference_step: int = 0
    waited: int = 0  # evaluations since then
    last_step: int | None = None  # of the last evaluation
    last_loss: float | None = None  # None: it was not a number

    @property
    def improved(self) -> bool:
        """Tell whether the last evaluation is the best of all."""
        return bool(self.lowest) and self.lowest[0][0] == self.last_step

    def steps(self) -> tuple[int, ...]:
        """Return the best steps, best first."""
        return tuple(step for step, _ in self.lowest)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "BestState":
        lowest = tuple((int(step), float(loss)) for step, loss in found["lowest"])
        return cls(**{**found, "lowest": lowest})


def judge(state: BestState, step: int, loss: float, keep: int, min_delta: float) -> BestState:
    """Take in one evaluation. The earlier of two equal losses is better."""
    after = replace(state, last_step=step, last_loss=loss if math.isfinite(loss) else None)
    if not math.isfinite(loss):
        return replace(after, waited=state.waited + 1)
    others = [pair for pair in state.lowest if pair[0] != step]
    lowest = sorted([*others, (step, loss)], key=lambda pair: (pair[1], pair[0]))
    after = replace(after, lowest=tuple(lowest[: max(1, keep) + SPARE]))
    if state.reference is None or loss < state.reference - min_delta:
        return replace(after, reference=loss, reference_step=step, waited=0)
    return replace(after, waited=state.waited + 1)


def stops(state: BestState, patience: int | None) -> bool:
    """Tell whether the run has waited long enough for an improvement."""
    return patience is not None and state.waited >= patience


def words(state: BestState, patience: int) -> str:
    """Say why a run stopped early."""
    best = "none" if state.reference is None else f"{state.reference:.4f}"
    evaluations = f"{state.waited} evaluation{'s' if state.waited != 1 else ''}"
    return (
        f"no improvement in {evaluations} (evaluate.patience = {patience}); the best "
        f"validation loss was {best} at step {state.reference_step}"
    )
