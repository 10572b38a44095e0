"""The decision whether a run hangs, and which rank holds it up.

Ranks wait for each other, so one that hangs stops all of them. The rank at fault is one that a
signal stopped, or the one that is furthest behind. If several are equally far, it is the one that
does not wait in a collective.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

# A step that takes this many times the usual one is a hang, not a slow step.
TIMES = 10.0
# Busy machines hold any process up for seconds; a needless restart costs about as much.
FLOOR_S = 10.0
FEWEST_STEPS = 3  # fewer do not show what is usual
KEPT_STEPS = 64
# Compilers and storage may take long, and no other rank waits for them with a shorter limit.
LONG_S = 3600.0

# In the order in which a rank comes through them. The loop is between `fetch` and `saved`.
BEFORE = ("start", "join", "build", "load", "warm_up", "ready")
LOOP = (
    *("regroup", "heal", "fetch", "forward", "reduce", "vote", "voted", "update", "updated"),
    *("evaluate", "keep", "stage", "save", "saved"),
)
ORDER = {phase: place for place, phase in enumerate((*BEFORE, *LOOP, "end"))}
_BRISK = frozenset(
    {"forward", "reduce", "vote", "voted", "update", "updated", "keep", "stage", "saved"}
)
_LONG = frozenset({"build", "load", "warm_up", "evaluate", "save", "end"})


@dataclass(frozen=True)
class RankObservation:
    """The last known state of a rank."""

    rank: int
    phase: str
    step: int
    still_s: float  # since its last sign of life, by the watcher's own clock
    stopped: bool = False  # the kernel has it stopped, as SIGSTOP does
    newcomer: bool = False  # started again beside others that go on, and not among them yet

    @property
    def place(self) -> tuple[int, int]:
        return self.step, ORDER[self.phase]


@dataclass(frozen=True)
class Hang:
    """A hang: the ranks at fault (none when all wait for each other), where, and for how long."""

    ranks: tuple[int, ...]
    phase: str
    step: int
    still_s: float
    why: str


def usual_s(steps_s: Sequence[float]) -> float | None:
    """Return the usual duration of a step, by the last ones; None before there are enough."""
    return median(steps_s[-KEPT_STEPS:]) if len(steps_s) >= FEWEST_STEPS else None


def allowed_s(seen: RankObservation, step_s: float | None, timeout_s: float) -> float:
    """Return how long a rank may give no sign in its phase. `timeout_s` is guard.timeout."""
    brisk_s = timeout_s if step_s is None else max(TIMES * step_s, min(FLOOR_S, timeout_s))
    if seen.stopped:
        return min(brisk_s, max(FLOOR_S, TIMES * (step_s or 0.0)))
    if seen.phase in _LONG or (seen.phase == "forward" and step_s is None):
        return max(LONG_S, timeout_s)  # a first step may be as long as anything
    return brisk_s if seen.phase in _BRISK else max(brisk_s, timeout_s)


def decide(
    seen: Sequence[RankObservation],
    step_s: float | None,
    timeout_s: float,
    waits: Mapping[int, bool | None] = MappingProxyType({}),
) -> Hang | None:
    """Decide whether the run hangs, by the ranks that could be to blame; `waits` as in `blame`.

    Nobody waits for a newcomer, nor it for them: the two are judged apart.
    """
    for newcomers in (False, True):
        group = [s for s in seen if s.newcomer == newcomers]
        suspects = _suspects(group)
        if group and all(s.still_s > allowed_s(s, step_s, timeout_s) for s in suspects):
            return blame(group, waits)
    return None


def blame(seen: Sequence[RankObservation], waits: Mapping[int, bool | None]) -> Hang:
    """Name the rank at fault. `waits` says for each rank, by its stack, whether it is inside a
    collective; None for one that did not answer when it was asked for its stack.
    """
    suspects = _suspects(seen)
    first = suspects[0]
    where = Hang(
        tuple(s.rank for s in suspects),
        first.phase,
        first.step,
        min(s.still_s for s in suspects),
        why="",
    )
    if first.stopped:
        return _because(where, "stopped by a signal")
    mute = [s.rank for s in suspects if s.rank in waits and waits[s.rank] is None]
    if mute and len(mute) < len(suspects):
        return _because(where, "does not answer", mute)
    if len(suspects) < len(seen):
        return _because(where, "the others have come further and wait")
    busy = [s.rank for s in suspects if waits.get(s.rank) is False]
    if busy and len(busy) < len(suspects):
        return _because(where, "the others wait for it in a collective", busy)
    if len(seen) == 1:
        return _because(where, "gives no sign of life")
    return _because(where, "all ranks wait for each other: look at the network between them", ())


def _suspects(seen: Sequence[RankObservation]) -> list[RankObservation]:
    stopped = [s for s in seen if s.stopped]
    behind = min((s.place for s in seen), default=None)
    return stopped or [s for s in seen if s.place == behind]


def _because(hang: Hang, why: str, ranks: Sequence[int] | None = None) -> Hang:
    blamed = hang.ranks if ranks is None else tuple(ranks)
    return Hang(blamed, hang.phase, hang.step, hang.still_s, why)
