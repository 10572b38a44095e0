"""How `compute` divides by traces: the least of the peers is communication, the rest waiting."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal_lines import line_of
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import StepTraced
from penstock.ledger.journal.read import JournalLine, LineOf, lines_of, read_events
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import merge
from penstock.ledger.split import UNTRACED, ComputeSplits

Traced = LineOf[StepTraced]


def traced(line: JournalLine) -> Traced:
    (same,) = lines_of([line], StepTraced)
    return same


def trace(rank: int, step: int = 1, peers: tuple[int, int] = (0, 1), **split: Any) -> Traced:
    cells = split.get("collectives", [])
    payload = {"step": step, "split": split, "count": len(cells), "peers": list(peers)}
    payload["stage"] = [0, 3]
    return traced(line_of(0.0, "trace", None, 0, range(rank, rank + 1), payload))


def test_nothing_traced_is_all_compute() -> None:
    assert ComputeSplits.of([]).shares(0) == UNTRACED == {Cause.COMPUTE: 1.0}


def test_of_a_collective_the_least_is_communication_and_the_rest_waiting() -> None:
    """Each waits for the other once: neither of the sums would show it."""
    splits = ComputeSplits.of(
        [
            trace(0, compute=6.0, idle=1.0, collectives=[2.0, 1.0]),
            trace(1, compute=7.0, collectives=[1.0, 2.0]),
        ]
    )
    for rank in (0, 1):
        shares = splits.shares(rank)
        assert shares[Cause.COMPUTE] == pytest.approx(0.7)
        assert shares[Cause.COMMUNICATE] == pytest.approx(0.2)
        assert shares[Cause.PEER_WAIT] == pytest.approx(0.1)


def test_only_peers_in_the_same_step_are_compared() -> None:
    splits = ComputeSplits.of(
        [
            trace(0, step=1, collectives=[4.0], compute=6.0),
            trace(1, step=2, collectives=[1.0], compute=9.0),
            trace(2, step=1, collectives=[2.0], compute=8.0, peers=(2, 3)),
        ]
    )
    assert splits.shares(0)[Cause.COMMUNICATE] == pytest.approx(0.4)
    assert splits.shares(0)[Cause.PEER_WAIT] == 0


def test_a_rank_that_was_not_traced_is_like_those_with_equal_work() -> None:
    splits = ComputeSplits.of(
        [trace(0, compute=1.0, bubble=1.0), trace(1, compute=3.0, bubble=1.0)]
    )
    assert splits.shares(3)[Cause.BUBBLE] == pytest.approx(2 / 6)
    assert splits.shares(4) == UNTRACED


def test_of_many_traces_some_are_looked_at_from_all_of_the_run() -> None:
    found = [trace(0, step=n, compute=1.0, bubble=1.0 if n >= 500 else 0.0) for n in range(1000)]
    assert ComputeSplits.of(found).shares(0)[Cause.BUBBLE] == pytest.approx(1 / 3, rel=0.05)


seconds = st.floats(0, 100)
lines = st.builds(
    trace,
    st.integers(0, 5),
    st.integers(0, 2),
    st.just((0, 5)),
    compute=seconds,
    idle=seconds,
    bubble=seconds,
    calls=seconds,
    collectives=st.lists(seconds, max_size=4),
)


@given(st.lists(lines, max_size=12))
def test_shares_of_any_traces_add_up_to_one(found: list[Traced]) -> None:
    splits = ComputeSplits.of(found)
    for rank in range(7):
        shares = splits.shares(rank)
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) >= 0


garbage = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["step", "split", "count", "peers", "stage", "compute", "collectives"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["step", "split", "count", "peers", "stage"]), garbage))
def test_a_damaged_line_says_nothing(payload: dict[str, Any]) -> None:
    line = traced(line_of(0.0, "trace", ranks=range(1), payload=payload))
    shares = ComputeSplits.of([line, trace(0, compute=1.0)]).shares(0)
    assert sum(shares.values()) == pytest.approx(1)


def test_the_merge_divides_what_a_rank_computed(tmp_path: Path) -> None:
    supervisor = SupervisorJournal(tmp_path, clock=lambda: 0.0)
    supervisor.event("invocation", ranks=2)
    supervisor.event("launch", attempt=0)
    for rank, (own, waited) in enumerate([(6.0, 3.0), (8.0, 1.0)]):
        with Journal(tmp_path, 0, range(rank, rank + 1)) as journal:
            journal.event("ready", t=0.0)
            for step in range(10):
                journal.step(step, step * 10.0, 10.0, 0.0, 10.0, 0.0)
            split = {"compute": own, "bubble": 1.0, "collectives": [waited]}
            journal.event("trace", t=5.0, synced=False, step=1, split=split, count=1, peers=[0, 1])
            journal.event("end", t=100.0, result="done")
    supervisor.event("ended", t=100.0, result="done")
    ledger = merge(tmp_path).ledger
    assert ledger.seconds[Cause.COMPUTE] == pytest.approx(60 + 80)
    assert ledger.seconds[Cause.BUBBLE] == pytest.approx(20)
    assert ledger.seconds[Cause.COMMUNICATE] == pytest.approx(20)
    assert ledger.seconds[Cause.PEER_WAIT] == pytest.approx(20)
    assert ledger.total == pytest.approx(200)


def test_a_step_that_a_save_held_up_says_so(tmp_path: Path) -> None:
    with Journal(tmp_path, 0) as journal:
        journal.event("ready", t=0.0)
        journal.step(1, 0.0, 10.0, 1.0, 6.0, 0.0, held=3.0)
        journal.step(2, 10.0, 8.0, 1.0, 7.0, 0.0, held=0.0005)  # not worth a line
        journal.event("end", t=18.0, result="done")
    (held,) = [e for e in read_events(tmp_path / "a0000-r00000.events") if e.kind == "held"]
    assert (held.t, held.end, held.payload) == (0.0, 3.0, {"step": 1})
    ledger = merge(tmp_path).ledger
    assert ledger.seconds[Cause.CHECKPOINT] == pytest.approx(3)
    assert ledger.seconds[Cause.COMPUTE] == pytest.approx(13)
    assert ledger.seconds[Cause.DATA_WAIT] == pytest.approx(2)
    assert ledger.seconds[Cause.UNEXPLAINED] == pytest.approx(0, abs=1e-6)
