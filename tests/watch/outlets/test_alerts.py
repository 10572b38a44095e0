"""Alerts about a run: each once, and the recovery from every problem."""

from hypothesis import given
from hypothesis import strategies as st

from journal_lines import line_of
from penstock.ledger.journal.read import JournalLine
from penstock.watch.outlets.alerts import Alert, AlertDetector, FinishedStep, sentence

PATIENCE_S = 100.0


def detector() -> AlertDetector:
    return AlertDetector(began=0.0, patience_s=PATIENCE_S)


def event(kind: str, t: float, attempt: int | None = None, **payload: object) -> JournalLine:
    return line_of(t, kind, attempt=attempt, payload=payload)


def kinds(news: list[Alert]) -> list[str]:
    return [one.event for one in news]


def test_a_crash_and_its_recovery_are_alerts() -> None:
    made = detector()
    assert made.add_steps([FinishedStep(10, 1, 0), FinishedStep(11, 2, 0)]) == []
    fault = event("fault", 12, 0, rank=1, reason="killed by signal 9", action="restart")
    (crash,) = made.add_supervisor_events([fault])
    assert (crash.event, crash.step) == ("crash", 2)
    assert crash.words == "rank 1: killed by signal 9; restarts"
    (again,) = made.add_steps([FinishedStep(20, 2, 1), FinishedStep(21, 3, 1)])
    assert (again.event, again.step) == ("recovered", 2)
    assert "8.0 s after the crash" in again.words


def test_a_hang_is_a_stall_and_not_a_crash_too() -> None:
    made = detector()
    hang = event("hang", 50, 0, phase="reduce", step=7, why="rank 1 is stopped")
    fault = event("fault", 50, 0, rank=1, reason="hang: no sign", action="restart")
    assert kinds(made.add_supervisor_events([hang, fault])) == ["stall"]
    assert kinds(made.add_steps([FinishedStep(60, 7, 1)])) == ["recovered"]
    later = event("fault", 70, 1, rank=0, reason="killed", action="restart")
    assert kinds(made.add_supervisor_events([later])) == ["crash"]


def test_in_live_mode_the_others_go_on_in_the_same_attempt() -> None:
    made = detector()
    made.add_steps([FinishedStep(10, 1, 0)])
    assert kinds(made.add_supervisor_events([event("lost", 11, 0, rank=2, reason="killed")])) == [
        "crash"
    ]
    assert kinds(made.add_steps([FinishedStep(12, 2, 0)])) == ["recovered"]


def test_no_step_for_long_is_a_stall_once() -> None:
    made = detector()
    made.add_steps([FinishedStep(t, t, 0) for t in range(1, 11)])
    assert made.check_stall(10 + PATIENCE_S - 1) == []
    assert kinds(made.check_stall(10 + PATIENCE_S + 1)) == ["stall"]
    assert made.check_stall(10 + 2 * PATIENCE_S) == []
    assert kinds(made.add_steps([FinishedStep(500, 11, 0)])) == ["recovered"]


def test_slow_steps_are_no_stall() -> None:
    made = detector()
    made.add_steps([FinishedStep(60.0 * n, n, 0) for n in range(1, 11)])
    assert made.check_stall(600 + 5 * PATIENCE_S) == []  # 20 usual steps are 1,200 s
    assert kinds(made.check_stall(600 + 1300)) == ["stall"]


def test_each_end_of_a_run_has_its_alert() -> None:
    for result, told in (("done", "finish"), ("stopped", "stopped"), ("failed", "crash")):
        made = detector()
        made.add_steps([FinishedStep(1, 9, 0)])
        (news,) = made.add_supervisor_events([event("ended", 2, result=result, error="why\nstack")])
        assert (news.event, news.step, made.over) == (told, 9, True)
        assert "stack" not in news.words
        assert made.supervisor_died(3) == made.check_stall(1e9) == []


def test_a_killed_supervisor_without_a_last_event_is_an_alert() -> None:
    made = detector()
    (news,) = made.supervisor_died(5)
    assert news.event == "crash"
    assert "supervisor was killed" in news.words
    assert made.supervisor_died(6) == []


def test_a_host_that_leaves_the_run_to_others_sends_no_alert() -> None:
    for kind in ("left", "lease_lost", "handed_over"):
        made = detector()
        assert made.add_supervisor_events([event(kind, 1)]) == []
        assert made.over


def test_the_sentence_of_an_alert_for_a_chat() -> None:
    done = Alert("finish", 1, 2000, "has finished")
    assert sentence("code-1b", done, 2000) == "code-1b has finished, at step 2,000 of 2,000"


faults = st.builds(
    lambda kind, t, attempt: event(
        kind, t, attempt, rank=0, reason="x", why="y", factor=2.0, slow=True
    ),
    st.sampled_from(["fault", "hang", "lost", "launch", "straggler"]),
    st.floats(0, 1e6),
    st.integers(0, 3),
)
points = st.builds(FinishedStep, st.floats(0, 1e6), st.integers(0, 1000), st.integers(0, 3))


@given(st.lists(st.one_of(faults, points), max_size=30))
def test_each_recovery_follows_a_problem(history: list[JournalLine | FinishedStep]) -> None:
    made, told = detector(), list[str]()
    for one in history:
        told += kinds(
            made.add_steps([one])
            if isinstance(one, FinishedStep)
            else made.add_supervisor_events([one])
        )
    for before, after in zip(["", *told], told, strict=False):
        assert after != "recovered" or before in ("crash", "stall")
