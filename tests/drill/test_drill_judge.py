"""The judge lets nothing pass: every promise of the table, broken on purpose, fails."""

import time
from dataclasses import replace
from typing import Any

import pytest

from journal_lines import line_of
from penstock.drill.audit import SampleCounts
from penstock.drill.clock import AttemptBeats, PhaseBeat
from penstock.drill.facts import DrillFacts
from penstock.drill.faults import DrillFault, InjectedFault
from penstock.drill.judge import judge
from penstock.meter.clock import now

FAULT = DrillFault("kill_forward", "a kill", ("fault",))
T0 = time.monotonic()
OFFSET = now() - time.monotonic()
STEP = ("fetch", "forward", "reduce", "vote", "voted", "update", "updated")


def beats(start: float, first: int, last: int, died: float | None = None) -> list[PhaseBeat]:
    made = [PhaseBeat(0, "start", start), PhaseBeat(first - 1, "ready", start + 1.0)]
    for step in range(first, last + 1):
        at = start + 1.0 + (step - first)
        made += [PhaseBeat(step, phase, at + 0.1 * i) for i, phase in enumerate(STEP)]
    made.append(PhaseBeat(last, "end", start + 1.0 + last - first + 1))
    return [beat for beat in made if died is None or beat.t <= died]


def baseline() -> DrillFacts:
    return DrillFacts(
        status="done",
        weights_hash="abc",
        losses={1: 4.0, 2: 3.0, 3: 2.0, 4: 1.5},
        samples=SampleCounts(0, 0),
        events=[],
        injected=[],
        missed=[],
        attempts=[AttemptBeats({0: beats(T0, 1, 4)})],
        ledger={"down": 0.0, "redo": 0.0, "checkpoint": 0.0},
        ranks=1,
        wall_s=5.0,
    )


def killed(**changes: Any) -> DrillFacts:
    """Died in step 4; up again 2 s later, on from step 2."""
    died = T0 + 1.0 + 3.5
    facts = replace(
        baseline(),
        events=[line_of(died + 0.1 + OFFSET, "fault", attempt=0, payload={"reason": "killed"})],
        injected=[InjectedFault(died, 0, 0, "kill in forward", lethal=True)],
        attempts=[
            AttemptBeats({0: beats(T0, 1, 4, died)}, died),
            AttemptBeats({0: beats(died + 1.0, 3, 4)}, opens=False),
        ],
        ledger={"down": 2.0, "redo": 1.5, "checkpoint": 0.0},
    )
    return replace(facts, **changes)


def test_a_run_that_came_through_passes_with_its_times() -> None:
    verdict = judge(FAULT, baseline(), killed(), batch=4)
    assert verdict.why == []
    assert verdict.passed
    assert verdict.detected_by == "fault"
    assert verdict.detection_s == pytest.approx(0.1, abs=0.01)
    assert verdict.recovery_s == pytest.approx(2.0 + 2.0)
    assert verdict.steps_redone == 1
    assert verdict.weights == "equal"
    assert verdict.clocks["down"] == (2.0, pytest.approx(2.0))
    assert verdict.clocks["redo"] == (1.5, pytest.approx(1.5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "failed"}, "ended as 'failed'"),
        (
            {"weights_hash": "abd"},
            "the weights are within float noise; they have to be bit-identical",
        ),
        (
            {"weights_hash": "abd", "losses": {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.6}},
            "the weights differ; they",
        ),
        ({"samples": SampleCounts(4, 0)}, "4 samples lost"),
        ({"samples": SampleCounts(0, 2)}, "2 samples doubled"),
        ({"events": []}, "nothing reported it"),
        ({"missed": ["00-kill"]}, "did not happen"),
        ({"ledger": {"down": 3.0, "redo": 1.5, "checkpoint": 0.0}}, "down: the ledger says 3.00"),
        ({"ledger": {"down": 2.0, "redo": 2.0, "checkpoint": 0.0}}, "redo: the ledger says 2.00"),
        ({"ledger": {"down": 2.0, "redo": 1.5, "checkpoint": 0.5}}, "checkpoint: the ledger"),
    ],
)
def test_each_broken_promise_fails_and_is_said(changes: dict[str, Any], said: str) -> None:
    verdict = judge(FAULT, baseline(), killed(**changes), batch=4)
    assert not verdict.passed
    assert said in "; ".join(verdict.why)


def test_a_fault_that_nobody_asked_for_fails() -> None:
    facts = killed()
    own = line_of(facts.events[0].t + 1, "fault", attempt=1, payload={"reason": "a bug"})
    verdict = judge(FAULT, baseline(), replace(facts, events=[*facts.events, own]), batch=4)
    assert "attempt 1 ended by itself: a bug" in verdict.why


def test_what_a_rank_lives_through_must_not_end_its_attempt() -> None:
    facts = killed()
    mild = replace(facts.injected[0], what="packets lost", lethal=False)
    verdict = judge(
        replace(FAULT, check_clock=False), baseline(), replace(facts, injected=[mild]), batch=4
    )
    assert verdict.why == ["attempt 0 ended by itself: killed"]


def test_a_rank_that_nobody_hit_must_not_be_lost() -> None:
    facts = killed()
    payload: dict[str, object] = {"rank": 1, "ranks": [1, 1], "reason": "a bug"}
    own = line_of(facts.events[0].t + 1, "lost", attempt=0, payload=payload)
    live = FAULT.in_live_mode()
    verdict = judge(live, baseline(), replace(facts, events=[*facts.events, own]), batch=4)
    assert "rank 1 was lost by itself: a bug" in verdict.why
    aimed = line_of(own.t, "lost", attempt=0, payload=payload | {"rank": 0})
    assert judge(live, baseline(), replace(facts, events=[aimed]), batch=4).detected_by == "lost"


def test_a_death_is_dated_when_it_is_seen_and_a_hang_when_it_began() -> None:
    facts = killed()
    fault = replace(facts.events[0], t=facts.events[0].t + 0.3)  # 0.4 s after the blow
    ledger = {"down": 1.6, "redo": 1.9, "checkpoint": 0.0}
    late = replace(facts, events=[fault], ledger=ledger)
    assert judge(FAULT, baseline(), late, batch=4).why == []
    hang = replace(late, events=[line_of(fault.t, "hang", attempt=0), fault])
    assert len(judge(replace(FAULT, reported_by=("hang",)), baseline(), hang, batch=4).why) == 2


def test_an_event_from_before_the_blow_tells_nothing() -> None:
    facts = killed()
    early = replace(facts.events[0], t=facts.events[0].t - 1.0)
    assert not judge(FAULT, baseline(), replace(facts, events=[early]), batch=4).passed


def test_another_layout_may_differ_by_float_noise_and_no_more() -> None:
    other = replace(FAULT, outcome="near")
    noise = {step: loss * (1 + 1e-5) for step, loss in baseline().losses.items()}
    assert judge(other, baseline(), killed(weights_hash="x", losses=noise), batch=4).passed
    far = {step: loss * 1.01 for step, loss in baseline().losses.items()}
    assert not judge(other, baseline(), killed(weights_hash="x", losses=far), batch=4).passed


def test_a_batch_that_is_skipped_is_the_only_one() -> None:
    skip = replace(FAULT, outcome="skipped")
    losses = {1: 4.0, 2: 3.0, 4: 1.7}
    facts = killed(weights_hash="x", losses=losses, samples=SampleCounts(4, 0))
    assert judge(skip, baseline(), facts, batch=4).passed
    assert not judge(skip, baseline(), replace(facts, samples=SampleCounts(8, 0)), batch=4).passed
    assert not judge(skip, baseline(), killed(samples=SampleCounts(4, 0)), batch=4).passed
