"""Random mixtures of delays on journals made by hand: the merged ledger finds each under its cause.

Ranks work side by side as real ones do: who is ready first waits for the last in the exchange, and
inside forward and backward for its peers, which only traces of some steps can tell.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.causes import Cause
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import merge

START_S = 1.0  # of every rank
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a journal waits for its disk
some = st.floats(0.0, 2.0)


@dataclass(frozen=True)
class Step:
    """Seconds; lists by rank."""

    fetch: list[float]
    slow: list[float]  # what a rank computes beyond the others
    link: float  # that the exchange takes all ranks
    unseen: list[float]  # that nobody measures
    save: float  # after the step, of all ranks


def steps(ranks: int) -> st.SearchStrategy[list[Step]]:
    each = st.lists(some, min_size=ranks, max_size=ranks)
    return st.lists(st.builds(Step, each, each, some, each, some), min_size=1, max_size=12)


@dataclass(frozen=True)
class Inside:
    """Seconds inside every `compute` of 4 s."""

    bubble: float
    link: float
    late: list[float]  # how much later than the first each rank comes to the collective


mixtures = st.integers(2, 4).flatmap(
    lambda ranks: st.tuples(
        steps(ranks),
        st.builds(
            Inside,
            st.floats(0, 1),
            st.floats(0, 1),
            st.lists(st.floats(0, 1), min_size=ranks, max_size=ranks),
        ),
        st.integers(1, 4),
    )
)


@settings(max_examples=40, deadline=None)
@given(mixtures)
def test_every_delay_is_found_under_its_cause(
    mixture: tuple[list[Step], Inside, int],
) -> None:
    work, inside, every = mixture
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        truth = write(Path(folder), work, inside, every)
        account = merge(Path(folder))
    found = account.ledger.seconds
    assert found == pytest.approx({**dict.fromkeys(Cause, 0.0), **truth}, rel=1e-3, abs=2e-3)
    assert account.clipped_s == 0


COMPUTE_S = 4.0


def write(folder: Path, work: list[Step], inside: Inside, every: int) -> dict[Cause, float]:
    """The journal of the mixture, and what it is made of."""
    ranks = len(inside.late)
    journals = [Journal(folder, 0, range(rank, rank + 1)) for rank in range(ranks)]
    supervisor = SupervisorJournal(folder, clock=lambda: 0.0)
    supervisor.event("invocation", ranks=ranks)
    supervisor.event("launch", attempt=0)
    for journal in journals:
        journal.event("ready", t=START_S, synced=False)
    truth = dict.fromkeys(Cause, 0.0)
    truth[Cause.STARTUP] = START_S * ranks
    # The later a rank comes to the collective, the less it waits there.
    waits = [max(inside.late) - late for late in inside.late]
    at = START_S
    for number, step in enumerate(work, 1):
        own = [
            fetch + COMPUTE_S * _longer(slow) + unseen
            for fetch, slow, unseen in zip(step.fetch, step.slow, step.unseen, strict=True)
        ]
        total = max(own) + step.link
        for rank, journal in enumerate(journals):
            compute = COMPUTE_S * _longer(step.slow[rank])
            exchange = total - own[rank]
            journal.step(number, at, total, step.fetch[rank], compute, exchange)
            split = {
                "compute": COMPUTE_S - inside.bubble - inside.link - waits[rank],
                "bubble": inside.bubble,
                "collectives": [inside.link + waits[rank]],
            }
            share = compute / COMPUTE_S
            truth[Cause.COMPUTE] += split["compute"] * share
            truth[Cause.BUBBLE] += inside.bubble * share
            truth[Cause.COMMUNICATE] += inside.link * share + step.link
            truth[Cause.PEER_WAIT] += waits[rank] * share + exchange - step.link
            truth[Cause.DATA_WAIT] += step.fetch[rank]
            truth[Cause.UNEXPLAINED] += step.unseen[rank]
            if number == 1 or number % every == 0:
                journal.event(
                    "trace", t=at, synced=False, step=number, split=split, count=1,
                    peers=[0, ranks - 1],
                )  # fmt: skip
        at += total
        if step.save:
            for journal in journals:
                journal.span("checkpoint", at, at + step.save, synced=False, step=number)
            truth[Cause.CHECKPOINT] += step.save * ranks
            at += step.save
    for journal in journals:
        journal.event("end", t=at, synced=False, result="done")
        journal.close()
    supervisor.event("ended", t=at, result="done")
    supervisor.close()
    return truth


def _longer(slow: float) -> float:
    """A rank that is slower is so in all that it computes."""
    return 1 + slow / 4
