"""The merge on histories made by hand, where every second's cause is known."""

from pathlib import Path

import pytest

from penstock.ledger.causes import Cause
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import Account, merge

T = 1_700_000_000.0


def supervisor(folder: Path, *lines: tuple[float, str, dict[str, object]]) -> None:
    journal = SupervisorJournal(folder)
    for t, kind, payload in lines:
        journal.event(kind, t=T + t, **payload)
    journal.close()


def one_rank(folder: Path, ended: float = 100.0) -> Journal:
    """A supervisor that launched attempt 0 of one rank, and that rank, ready at 10."""
    supervisor(
        folder,
        (0, "invocation", {"ranks": 1}),
        (1, "launch", {"attempt": 0}),
        (ended, "ended", {"result": "done"}),
    )
    journal = Journal(folder, 0)
    journal.event("ready", t=T + 10)
    return journal


def causes(account: Account, rank: int | None = None) -> dict[str, object]:
    """The causes that are not zero, after the check that they add up."""
    windows = sum(i.window_s * i.ranks for i in account.invocations)
    assert account.ledger.total == pytest.approx(windows, rel=1e-9)
    ledger = account.ledger if rank is None else account.by_rank[rank]
    return {c.value: pytest.approx(s, abs=1e-5) for c, s in ledger.seconds.items() if s > 1e-6}


def test_two_ranks_a_straggler_a_fault_and_a_restart(tmp_path: Path) -> None:
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 2}),
        (1, "launch", {"attempt": 0}),
        (50, "fault", {"attempt": 0, "rank": 1, "reason": "hang", "since": T + 48}),
        (52, "launch", {"attempt": 1}),
        (85, "ended", {"result": "done"}),
    )
    # (compute, exchange) of each rank in steps 0, 1, 2; rank 1 is the straggler in step 1
    for rank, spent in enumerate([((6, 2), (6, 4), (8, 2)), ((6.5, 1.5), (9, 1), (7, 3))]):
        with Journal(tmp_path, 0, range(rank, rank + 1)) as journal:
            journal.event("start", t=T + 2)
            journal.event("ready", t=T + 10)
            journal.step(0, T + 10, 10, 1, *spent[0], bubble=0.5)
            journal.step(1, T + 20, 10, 0, *spent[1])
            journal.span("checkpoint", T + 30, T + 32, step=1)
            journal.span("evaluate", T + 32, T + 35, step=1)
            journal.step(2, T + 35, 10, 0, *spent[2])
        with Journal(tmp_path, 1, range(rank, rank + 1)) as journal:
            journal.event("ready", t=T + 60 + rank)
            journal.step(2, T + 61, 10, 0, 8, 2)
            journal.span("evaluate", T + 71, T + 72, step=2)
            journal.step(3, T + 72, 10, 0, 8, 2 - rank)
    account = merge(tmp_path)
    assert causes(account, rank=0) == {
        "compute": 6 + 6 + 8 + 8,
        "communicate": 1.5 + 1 + 2 + 1,
        "bubble": 0.5,
        "peer_wait": 0.5 + 3 + 0 + 1,
        "data_wait": 1,
        "checkpoint": 2,
        "evaluate": 3,
        "startup": 10,
        "down": 12,  # from the hang at 48 to ready at 60
        "redo": 3 + 10 + 1,  # the lost step, step 2 again, its evaluation again
        "unexplained": 0.5 + 1 + 3,  # in step 0, from ready to step 2, after step 3
    }
    assert causes(account, rank=1) == {
        "compute": 6.5 + 9 + 7 + 8,
        "communicate": 1.5 + 1 + 2 + 1,
        "bubble": 0.5,
        "peer_wait": 1,
        "data_wait": 1,
        "checkpoint": 2,
        "evaluate": 3,
        "startup": 10,
        "down": 13,
        "redo": 14,
        "unexplained": 0.5 + 1 + 3,  # in step 0, in step 3, after step 3
    }
    assert (account.wall_s, account.ranks, account.last_step) == (85, 2, 3)
    assert account.clipped_s == 0
    assert account.unexplained_share == pytest.approx(9 / 170)
    (invocation,) = account.invocations
    assert (invocation.start, invocation.result, invocation.attempts) == (T, "done", (0, 1))
    (fault,) = invocation.faults
    assert (fault.rank, fault.reason, fault.t, fault.since) == (1, "hang", T + 50, T + 48)
    assert account.ledger.provenance["seconds"].source == "measured"


def test_a_sleep_nobody_measured_is_unexplained(tmp_path: Path) -> None:
    with one_rank(tmp_path, ended=40) as journal:
        journal.step(0, T + 10, 10, 0, 10, 0)
        journal.step(1, T + 24, 10, 0, 10, 0)  # 4 s between the steps
        journal.step(2, T + 34, 6, 0, 3, 0)  # 3 s inside a step
    assert causes(merge(tmp_path)) == {"startup": 10, "compute": 23, "unexplained": 7}


def test_a_later_invocation_redoes_what_the_earlier_had_finished(tmp_path: Path) -> None:
    with one_rank(tmp_path, ended=40) as journal:
        for step in range(3):
            journal.step(step, T + 10 + 10 * step, 10, 0, 10, 0)
    supervisor(
        tmp_path,
        (1000, "invocation", {"ranks": 1}),
        (1001, "launch", {"attempt": 1}),
        (1030, "ended", {"result": "stopped"}),
    )
    with Journal(tmp_path, 1) as journal:
        journal.event("ready", t=T + 1005)
        journal.span("checkpoint", T + 1005, T + 1007, step=1)
        journal.step(2, T + 1007, 10, 5, 5, 0)
        journal.step(3, T + 1017, 10, 0, 10, 0)
        journal.span("checkpoint", T + 1027, T + 1030, step=3)
    account = merge(tmp_path)
    assert causes(account) == {"startup": 15, "compute": 40, "redo": 12, "checkpoint": 3}
    assert account.wall_s == 70
    assert [i.result for i in account.invocations] == ["done", "stopped"]


def test_a_rollback_inside_an_attempt_is_redone_work(tmp_path: Path) -> None:
    with one_rank(tmp_path, ended=50) as journal:
        for at, step in enumerate([0, 1, 1, 2]):
            journal.step(step, T + 10 + 10 * at, 10, 0, 10, 0)
    assert causes(merge(tmp_path)) == {"startup": 10, "compute": 30, "redo": 10}


def test_a_rank_that_an_attempt_goes_without_is_down(tmp_path: Path) -> None:
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 2}),
        (0, "launch", {"attempt": 0}),
        (20, "fault", {"attempt": 0, "rank": 1, "reason": "lost"}),
        (21, "launch", {"attempt": 1}),
        (50, "ended", {"result": "done"}),
    )
    for attempt, rank, ready in [(0, 0, 10), (0, 1, 10), (1, 0, 30)]:
        with Journal(tmp_path, attempt, range(rank, rank + 1)) as journal:
            journal.event("ready", t=T + ready)
            journal.step(attempt, T + ready, 10, 0, 10, 0)
    account = merge(tmp_path)
    assert causes(account, 0) == {"startup": 10, "compute": 20, "down": 10, "unexplained": 10}
    assert causes(account, 1) == {"startup": 10, "compute": 10, "down": 30}


def test_a_fault_before_ready_is_startup_and_then_down(tmp_path: Path) -> None:
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 1}),
        (1, "launch", {"attempt": 0}),
        (20, "fault", {"attempt": 0, "reason": "import error"}),
        (21, "launch", {"attempt": 1}),
        (30, "fault", {"attempt": 1, "reason": "import error"}),
        (32, "ended", {"result": "failed"}),
    )
    with Journal(tmp_path, 0) as journal:
        journal.event("start", t=T + 2)
    assert causes(merge(tmp_path)) == {"startup": 20, "down": 12}


def test_a_restart_without_a_fault_is_startup(tmp_path: Path) -> None:
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 1}),
        (0, "launch", {"attempt": 0}),
        (25, "launch", {"attempt": 1}),
        (45, "ended", {"result": "done"}),
    )
    for attempt, ready in [(0, 10), (1, 35)]:
        with Journal(tmp_path, attempt) as journal:
            journal.event("ready", t=T + ready)
            journal.step(attempt, T + ready, 10, 0, 10, 0)
    assert causes(merge(tmp_path)) == {"startup": 20, "compute": 20, "unexplained": 5}


def test_never_ready_is_startup(tmp_path: Path) -> None:
    supervisor(tmp_path, (0, "invocation", {"ranks": 3}), (9, "ended", {"result": "stopped"}))
    assert causes(merge(tmp_path)) == {"startup": 27}


def test_a_killed_supervisor_ends_with_the_last_record_or_now(tmp_path: Path) -> None:
    supervisor(tmp_path, (0, "invocation", {"ranks": 1}), (0, "launch", {"attempt": 0}))
    with Journal(tmp_path, 0) as journal:
        journal.event("ready", t=T + 10)
        journal.step(0, T + 10, 20, 0, 20, 0)
    killed = merge(tmp_path)
    assert causes(killed) == {"startup": 10, "compute": 20}
    assert killed.invocations[0].result is None
    assert causes(merge(tmp_path, now=T + 35)) == {"startup": 10, "compute": 20, "unexplained": 5}
    # The next invocation started before the last orphan was gone: its window begins there.
    supervisor(tmp_path, (25, "invocation", {"ranks": 1}), (26, "ended", {"result": "stopped"}))
    both = merge(tmp_path, now=T + 99)
    assert causes(both) == {"startup": 11, "compute": 15}
    assert both.clipped_s == 5


def test_records_that_do_not_fit_are_clipped_and_counted(tmp_path: Path) -> None:
    one_rank(tmp_path, ended=40).close()
    # A writer refuses overlaps in its own files, so the spans come from a second one.
    with Journal(tmp_path, 0, range(4)) as journal:
        journal.step(0, T + 5, 10, 0, 10, 0)  # half before ready
        journal.step(1, T + 15, 10, 0, 20, 0)  # more compute than time
        journal.step(2, T + 35, 10, 2, 8, 0)  # half after the end
    with Journal(tmp_path, 0, range(1, 2)) as journal:
        journal.event("ready", t=T + 10)
        journal.span("evaluate", T + 16, T + 17, step=5)  # inside step 1
        journal.span("evaluate", T + 20, T + 26, step=5)  # five of six are inside step 1
    account = merge(tmp_path)
    common = {"startup": 10, "data_wait": 1}
    assert causes(account, 0) == {**common, "compute": 5 + 10 + 4, "unexplained": 10}
    assert causes(account, 1) == {**common, "compute": 19, "evaluate": 1, "unexplained": 9}
    # Two ranks never said that they were ready: their first record did.
    unsaid = {"startup": 5, "data_wait": 1, "compute": 24, "unexplained": 10}
    assert causes(account, 2) == causes(account, 3) == unsaid
    assert account.clipped_s == pytest.approx((5 + 5) + (5 + 5 + 1 + 5) + 2 * 5)


def test_a_range_of_ranks_counts_as_the_same_ranks_one_by_one(tmp_path: Path) -> None:
    def write(folder: Path, ranges: list[range], slow: range) -> Account:
        supervisor(
            folder,
            (0, "invocation", {"ranks": 6}),
            (0, "launch", {"attempt": 0}),
            (33, "ended", {"result": "done"}),
        )
        for ranks in [*ranges, slow]:
            wait = 1.0 if ranks == slow else 3.0
            with Journal(folder, 0, ranks) as journal:
                journal.event("ready", t=T + 2)
                for step in range(3):
                    journal.step(step, T + 2 + 10 * step, 10, 0.5, 9 - wait, wait)
                journal.span("checkpoint", T + 32, T + 33, step=2)
        return merge(folder)

    apart = write(tmp_path / "apart", [range(r, r + 1) for r in range(5)], slow=range(5, 6))
    together = write(tmp_path / "together", [range(5)], slow=range(5, 6))
    assert causes(together) == causes(apart)
    assert together.by_rank == apart.by_rank
    assert causes(together, 0)["peer_wait"] == 6
    assert "peer_wait" not in causes(together, 5)


def test_warm_up_after_ready_is_startup(tmp_path: Path) -> None:
    with one_rank(tmp_path, ended=30) as journal:
        journal.span("warmup", T + 10, T + 20)
        journal.step(0, T + 20, 10, 0, 10, 0)
    assert causes(merge(tmp_path)) == {"startup": 20, "compute": 10}


def test_without_the_supervisor_the_ranks_speak_for_themselves(tmp_path: Path) -> None:
    with one_rank(tmp_path) as journal:
        journal.step(0, T + 10, 10, 0, 10, 0)
    (tmp_path / "supervisor.events").unlink()
    account = merge(tmp_path)
    assert causes(account) == {"compute": 10}
    assert account.ranks == 1


def test_an_empty_journal_is_an_empty_account(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        account = merge(folder)
        assert (account.wall_s, account.ranks, account.last_step) == (0, 0, None)
        assert account.ledger.total == 0
        assert account.unexplained_share is None
    assert Cause.COMPUTE in account.ledger.seconds


def test_time_after_the_end_of_a_rank_is_shutdown_and_before_it_unexplained(tmp_path: Path) -> None:
    with one_rank(tmp_path, ended=30) as journal:
        journal.step(1, T + 10, 10, 0, 10, 0)
        journal.event("end", t=T + 22, result="done")
    assert causes(merge(tmp_path)) == {"compute": 10, "unexplained": 2, "startup": 10 + 8}


def test_pauses_are_down_before_between_and_after_attempts(tmp_path: Path) -> None:
    why = {"why": "until 06:00", "until": T + 20}
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 1}),
        (1, "paused", why),
        (11, "pause_over", {}),
        (12, "launch", {"attempt": 0}),
        (30, "paused", why),
        (70, "pause_over", {}),
        (71, "launch", {"attempt": 1}),
        (90, "paused", why),
        (99, "pause_over", {}),
        (100, "ended", {"result": "stopped"}),
    )
    for attempt, ready in ((0, 15), (1, 75)):
        with Journal(tmp_path, attempt) as journal:
            journal.event("ready", t=T + ready)
            journal.step(attempt, T + ready, 10, 0, 10, 0)
            journal.event("end", t=T + ready + 12, result="stopped")
    account = merge(tmp_path)
    # 10 + 40 + 9 of pauses; starting, and ending after `end`, around them; 2 after each step.
    assert causes(account) == {"compute": 20, "down": 59, "startup": 17, "unexplained": 4}
    assert [round(p.end - p.start) for p in account.invocations[0].pauses] == [10, 40, 9]


def test_a_pause_whose_end_was_not_written_lasts_as_long_as_its_invocation(tmp_path: Path) -> None:
    paused = (5, "paused", {"why": "", "until": T})
    supervisor(tmp_path, (0, "invocation", {"ranks": 2}), paused, (9, "ended", {"result": "x"}))
    assert causes(merge(tmp_path)) == {"startup": 10, "down": 8}


def test_a_fault_before_a_pause_keeps_its_time(tmp_path: Path) -> None:
    supervisor(
        tmp_path,
        (0, "invocation", {"ranks": 1}),
        (1, "launch", {"attempt": 0}),
        (30, "fault", {"attempt": 0, "rank": 0, "reason": "x", "since": T + 28}),
        (35, "paused", {"why": "", "until": T}),
        (60, "pause_over", {}),
        (61, "launch", {"attempt": 1}),
        (90, "ended", {"result": "done"}),
    )
    for attempt, ready in ((0, 10), (1, 70)):
        with Journal(tmp_path, attempt) as journal:
            journal.event("ready", t=T + ready)
            journal.step(attempt, T + ready, 18, 0, 18, 0)
    found = causes(merge(tmp_path))
    # To the fault as ever; its time until the pause and the pause are `down`, then a start.
    assert found == {"compute": 36, "startup": 20, "down": 32, "unexplained": 2}
