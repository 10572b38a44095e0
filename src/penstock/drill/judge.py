"""The judge: what a fault did to a run, and whether the run recovered as it must."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.drill.clock import CAUSES, SEEN_S, SLACK_S, account, agree, next_new_step
from penstock.drill.facts import DrillFacts
from penstock.drill.faults import OFFSET_S, DrillFault
from penstock.ledger.journal.events import AttemptFailed, HangFound, ReplicaGone
from penstock.ledger.journal.read import lines_of

LOOK_S = 0.2  # the longest time between two readings of the pulses
NOISE = 1e-3  # relative, of a loss: another layout adds the same numbers in another order


@dataclass(frozen=True)
class DrillVerdict:
    """The verdict of one drill: a line of the table and of `drills.jsonl`."""

    fault: str
    what: str
    passed: bool
    why: list[str] = field(default_factory=list)  # the checks that failed
    skipped: str = ""  # why the drill was left out
    detected_by: str = ""
    detection_s: float | None = None
    recovery_s: float | None = None  # from the fault to the next new step
    steps_redone: int = 0
    lost: int = 0
    doubled: int = 0
    weights: str = ""  # "equal", "near", or "differ"
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)  # ledger, own clock
    blows: list[str] = field(default_factory=list)  # the injected faults, in words
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    fault: DrillFault, baseline: DrillFacts, facts: DrillFacts, batch: int, slack_s: float = SLACK_S
) -> DrillVerdict:
    """Judge a run with a fault against the undisturbed run `baseline`.

    `batch` is the samples of a step. `slack_s` is how far the clocks of a rank may differ, which is
    more on a busy machine.
    """
    spent = account(facts.attempts)
    clocks = {cause: (facts.ledger[cause], float(getattr(spent, cause))) for cause in CAUSES}
    weights = _weights(baseline, facts)
    report = _first_report(fault, facts)
    seen_s = [slack_s + late_s for late_s in _seen(facts)] or [slack_s]
    why = [
        *_fell(fault, facts),
        *_ended(facts),
        *_same(fault, weights),
        *_samples(fault, facts, batch),
        *(
            []
            if report or not fault.reported_by
            else [f"nothing reported it ({' or '.join(fault.reported_by)})"]
        ),
        *(_clocks(clocks, facts.ranks * sum(seen_s)) if fault.check_clock else ()),
    ]
    return DrillVerdict(
        fault=fault.name,
        what=fault.what,
        passed=not why,
        why=why,
        detected_by=report[0] if report else "",
        detection_s=report[1] if report else None,
        recovery_s=recovery_s(facts),
        steps_redone=spent.redone,
        lost=facts.samples.lost,
        doubled=facts.samples.doubled,
        weights=weights,
        clocks=clocks,
        blows=[str(one) for one in facts.injected],
        wall_s=facts.wall_s,
    )


def recovery_s(facts: DrillFacts) -> float | None:
    """Return the time from the first lethal fault to the end of the next new step.

    None where nothing stopped.
    """
    fault = next((one for one in facts.injected if one.lethal), None)
    if fault is None or fault.attempt >= len(facts.attempts):
        return None
    new = next_new_step(facts.attempts, fault.attempt, fault.t)
    return None if new is None else new - fault.t


def _fell(fault: DrillFault, facts: DrillFacts) -> list[str]:
    missed = [f"the injection {name} did not happen" for name in facts.missed]
    aimed = {one.attempt for one in facts.injected if one.lethal}
    aimed |= {attempt + 1 for attempt in aimed} if fault.refuses else set()
    own = [
        f"attempt {line.attempt} ended by itself: {line.event.reason}"
        for line in facts.faults()
        if line.attempt not in aimed
    ]
    hit = {one.rank for one in facts.injected if one.lethal}
    own += [
        f"rank {lost.rank} was lost by itself: {lost.reason}"
        for lost in [line.event for line in lines_of(facts.events, ReplicaGone)]
        if lost.rank not in hit
    ]
    return missed + own


def _ended(facts: DrillFacts) -> list[str]:
    return [] if facts.status == "done" else [f"the run ended as '{facts.status}', not 'done'"]


def _weights(baseline: DrillFacts, facts: DrillFacts) -> str:
    if baseline.weights_hash and baseline.weights_hash == facts.weights_hash:
        return "equal"
    both = [(loss, facts.losses.get(step)) for step, loss in baseline.losses.items()]
    near = all(own is not None and abs(own - loss) <= NOISE * abs(loss) for loss, own in both)
    return "near" if both and near else "differ"


def _same(fault: DrillFault, weights: str) -> list[str]:
    enough = {"same": ("equal",), "near": ("equal", "near"), "skipped": ("near", "differ")}
    if weights in enough[fault.outcome]:
        return []
    wanted = {"same": "bit-identical", "near": "within float noise", "skipped": "other ones"}
    found = {"equal": "are bit-identical", "near": "are within float noise", "differ": "differ"}
    return [f"the weights {found[weights]}; they have to be {wanted[fault.outcome]}"]


def _samples(fault: DrillFault, facts: DrillFacts, batch: int) -> list[str]:
    lost = batch if fault.outcome == "skipped" else 0
    found = facts.samples
    why = []
    if found.lost != lost:
        why.append(f"{found.lost} samples lost, not {lost}")
    if found.doubled:
        why.append(f"{found.doubled} samples doubled")
    return why


def _first_report(fault: DrillFault, facts: DrillFacts) -> tuple[str, float] | None:
    """Return the first event that reports the fault, and how long after the injection."""
    if not facts.injected:
        return None
    began = facts.injected[0].t + OFFSET_S
    for line in facts.events:
        if line.kind in fault.reported_by and line.end is None and line.t >= began - 0.05:
            return line.kind, max(0.0, line.t - began)
    return None


def _seen(facts: DrillFacts) -> list[float]:
    """Return how long after each lethal fault the supervisor saw it, SEEN_S at most.

    The ledger counts so much of every rank as part of the lost step. The pulse says when a hang
    began, except for the time between two readings, however late the hang is reported.
    """
    hung = {line.attempt for line in lines_of(facts.events, HangFound)}
    late = []
    for fault in (one for one in facts.injected if one.lethal):
        delays = [
            line.t - OFFSET_S - fault.t
            for line in lines_of(facts.events, AttemptFailed, ReplicaGone)
            if line.attempt == fault.attempt
        ]
        after = min((delay for delay in delays if delay >= 0), default=0.0)
        late.append(LOOK_S if fault.attempt in hung else min(after, SEEN_S))
    return late


def _clocks(clocks: Mapping[str, tuple[float, float]], slack_s: float) -> list[str]:
    return [
        f"{cause}: the ledger says {ledger_s:.2f} rank-seconds, the drill's clock {own_s:.2f}"
        for cause, (ledger_s, own_s) in clocks.items()
        if not agree(ledger_s, own_s, slack_s)
    ]
