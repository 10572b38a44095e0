"""The merge on random histories: valid ones against what really happened, damaged ones for the sum.

Times are multiples of 1/8 s, which 32-bit durations hold exactly.
"""

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.causes import Cause
from penstock.ledger.journal.records import HEADER
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.ledger.merge import Account, merge

SEEDS = st.integers(0, 2**32)


class Play:
    """Writes the journal of a random run, and keeps the truth beside it."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self.folder, self.rng = folder, rng
        self.truth: dict[Cause, float] = defaultdict(float)
        self.exchanged: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.t, self.attempt, self.finished = 1_700_000_000.0, 0, -1
        for _ in range(rng.randint(1, 3)):
            supervisor = SupervisorJournal(folder)
            self.invocation(supervisor)
            supervisor.close()
            self.t += self.some(100)
        for spent in self.exchanged.values():
            self.truth[Cause.COMMUNICATE] += min(spent) * len(spent)
            self.truth[Cause.PEER_WAIT] += sum(spent) - min(spent) * len(spent)

    def some(self, most: float = 4) -> float:
        return self.rng.randint(0, int(most * 8)) / 8

    def invocation(self, supervisor: SupervisorJournal) -> None:
        ranks = self.rng.randint(1, 3)
        supervisor.event("invocation", t=self.t, ranks=ranks)
        waiting, faulted = Cause.STARTUP, True
        at = [self.t] * ranks  # up to where each rank's time is told
        while faulted and self.rng.random() < 0.8:
            self.t = max(at) + self.some()
            supervisor.event("launch", t=self.t, attempt=self.attempt)
            faulted = self.rng.random() < 0.6
            at = self.play_attempt(at, waiting, faulted)
            if faulted:
                supervisor.event("fault", t=at[0] + self.some(), attempt=self.attempt, since=at[0])
            waiting = Cause.DOWN
            self.attempt += 1
        gives_up = 5.0 if faulted else 0.0  # after the moment that the last fault was noticed
        self.t = at[0] + gives_up
        self.truth[waiting] += gives_up * ranks
        supervisor.event("ended", t=self.t, result="stopped")

    def play_attempt(self, at: list[float], waiting: Cause, faulted: bool) -> list[float]:
        first, count = self.rng.randint(0, self.finished + 1), self.rng.randint(0, 5)
        at = list(at)
        fates = [self.rng.choice(["works"] * 4 + ["unready", "absent"]) for _ in at]
        for rank, fate in enumerate(fates):
            if fate == "absent":
                continue
            with Journal(self.folder, self.attempt, range(rank, rank + 1)) as journal:
                journal.event("start", t=self.t)
                if fate == "works":
                    ready = self.t + self.some()
                    journal.event("ready", t=ready)
                    self.truth[waiting] += ready - at[rank]
                    at[rank] = ready
                    for step in range(first, first + count):
                        at[rank] = self.play_step(journal, step, at[rank])
        end = max(*at, self.t) + self.some()
        for told, fate in zip(at, fates, strict=True):
            tail = Cause.REDO if faulted else Cause.UNEXPLAINED
            self.truth[tail if fate == "works" else waiting] += end - told
        if count and "works" in fates:
            self.finished = max(self.finished, first + count - 1)
        return [end] * len(at)

    def play_step(self, journal: Journal, step: int, at: float) -> float:
        gap, rest = self.some(), self.some()
        fetch, compute, exchange, bubble = (self.some() for _ in range(4))
        total = fetch + compute + exchange + bubble + rest
        journal.step(step, at + gap, total, fetch, compute, exchange, bubble)
        self.truth[Cause.UNEXPLAINED] += gap
        if step <= self.finished:
            self.truth[Cause.REDO] += total
        else:
            self.truth[Cause.DATA_WAIT] += fetch
            self.truth[Cause.COMPUTE] += compute
            self.truth[Cause.BUBBLE] += bubble
            self.truth[Cause.UNEXPLAINED] += rest
            self.exchanged[journal.attempt, step].append(exchange)
        at += gap + total
        if self.rng.random() < 0.3:
            kind, held = self.rng.choice([Cause.EVALUATE, Cause.CHECKPOINT]), self.some()
            journal.span(kind.value, at, at + held, step=step)
            self.truth[Cause.REDO if step <= self.finished else kind] += held
            at += held
        return at


def check_the_sum(account: Account) -> None:
    windows = sum(i.window_s * i.ranks for i in account.invocations)
    assert account.ledger.total == pytest.approx(windows, rel=1e-6)
    assert sum(ledger.total for ledger in account.by_rank) == pytest.approx(windows, rel=1e-6)
    assert account.clipped_s >= 0


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_ledger_is_what_happened(seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        play = Play(Path(name), Random(seed))
        account = merge(name)
    check_the_sum(account)
    for cause in Cause:
        assert account.ledger.seconds[cause] == pytest.approx(play.truth[cause], abs=1e-6), cause
    assert account.last_step == (play.finished if play.finished >= 0 else None)
    assert account.clipped_s == 0


def junk_line(rng: Random) -> bytes:
    kinds = ["invocation", "launch", "fault", "ended", "ready", "evaluate", "checkpoint", "x"]
    t = rng.choice([0, -5, 1_700_000_000 + rng.random() * 300, 1e300, "now"])
    line = {"t": t, "kind": rng.choice(kinds)}
    for key in ("end", "since", "attempt", "rank", "ranks", "step", "result"):
        if rng.random() < 0.3:
            line[key] = rng.choice([None, "x", -1, 0, 2, 1_700_000_050.5, [0, 1], [1, 0]])
    return rng.choice([json.dumps(line).encode(), bytes(rng.randrange(256) for _ in range(20))])


def damage(path: Path, rng: Random) -> None:
    """Cuts a file anywhere, mixes lines, or overwrites bytes of records."""
    data = path.read_bytes()
    if path.suffix == ".events" and rng.random() < 0.7:
        lines = [*data.split(b"\n"), *(junk_line(rng) for _ in range(rng.randint(0, 4)))]
        rng.shuffle(lines)
        data = b"\n".join(lines)
    elif path.suffix != ".events" and len(data) > HEADER.size and rng.random() < 0.5:
        at = rng.randint(HEADER.size, len(data) - 1)
        noise = bytes(rng.randrange(256) for _ in range(rng.randint(1, 40)))
        data = data[:at] + noise + data[at + len(noise) :]
    if rng.random() < 0.5:
        data = data[: rng.randint(0, len(data))]
    path.write_bytes(data)


@settings(max_examples=120, deadline=None)
@given(SEEDS, st.booleans())
def test_whatever_was_damaged_the_causes_add_up(seed: int, runs: bool) -> None:
    rng = Random(seed)
    with tempfile.TemporaryDirectory() as name:
        Play(Path(name), rng)
        for path in sorted(Path(name).iterdir()):
            fate = rng.random()
            if fate < 0.5:
                damage(path, rng)
            elif fate < 0.6:
                path.unlink()
        check_the_sum(merge(name, now=1_700_000_400.0 if runs else None))
