"""Signs of life as a watcher takes them in: by its own clock, whatever the pulses say of time."""

from pathlib import Path

import pytest

from penstock.guard.detect import pulse
from penstock.guard.detect.pulse import Heartbeat
from penstock.launch.supervisor.watcher import Watcher
from penstock.ledger.journal.writer import Journal
from penstock.policy import hang
from penstock.policy.straggler import FEWEST_STEPS

ATTEMPT, TIMEOUT_S = 3, 120.0


class Bench:
    """A watcher of two ranks, with a clock that a test turns."""

    def __init__(self, folder: Path) -> None:
        self.t, self.folder = 1000.0, folder
        self.counts = [0, 0]
        self.watcher = Watcher(
            folder, folder / "journal", ATTEMPT, 2, TIMEOUT_S, clock=lambda: self.t
        )

    def beat(
        self, rank: int, phase: str, step: int, pid: int = 100, attempt: int = ATTEMPT
    ) -> None:
        self.counts[rank] += 1
        beat = Heartbeat(self.counts[rank], attempt, pid + rank, step, phase, t_mono=-1e9 * rank)
        pulse.write_heartbeat(self.folder, rank, beat)

    def look(self, after_s: float = 0.0, stopped: tuple[int, ...] = ()) -> hang.Hang | None:
        self.t += after_s
        return self.watcher.find_hang([0, 1], stopped)

    def steps(self, count: int, slow: float = 1.0) -> None:
        for rank in range(2):
            with Journal(self.folder / "journal", ATTEMPT, range(rank, rank + 1)) as journal:
                own_s = 0.1 * (slow if rank == 1 else 1.0)
                for step in range(count):
                    journal.step(step, 10.0 * step, 0.3, 0.0, own_s, 0.3 - own_s)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_ranks_that_beat_never_hang_however_long(bench: Bench) -> None:
    bench.steps(10)
    for step in range(100):
        for rank in range(2):
            bench.beat(rank, "forward", step)
        assert bench.look(hang.FLOOR_S - 1) is None


def test_a_hang_is_seen_by_the_clock_of_the_watcher(bench: Bench) -> None:
    bench.steps(10)
    bench.beat(0, "reduce", 5)
    bench.beat(1, "forward", 5)
    assert bench.look() is None
    assert bench.look(hang.FLOOR_S - 1) is None
    found = bench.look(2.0)
    assert found is not None
    assert (found.ranks, found.phase, found.step) == ((1,), "forward", 5)
    assert found.still_s == pytest.approx(hang.FLOOR_S + 1)


def test_before_there_are_steps_it_waits_longer_but_not_for_one_that_is_stopped(
    bench: Bench,
) -> None:
    for rank in range(2):
        bench.beat(rank, "forward", 1)
    bench.look()
    assert bench.look(TIMEOUT_S + 1) is None
    found = bench.look(0.0, stopped=(1,))
    assert found is not None
    assert found.ranks == (1,)


def test_ranks_that_never_gave_a_sign_did_not_start(bench: Bench) -> None:
    bench.beat(0, "vote", 99, attempt=ATTEMPT - 1)  # of the attempt before
    assert bench.look(TIMEOUT_S - 1) is None
    found = bench.look(2.0)
    assert found is not None
    assert (found.phase, found.step) == ("start", 0)
    assert not bench.watcher.began_step


def test_a_rank_that_was_started_again_is_a_newcomer_until_it_steps(bench: Bench) -> None:
    for rank in range(2):
        bench.beat(rank, "forward", 5)
    bench.look()
    bench.beat(1, "build", 0, pid=200)
    bench.look()
    assert [s.newcomer for s in bench.watcher.rank_states([0, 1])] == [False, True]
    bench.beat(1, "fetch", 7, pid=200)
    bench.look()
    assert [s.newcomer for s in bench.watcher.rank_states([0, 1])] == [False, False]


@pytest.mark.parametrize(
    ("phase", "step", "begun"),
    [("warm_up", 8, False), ("ready", 8, False), ("evaluate", 0, False), ("fetch", 9, True)],
)
def test_work_begins_with_the_first_step(phase: str, step: int, begun: bool, bench: Bench) -> None:
    bench.beat(0, phase, step)
    bench.look()
    assert bench.watcher.began_step == begun
    bench.beat(0, "save", 9)
    bench.look()
    assert bench.watcher.began_step


def test_a_straggler_is_found_in_the_journal_and_told_once(bench: Bench) -> None:
    bench.steps(FEWEST_STEPS, slow=2.0)
    assert bench.watcher.straggler_changes() == []  # it was looked at only just now
    bench.t += 60.0
    (change,) = bench.watcher.straggler_changes()
    assert (change.rank, change.slow) == (1, True)
    assert change.factor == pytest.approx(2.0, rel=1e-3)
    bench.t += 60.0
    assert bench.watcher.straggler_changes() == []
