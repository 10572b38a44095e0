"""Where the time went, over time: the bins add up to the ledger, and each holds what was then."""

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ledger_merge_any import SEEDS, Play, damage

from penstock.ledger.causes import Cause
from penstock.ledger.history import read_history
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import account_of
from penstock.ledger.over_time import CausesOverTime, causes_over_time

T = 1_700_000_000.0


def made(folder: Path, **arguments: object) -> CausesOverTime:
    return causes_over_time(read_history(folder), **arguments)  # type: ignore[arg-type]


def row(found: CausesOverTime, place: int) -> dict[str, object]:
    return {
        cause.value: pytest.approx(seconds)
        for cause, seconds in zip(Cause, found.seconds[place].tolist(), strict=True)
        if seconds > 1e-6
    }


def two_ranks(folder: Path) -> None:
    """100 s: ready after 10, a step of 40, a checkpoint of 20, a step of 20, the end."""
    supervisor = SupervisorJournal(folder)
    supervisor.event("invocation", t=T, ranks=2)
    supervisor.event("launch", t=T, attempt=0)
    supervisor.event("ended", t=T + 100, result="done")
    supervisor.close()
    for rank in range(2):
        with Journal(folder, 0, range(rank, rank + 1)) as journal:
            journal.event("ready", t=T + 10)
            journal.step(1, T + 10, 40, 0, 30 - 10 * rank, 10 + 10 * rank)
            journal.span("checkpoint", T + 50, T + 70, step=1)
            journal.step(2, T + 70, 20, 20, 0, 0)
            journal.event("end", t=T + 90)


def test_every_bin_holds_what_was_then(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    found = made(tmp_path, bins=10)
    assert found.edges.tolist() == [T + 10 * i for i in range(11)]
    assert row(found, 0) == {"startup": 20}
    assert row(found, 1) == row(found, 4)
    assert row(found, 4) == {"compute": 12.5, "communicate": 5, "peer_wait": 2.5}
    assert row(found, 6) == {"checkpoint": 20}
    assert row(found, 8) == {"data_wait": 20}
    assert row(found, 9) == {"startup": 20}


def test_some_ranks(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    assert row(made(tmp_path, bins=10, ranks=range(1, 2)), 2) == {
        "compute": 5,
        "communicate": 2.5,
        "peer_wait": 2.5,
    }
    assert made(tmp_path, ranks=range(2, 9)).seconds.sum() == 0


def test_nothing_between_invocations(tmp_path: Path) -> None:
    supervisor = SupervisorJournal(tmp_path)
    for start in (T, T + 90):
        supervisor.event("invocation", t=start, ranks=3)
        supervisor.event("ended", t=start + 10, result="stopped")
    supervisor.close()
    found = made(tmp_path, bins=10).seconds.sum(axis=1)
    assert found.tolist() == pytest.approx([30, *[0] * 8, 30])


def test_an_empty_journal(tmp_path: Path) -> None:
    found = made(tmp_path, bins=7)
    assert (len(found.edges), found.seconds.shape, found.seconds.sum()) == (8, (7, len(Cause)), 0)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(1, 50), st.booleans())
def test_it_adds_up_to_the_ledger(seed: int, bins: int, damaged: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        rng = Random(seed)
        Play(Path(name), rng)
        for path in sorted(Path(name).iterdir()):
            if damaged and rng.random() < 0.3:
                damage(path, rng)
        history = read_history(name)
        whole, found = account_of(history), causes_over_time(history, bins)
        parts = [causes_over_time(history, bins, range(r, r + 1)).seconds for r in range(3)]
    sums = dict(zip(Cause, found.seconds.sum(axis=0).tolist(), strict=True))
    total = max(whole.ledger.total, 1e-3)
    for cause in Cause:
        assert sums[cause] == pytest.approx(whole.ledger.seconds[cause], abs=1e-3 * total), cause
    if whole.by_rank and len(whole.by_rank) <= 3:
        np.testing.assert_allclose(sum(parts), found.seconds, atol=1e-6 * total)
    # No bin holds more than its time; damaged lines may say that two invocations overlap.
    if not damaged:
        most = max(i.ranks for i in whole.invocations) * np.diff(found.edges)
        assert (found.seconds.sum(axis=1) <= most + 1e-5 * total).all()
