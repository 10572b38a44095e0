"""Digests of long journals against their steps, as they grow and when they are replaced."""

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_ledger_merge_any import SEEDS, Play, check_the_sum, damage

from penstock.ledger import block_records
from penstock.ledger.causes import Cause
from penstock.ledger.history import read_history
from penstock.ledger.journal import digest, follow
from penstock.ledger.journal.follow import reader_of
from penstock.ledger.journal.read import read_steps
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import Account, account_of, merge
from penstock.ledger.over_time import causes_over_time

T = 1_700_000_000.0


def by_steps(folder: Path | str) -> Account:
    """The account with every step read, and nothing remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_records.BlockRecords, "timeline", lambda *_, **__: None)
        follow._readers.clear()
        return account_of(read_history(folder))


def same(one: Account, other: Account, within: float = 1e-6) -> None:
    for mine, theirs in zip(one.by_rank, other.by_rank, strict=True):
        for cause in Cause:
            expected = pytest.approx(theirs.seconds[cause], abs=within * max(1, theirs.total))
            assert mine.seconds[cause] == expected, cause
    assert (one.last_step, one.invocations) == (other.last_step, other.invocations)


def begin(folder: Path, ranks: int = 2) -> list[Journal]:
    supervisor = SupervisorJournal(folder)
    supervisor.event("invocation", t=T, ranks=ranks)
    supervisor.event("launch", t=T, attempt=0)
    supervisor.close()
    journals = [Journal(folder, 0, range(rank, rank + 1)) for rank in range(ranks)]
    for journal in journals:
        journal.event("ready", t=T + 1)
    return journals


def step_on(journals: list[Journal], numbers: range, rng: Random) -> None:
    for number in numbers:
        at = max(T + 1, *(journal.busy_until for journal in journals))
        for journal in journals:
            parts = [rng.uniform(0, 0.3) for _ in range(4)]
            journal.step(number, at, sum(parts) + rng.uniform(0, 0.1), *parts)
        if rng.random() < 0.05:
            at = max(journal.busy_until for journal in journals)
            for journal in journals:
                journal.span("checkpoint", at, at + rng.uniform(0, 2), step=number)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
@example(2030, True)  # a damaged `ready` that has an end
def test_it_is_what_the_steps_say(seed: int, damaged: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        rng = Random(seed)
        Play(Path(name), rng)
        for path in sorted(Path(name).iterdir()):
            if damaged and rng.random() < 0.3:
                damage(path, rng)
        same(merge(name), by_steps(name))


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(2, 40))
def test_large_blocks_say_the_same_and_grow_to_the_same(seed: int, most: int) -> None:
    rng = Random(seed)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "MOST_BLOCKS", most)
        patch.setattr(digest, "CHUNK", rng.randint(1, 200))
        journals, number = begin(Path(name)), 1
        while number < 300:  # looked at now and then, and sometimes it goes back
            first = max(1, number - rng.choice([0, 0, 0, 7]))
            number = first + rng.randint(1, 120)
            step_on(journals, range(first, number), rng)
            check_the_sum(merge(name))
        grown = merge(name)
        files = [f for f in reader_of(name).files if f.kind == "steps"]
        blocks = read_history(name)[0][1][0].steps_done.blocks
        assert all(len(blocks[file].rows) <= most and blocks[file].regular for file in files)
        times = causes_over_time(read_history(name), 50).seconds.sum(axis=0)
        same(grown, by_steps(name))
        assert times.tolist() == pytest.approx(list(grown.ledger.seconds.values()), abs=1e-3)
        for journal in journals:
            journal.close()


def test_only_new_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journals, rng = begin(tmp_path), Random(1)
    step_on(journals, range(1, 50), rng)
    merge(tmp_path)
    taken: list[int] = []
    whole = digest.StepDigest._take

    def counted(self: digest.StepDigest, records: np.ndarray, *rest: object) -> None:
        taken.append(len(records))
        whole(self, records, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(digest.StepDigest, "_take", counted)
    step_on(journals, range(50, 53), rng)
    merge(tmp_path)
    assert taken == [3, 3]
    merge(tmp_path)
    assert taken == [3, 3]


def test_a_file_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    for last in (60, 5):
        for old in tmp_path.iterdir():
            old.unlink()
        journals = begin(tmp_path)
        step_on(journals, range(1, last), Random(last))
        for journal in journals:
            journal.close()
        found = merge(tmp_path)
        assert found.last_step == last - 1
        same(found, by_steps(tmp_path))


def test_a_torn_record_is_read_when_it_is_whole(tmp_path: Path) -> None:
    step_on(journals := begin(tmp_path), range(1, 10), Random(3))
    for journal in journals:
        journal.close()
    path = tmp_path / "a0000-r00000.steps"
    data = path.read_bytes()
    for cut in (0, 30, 64, 65, len(data) - 31, len(data) - 1, len(data)):
        path.write_bytes(data[:cut])
        same(merge(tmp_path), by_steps(tmp_path))
    assert len(read_steps(path)) == 9


def test_a_long_journal_answers_by_rollups_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_on(begin(tmp_path, ranks=3), range(1, 600), Random(5))
    monkeypatch.setattr(follow, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(follow, "QUICK_S", -1.0)
    first = account_of(read_history(tmp_path, quick=True))
    exact = by_steps(tmp_path)
    assert not first.exact
    assert exact.exact
    check_the_sum(first)
    waits = Cause.PEER_WAIT, Cause.COMMUNICATE
    for cause in Cause:
        if cause not in waits:
            assert first.ledger.seconds[cause] == pytest.approx(
                exact.ledger.seconds[cause], abs=1e-3 * exact.ledger.total
            ), cause
    assert first.ledger.share(*waits) == pytest.approx(exact.ledger.share(*waits), abs=1e-3)
    assert first.ledger.seconds[Cause.COMMUNICATE] >= exact.ledger.seconds[Cause.COMMUNICATE]
    monkeypatch.setattr(follow, "QUICK_S", 60.0)
    same(account_of(read_history(tmp_path, quick=True)), exact)


def test_a_rank_that_goes_back_is_down_until_its_next_step(tmp_path: Path) -> None:
    (journal,) = begin(tmp_path, ranks=1)
    journal.step(1, T + 1, 4, 0, 4, 0)
    journal.span("rollback", T + 5, T + 6)
    journal.step(1, T + 8, 4, 0, 4, 0)
    journal.step(2, T + 12, 4, 0, 4, 0)
    found = merge(tmp_path)
    assert found.ledger.seconds[Cause.DOWN] == pytest.approx(3)
    assert found.ledger.seconds[Cause.REDO] == pytest.approx(4)
    same(found, by_steps(tmp_path))
