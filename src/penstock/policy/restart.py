"""The decision when an attempt ends: pure, shared by the supervisor and the simulator."""

from dataclasses import dataclass
from typing import Literal

EARLY = "stopped early"  # the validation loss no longer improved
WELL = ("done", "stopped", EARLY)  # results of a rank, or of a run, that has not failed
Action = Literal["finish", "restart", "replan", "give_up"]


@dataclass(frozen=True)
class RestartState:
    """The attempts of a run so far."""

    allowed: int  # guard.restarts: tries in a row that may bring no new step
    fruitless: int = 0  # tries in a row that did not
    best_step: int = 0  # furthest step any attempt reached


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt, by the ranks' own records."""

    # Per rank: "done", "stopped", "stopped early", "failed", "refused", "oom" or no record.
    results: tuple[str | None, ...]
    step: int  # furthest step it reached


def decide(state: RestartState, event: AttemptEnd) -> tuple[RestartState, Action]:
    """Decide by what the ranks recorded, not by their exit codes.

    All done or stopped: finish. A rank that refused (bad input) would refuse again: give up. One
    that ran out of memory would do so again in the same layout: another one, if there is one.
    Anything else is a fault: restart while attempts bring new steps, and a few times when not.
    """
    progressed = event.step > state.best_step
    after = RestartState(
        state.allowed,
        0 if progressed else state.fruitless + 1,
        max(state.best_step, event.step),
    )
    if all(r in WELL for r in event.results):
        return after, "finish"
    if "refused" in event.results:
        return after, "give_up"
    if "oom" in event.results:
        return RestartState(state.allowed, state.fruitless, after.best_step), "replan"
    return after, "restart" if after.fruitless <= state.allowed else "give_up"
