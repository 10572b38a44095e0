"""A journal that is read while its ranks write on."""

from pathlib import Path

import numpy as np
import pytest

from penstock.ledger import history
from penstock.ledger.journal.steps import LeastExchange
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import merge

T = 1_700_000_000.0


def test_a_step_that_was_not_taken_in_waits_for_nobody() -> None:
    least = LeastExchange(np.array([1, 2, 4]), np.array([0.1, 0.2, 0.4]))
    numbers, own = np.array([1, 2, 3, 5]), np.array([0.5, 0.1, 0.3, 0.7])
    assert least.least_for(numbers, own).tolist() == [0.1, 0.1, 0.3, 0.7]
    assert LeastExchange().least_for(numbers, own).tolist() == own.tolist()


def test_a_rank_that_writes_on_between_the_two_readings_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = SupervisorJournal(tmp_path)
    supervisor.event("invocation", t=T, ranks=2)
    supervisor.event("launch", t=T, attempt=0)
    supervisor.close()
    journals = [Journal(tmp_path, 0, range(rank, rank + 1)) for rank in range(2)]

    def steps(first: int, last: int) -> None:
        for journal in journals:
            for step in range(first, last):
                journal.step(step, T + 2 * step, 2, fetch=0.0, compute=1.5, exchange=0.5)

    for journal in journals:
        journal.event("start", t=T)
        journal.event("ready", t=T)
    steps(1, 4)
    whole = history.read_history

    def then_more(*arguments: object) -> object:
        found = whole(*arguments)  # type: ignore[arg-type]
        steps(4, 9)
        return found

    monkeypatch.setattr("penstock.ledger.merge.read_history", then_more)
    account = merge(tmp_path, now=T + 30)
    assert account.ledger.total == pytest.approx(account.wall_s * 2)
    for journal in journals:
        journal.close()
