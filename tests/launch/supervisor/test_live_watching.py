"""Watching ranks that are started again: their last life does not count against them."""

from pathlib import Path

from penstock.guard.detect.pulse import Pulse
from penstock.launch.supervisor.watcher import STEPS_S, Watcher
from penstock.ledger.journal.writer import Journal
from penstock.policy.straggler import FEWEST_STEPS


def test_a_new_process_is_not_taken_for_the_one_that_hung(tmp_path: Path) -> None:
    clock = [0.0]
    watcher = Watcher(tmp_path, tmp_path, 0, 2, timeout_s=20.0, clock=lambda: clock[0])
    for rank in range(2):
        Pulse(tmp_path, rank, 0).at("forward", 8)
    assert watcher.find_hang([0, 1]) is None
    clock[0] = 500.0
    Pulse(tmp_path, 0, 0).at("reduce", 8)
    assert watcher.find_hang([0, 1], stopped=[1]) is not None
    watcher.rank_started(1)
    assert watcher.find_hang([0, 1]) is None


def test_steps_that_a_rank_did_alone_say_nothing_about_it(tmp_path: Path) -> None:
    clock = [0.0]
    watcher = Watcher(tmp_path, tmp_path, 0, 2, timeout_s=20.0, clock=lambda: clock[0])
    both = range(1, 2 * FEWEST_STEPS)
    alone = range(both.stop, both.stop + FEWEST_STEPS)
    for rank in range(2):
        with Journal(tmp_path, 0, range(rank, rank + 1)) as journal:
            for step in both:
                journal.step(step, float(step), 0.5, 0.0, 0.4, 0.1)
            for step in alone if rank == 0 else ():
                journal.step(step, float(step), 0.9, 0.0, 0.9, 0.0)
    clock[0] = 2 * STEPS_S
    assert watcher.straggler_changes() == []
