"""The supervisor's part of live mode over processes that are only numbers."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch.distributed as dist

from penstock.launch.supervisor import quorum as module
from penstock.launch.supervisor.quorum import Quorum
from penstock.ledger.journal.events import JournalEvent, RankEnded
from penstock.train.replicas.membership import ReplicaMembership


class FakeRanks:
    """Stands in for processes, their records and the supervisor's journal."""

    attempt = 0

    def __init__(self, ranks: int) -> None:
        self.found: dict[int, int | None] = dict.fromkeys(range(ranks))
        self.lives = dict.fromkeys(range(ranks), 0)
        self.words: dict[int, RankEnded] = {}
        self.passed = dict.fromkeys(range(ranks), 0)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def exit_codes(self) -> dict[int, int | None]:
        return dict(self.found)

    def end_ranks(self, ranks: Iterable[int] | None = None) -> None:
        for rank in list(self.found) if ranks is None else ranks:
            self.found[rank] = -9 if self.found[rank] is None else self.found[rank]

    def start(self, rank: int, life: int) -> None:
        assert self.found[rank] is not None, "it lives"
        self.found[rank], self.lives[rank] = None, life

    def end_record(self, rank: int) -> RankEnded | None:
        return self.words.get(rank)

    def step_count(self, rank: int) -> int:
        return self.passed[rank]

    def write(self, event: JournalEvent, *, t: float | None = None) -> None:
        self.events.append((event.kind, event.to_payload()))


def made(
    replicas: int, each: int, restarts_allowed: int = 1
) -> tuple[Quorum, FakeRanks, ReplicaMembership]:
    store = dist.HashStore()
    ranks, membership = FakeRanks(replicas * each), ReplicaMembership(store, "attempt-0")
    quorum = Quorum(
        membership=membership,
        processes=ranks,  # type: ignore[arg-type]
        records=ranks,  # type: ignore[arg-type]
        replicas=replicas,
        ranks_per_replica=each,
        restarts_allowed=restarts_allowed,
        start=ranks.start,
        journal=ranks,  # type: ignore[arg-type]
        show_fault=lambda rank, reason, action: None,
    )
    return quorum, ranks, membership


def test_the_rest_of_the_replica_is_ended_and_started_again() -> None:
    quorum, ranks, membership = made(2, 2)
    ranks.found[3] = -9
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().members == (0,)
    assert ranks.lives == {0: 0, 1: 0, 2: 1, 3: 1}
    ((_, lost), *_) = ranks.events
    assert (lost["ranks"], lost["rank"]) == ([2, 3], 3)
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().number == 1
    membership.announce_ready(1, 1)
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().members == (0, 1)


def test_of_several_dead_the_one_that_was_killed_is_the_reason() -> None:
    quorum, ranks, _ = made(2, 2)
    ranks.found[2], ranks.found[3] = 1, -9
    quorum.update(ranks.exit_codes())
    assert "SIGKILL" in ranks.events[0][1]["reason"]


@pytest.mark.parametrize("result", ["refused", "oom"])
def test_what_would_fail_again_ends_the_attempt(result: str) -> None:
    quorum, ranks, _ = made(2, 1)
    ranks.found[1], ranks.words[1] = 1, RankEnded(result=result, error="no room")
    assert not quorum.update(ranks.exit_codes())
    assert quorum.end_reason == "no room"


def test_it_goes_on_until_the_last_member_has_ended() -> None:
    quorum, ranks, membership = made(2, 1)
    membership.mark_finished(9)
    ranks.found[0] = 0
    assert quorum.update(ranks.exit_codes())
    ranks.found[1] = -9  # after all was over: no reason to start anything
    assert not quorum.update(ranks.exit_codes())
    assert quorum.finished_ranks(ranks.exit_codes()) == [0]
    assert not quorum.end_reason
    assert ranks.lives[1] == 0


def test_one_that_is_still_starting_does_not_hold_up_the_end() -> None:
    quorum, ranks, _ = made(2, 1)
    ranks.found[1] = -9
    assert quorum.update(ranks.exit_codes())
    ranks.found[0] = 0
    assert not quorum.update(ranks.exit_codes())
    assert quorum.finished_ranks(ranks.exit_codes()) == [0]


def test_a_break_without_a_death_is_given_time_and_then_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    quorum, ranks, membership = made(2, 1)
    membership.report_broken(0, step=4)
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().number == 0
    clock[0] += 2 * module.DEATH_S
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().number == 1
    assert membership.latest().members == (0, 1)
    assert quorum.update(ranks.exit_codes())
    assert membership.latest().number == 1


def test_a_rank_that_hangs_takes_its_replica_along() -> None:
    quorum, ranks, membership = made(2, 2)
    assert quorum.drop_ranks([1], "hang", since=5.0)
    assert membership.latest().members == (1,)
    assert ranks.lives == {0: 1, 1: 1, 2: 0, 3: 0}
    assert ranks.events[0][1]["since"] == 5.0
    assert not quorum.drop_ranks([2], "hang", since=6.0)
    assert quorum.end_reason
