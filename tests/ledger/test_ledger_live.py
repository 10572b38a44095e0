"""Ranks that are lost and come back while the others of their attempt go on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.journal.read import read_events, read_steps
from penstock.ledger.journal.records import HEADER, ROLLUP_STEPS
from penstock.ledger.journal.rollups import totals
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import Account, merge

T = 1_700_000_000.0


def supervised(folder: Path, losses: list[tuple[float, int, int]], ranks: int = 2) -> None:
    """Attempt 0 from 1 to 100, and when it lost which ranks."""
    journal = SupervisorJournal(folder)
    journal.event("invocation", t=T, ranks=ranks)
    journal.event("launch", t=T + 1, attempt=0)
    for t, first, last in losses:
        journal.event("lost", t=T + t, attempt=0, ranks=[first, last])
    journal.event("ended", t=T + 100, result="done")
    journal.close()


def causes(account: Account, rank: int) -> dict[str, object]:
    assert account.ledger.total == pytest.approx(100 * account.ranks, rel=1e-9)
    seconds = account.by_rank[rank].seconds
    return {c.value: pytest.approx(s, abs=1e-5) for c, s in seconds.items() if s > 1e-6}


def test_the_lost_rank_is_down_until_it_is_ready_and_the_other_lost_a_step(tmp_path: Path) -> None:
    supervised(tmp_path, [(35, 1, 1)])
    with Journal(tmp_path, 0, range(1)) as stays:
        stays.event("ready", t=T + 10)
        stays.step(1, T + 10, 20, 0, 15, 5)
        stays.span("lost", T + 30, T + 36)
        stays.span("regroup", T + 36, T + 37)  # and a second until the next step
        stays.step(2, T + 38, 42, 0, 42, 0)
        stays.step(3, T + 80, 15, 0, 14, 1)
        stays.event("end", t=T + 95)
    with Journal(tmp_path, 0, range(1, 2)) as first:
        first.event("ready", t=T + 10)
        first.step(1, T + 10, 20, 0, 15, 5)
    with Journal(tmp_path, 0, range(1, 2), again=True) as second:
        second.event("start", t=T + 36)
        second.span("warmup", T + 70, T + 75)
        second.event("ready", t=T + 80)
        second.step(3, T + 80, 15, 0, 14, 1)
        second.event("end", t=T + 95)
    account = merge(tmp_path)
    assert causes(account, 0) == {
        "compute": 15 + 42 + 14,
        "communicate": 6,
        "redo": 6,
        "down": 2,
        "startup": 10 + 5,
    }
    assert causes(account, 1) == {
        "compute": 15 + 14,
        "communicate": 6,
        "redo": 5,  # from the end of step 1 to its death
        "down": 45,
        "startup": 10 + 5,
    }
    assert account.clipped_s == 0


def test_a_rank_that_is_lost_for_good_is_down_to_the_end(tmp_path: Path) -> None:
    supervised(tmp_path, [(30, 1, 1)])
    for rank in range(2):
        with Journal(tmp_path, 0, range(rank, rank + 1)) as journal:
            journal.event("ready", t=T + 10)
            journal.step(1, T + 10, 20, 0, 20, 0)
            if rank == 0:
                journal.step(2, T + 30, 70, 0, 70, 0)
    assert causes(merge(tmp_path), 1) == {"startup": 10, "compute": 20, "down": 70}


def test_a_line_that_does_not_say_whom_changes_nothing(tmp_path: Path) -> None:
    supervised(tmp_path, [(30, 5, 2)])
    assert merge(tmp_path).ledger.total == pytest.approx(200)


@given(st.lists(st.tuples(st.integers(0, 110), st.integers(0, 2), st.integers(0, 2)), max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_causes_add_up_whatever_is_lost(
    tmp_path_factory: pytest.TempPathFactory, losses: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("live")
    supervised(folder, [(float(t), a, b) for t, a, b in losses], ranks=3)
    for rank in range(3):
        with Journal(folder, 0, range(rank, rank + 1)) as journal:
            for t in range(5, 95, 10):
                journal.event("ready", t=T + t)
                journal.step(t, T + t, 8, 1, 4, 2)
    account = merge(folder)
    assert account.ledger.total == pytest.approx(300, rel=1e-9)


@pytest.mark.parametrize("steps", [3, ROLLUP_STEPS - 1, ROLLUP_STEPS, 2 * ROLLUP_STEPS + 5])
@pytest.mark.parametrize("torn", [0, 7])
def test_a_second_life_writes_on_behind_the_last_whole_record(
    tmp_path: Path, steps: int, torn: int
) -> None:
    with Journal(tmp_path, 0) as first:
        for step in range(steps):
            first.step(step, T + step, 0.5, 0.1, 0.2, 0.1)
    if torn:
        for kind in ("steps", "events"):
            with (tmp_path / f"a0000-r00000.{kind}").open("ab") as file:
                file.write(b'{"t": 1'[:torn])
        rollups = tmp_path / "a0000-r00000.rollups"
        if rollups.exists():
            rollups.write_bytes(rollups.read_bytes()[:-3])  # its last one is made again
    more = ROLLUP_STEPS + 3
    with Journal(tmp_path, 0, again=True) as second:
        second.event("start")
        for step in range(steps, steps + more):
            second.step(step, T + step, 0.5, 0.1, 0.2, 0.1)
    path = tmp_path / "a0000-r00000.steps"
    assert read_steps(path)["step"].tolist() == list(range(steps + more))
    assert [e.kind for e in read_events(path.with_suffix(".events"))] == ["start"]
    added = totals(path)
    assert added is not None
    assert added.steps == steps + more
    assert added.total_s == pytest.approx(0.5 * (steps + more))
    rollups = np.fromfile(path.with_suffix(".rollups"), np.uint8)
    assert (len(rollups) - HEADER.size) // 64 == (steps + more) // ROLLUP_STEPS


def test_an_attempt_number_is_not_used_twice_by_accident(tmp_path: Path) -> None:
    Journal(tmp_path, 0).close()
    with pytest.raises(FileExistsError):
        Journal(tmp_path, 0)
