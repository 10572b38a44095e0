"""The replica that is wrong, when replicas that must be equal are not: pure decisions.

Three or more vote. Two cannot: the run goes back to the last state they agreed on and does the
steps again, and the one whose weights do not come out again was wrong. The state lives in memory
only; a restart forgets it, and starts from agreed weights anyway.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Prints = tuple[int, ...]  # of one replica: one for each of its ranks
FAR = 4.0  # times as far as the nearest
LIMIT = 3  # times that steps may be taken back without getting past them


@dataclass(frozen=True)
class DivergenceState:
    """The earlier comparisons that did not agree."""

    agreed_step: int = 0  # the last one at which all replicas were equal
    open_step: int = 0  # one at which they were not, to be looked at when it comes again
    open_prints: tuple[Prints, ...] = ()  # what they had there
    fruitless: int = 0  # times taken back since the replicas last agreed on something new


@dataclass(frozen=True)
class DivergenceVerdict:
    """The outcome of a comparison. `replicas` are those that are wrong; of two, both until the
    steps are repeated.
    """

    kind: Literal["agree", "rollback", "stop"]
    replicas: tuple[int, ...] = ()
    certain: bool = True
    step: int = 0  # at which they were found to differ


def decide(
    state: DivergenceState, step: int, prints: Sequence[Prints]
) -> tuple[DivergenceState, DivergenceVerdict]:
    """Compare the fingerprints of all replicas after `step`. Agreement may show who was wrong
    before.
    """
    if len(set(prints)) == 1:
        after = DivergenceState(agreed_step=max(step, state.agreed_step))
        if step < state.open_step:  # on the way there again
            return replace(state, agreed_step=step), DivergenceVerdict("agree")
        if step > state.open_step or not state.open_prints:
            return after, DivergenceVerdict("agree")
        return after, DivergenceVerdict("agree", *_named(state, prints[0]), step)
    wrong, certain = _minority(prints)
    after = DivergenceState(state.agreed_step, step, tuple(prints), state.fruitless + 1)
    kind: Literal["rollback", "stop"] = "rollback" if after.fruitless <= LIMIT else "stop"
    return after, DivergenceVerdict(kind, wrong, certain, step)


def farthest(had: Sequence[Sequence[float]], right: Sequence[float]) -> tuple[int, ...]:
    """Return the replicas whose values at the differing spot are far from the repeated result;
    empty if that does not tell them apart.
    """
    distances = [sum(abs(a - b) for a, b in zip(own, right, strict=True)) for own in had]
    distances = [math.inf if math.isnan(d) else d for d in distances]
    far = [r for r, d in enumerate(distances) if d > FAR * min(distances)]
    return tuple(far) if len(far) < len(had) else ()


def _named(state: DivergenceState, right: Prints) -> tuple[tuple[int, ...], bool]:
    """Return the replicas that had another result at the same step; all of them means that the
    steps do not repeat.
    """
    wrong = tuple(r for r, had in enumerate(state.open_prints) if had != right)
    return wrong, len(wrong) < len(state.open_prints)


def _minority(prints: Sequence[Prints]) -> tuple[tuple[int, ...], bool]:
    usual, count = Counter(prints).most_common(1)[0]
    if 2 * count <= len(prints):
        return tuple(range(len(prints))), False
    return tuple(r for r, own in enumerate(prints) if own != usual), True
