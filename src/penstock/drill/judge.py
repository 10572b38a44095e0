"""The judge: what a fault did to a run, and whether the run came through as it has to."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.drill.clock import CAUSES, SEEN_S, SLACK_S, account, agree, next_new_step
from penstock.drill.facts import Facts
from penstock.drill.faults import Fault
from penstock.drill.struck import OFFSET_S

LOOK_S = 0.2  # between looks at the pulses, at the most
NOISE = 1e-3  # relative, of the loss of a step: another layout adds the same numbers up otherwise


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    fault: str
    what: str
    passed: bool
    why: list[str] = field(default_factory=list)  # what does not hold
    skipped: str = ""  # why the drill was not made
    detected_by: str = ""
    detection_s: float | None = None
    recovery_s: float | None = None  # from the fault to the next new step
    steps_redone: int = 0
    lost: int = 0
    doubled: int = 0
    weights: str = ""  # "equal", "near", or "differ"
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)  # ledger, own clock
    blows: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(fault: Fault, calm: Facts, facts: Facts, batch: int, slack_s: float = SLACK_S) -> Verdict:
    """`calm` is the undisturbed run, `batch` the samples of a step; `slack_s` is for the clocks of
    a rank on a machine that is busy with other things."""
    spent = account(facts.lives)
    clocks = {cause: (facts.ledger[cause], float(getattr(spent, cause))) for cause in CAUSES}
    weights = _weights(calm, facts)
    told = _told(fault, facts)
    seen_s = [slack_s + late_s for late_s in _seen(facts)] or [slack_s]
    why = [
        *_fell(fault, facts),
        *_ended(facts),
        *_same(fault, weights),
        *_samples(fault, facts, batch),
        *([] if told or not fault.told else [f"nothing told of it ({' or '.join(fault.told)})"]),
        *(_clocks(clocks, facts.ranks * sum(seen_s)) if fault.clocked else ()),
    ]
    return Verdict(
        fault=fault.name,
        what=fault.what,
        passed=not why,
        why=why,
        detected_by=told[0] if told else "",
        detection_s=told[1] if told else None,
        recovery_s=recovery_s(facts),
        steps_redone=spent.redone,
        lost=facts.samples.lost,
        doubled=facts.samples.doubled,
        weights=weights,
        clocks=clocks,
        blows=[str(one) for one in facts.struck],
        wall_s=facts.wall_s,
    )


def recovery_s(facts: Facts) -> float | None:
    """From the first lethal blow to the end of the next new step; None where nothing stopped."""
    blow = next((one for one in facts.struck if one.lethal), None)
    if blow is None or blow.attempt >= len(facts.lives):
        return None
    new = next_new_step(facts.lives, blow.attempt, blow.t)
    return None if new is None else new - blow.t


def _fell(fault: Fault, facts: Facts) -> list[str]:
    missed = [f"the blow {name} did not fall" for name in facts.missed]
    aimed = {one.attempt for one in facts.struck if one.lethal}
    aimed |= {attempt + 1 for attempt in aimed} if fault.refuses else set()
    own = [
        f"attempt {event.attempt} ended by itself: {event.payload.get('reason')}"
        for event in facts.faults()
        if event.attempt not in aimed
    ]
    hit = {one.rank for one in facts.struck if one.lethal}
    own += [
        f"rank {event.payload.get('rank')} was lost by itself: {event.payload.get('reason')}"
        for event in facts.events
        if event.kind == "lost" and event.end is None and event.payload.get("rank") not in hit
    ]
    return missed + own


def _ended(facts: Facts) -> list[str]:
    return [] if facts.status == "done" else [f"the run ended as '{facts.status}', not 'done'"]


def _weights(calm: Facts, facts: Facts) -> str:
    if calm.weights_hash and calm.weights_hash == facts.weights_hash:
        return "equal"
    both = [(loss, facts.losses.get(step)) for step, loss in calm.losses.items()]
    near = all(own is not None and abs(own - loss) <= NOISE * abs(loss) for loss, own in both)
    return "near" if both and near else "differ"


def _same(fault: Fault, weights: str) -> list[str]:
    enough = {"same": ("equal",), "near": ("equal", "near"), "skipped": ("near", "differ")}
    if weights in enough[fault.outcome]:
        return []
    wanted = {"same": "bit-identical", "near": "within float noise", "skipped": "other ones"}
    found = {"equal": "are bit-identical", "near": "are within float noise", "differ": "differ"}
    return [f"the weights {found[weights]}; they have to be {wanted[fault.outcome]}"]


def _samples(fault: Fault, facts: Facts, batch: int) -> list[str]:
    lost = batch if fault.outcome == "skipped" else 0
    found = facts.samples
    why = []
    if found.lost != lost:
        why.append(f"{found.lost} samples lost, not {lost}")
    if found.doubled:
        why.append(f"{found.doubled} samples doubled")
    return why


def _told(fault: Fault, facts: Facts) -> tuple[str, float] | None:
    """The first event that tells of the fault, and how long after the blow."""
    if not facts.struck:
        return None
    began = facts.struck[0].t + OFFSET_S
    for event in facts.events:
        if event.kind in fault.told and event.end is None and event.t >= began - 0.05:
            return event.kind, max(0.0, event.t - began)
    return None


def _seen(facts: Facts) -> list[float]:
    """How long after each lethal blow the supervisor saw it, at most SEEN_S: so much of every rank
    it counts as the lost step. When a hang began is known from the pulse, however late it is told,
    but for the time between two looks at it."""
    hung = {event.attempt for event in facts.events if event.kind == "hang"}
    late = []
    for blow in (one for one in facts.struck if one.lethal):
        told = [
            event.t - OFFSET_S - blow.t
            for event in facts.events
            if event.kind in ("fault", "lost") and event.end is None
            if event.attempt == blow.attempt
        ]
        after = min((t for t in told if t >= 0), default=0.0)
        late.append(LOOK_S if blow.attempt in hung else min(after, SEEN_S))
    return late


def _clocks(clocks: Mapping[str, tuple[float, float]], slack_s: float) -> list[str]:
    return [
        f"{cause}: the ledger says {ledger_s:.2f} rank-seconds, the drill's clock {own_s:.2f}"
        for cause, (ledger_s, own_s) in clocks.items()
        if not agree(ledger_s, own_s, slack_s)
    ]
