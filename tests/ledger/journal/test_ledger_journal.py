"""The writers: what they refuse, and that rollups say what the steps say."""

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from penstock.ledger.journal.read import read_steps
from penstock.ledger.journal.records import HEADER, PARTS, ROLLUP, ROLLUP_STEPS, STEP, read_records
from penstock.ledger.journal.rollups import read_rollups, totals
from penstock.ledger.journal.writer import Journal, steady_clock


def test_spans_that_overlap_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, 0) as journal:
        journal.step(0, 100.0, 10.0, 0, 10, 0)
        journal.span("checkpoint", 109.9995, 112.0)  # clock rounding
        with pytest.raises(AssertionError, match=r"step 1 of rank 0 overlaps .* by 2\.0"):
            journal.step(1, 110.0, 1.0, 0, 1, 0)
        with pytest.raises(AssertionError, match="evaluate of rank 0 overlaps"):
            journal.span("evaluate", 90.0, 95.0)
        with pytest.raises(AssertionError, match="before it starts"):
            journal.span("evaluate", 120.0, 119.0)
        journal.step(1, 112.0, 1.0, 0, 1, 0)
    assert read_steps(tmp_path / "a0000-r00000.steps")["step"].tolist() == [0, 1]


def test_an_event_cannot_claim_to_be_a_span(tmp_path: Path) -> None:
    with Journal(tmp_path, 0) as journal, pytest.raises(AssertionError, match="own times"):
        journal.event("evaluate", end=5.0)


def test_the_steady_clock_does_not_go_back() -> None:
    clock = steady_clock()
    times = [clock() for _ in range(100)]
    assert times == sorted(times)
    assert times[0] > 1.6e9


def write_steps(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(count)
    with Journal(folder, 0) as journal:
        at = 1.7e9
        for step in range(count):
            parts = rng.random(4)
            total = float(parts.sum() + rng.random())
            journal.step(step + 7, at, total, *parts.tolist())
            at += total + 0.001
    return folder / "a0000-r00000.steps"


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_rollups_equal_the_steps(tmp_path: Path, count: int) -> None:
    path = write_steps(tmp_path, count)
    steps, stored = read_steps(path), read_records(path.with_suffix(".rollups"), "rollups")
    assert len(stored) == count // ROLLUP_STEPS
    found = totals(path)
    assert found is not None
    assert (found.steps, found.first_step, found.last_step) == (count, 7, count + 6)
    assert found.start == steps["start"][0]
    assert found.end == steps["start"][-1] + np.float64(steps["total"][-1])
    sums = [steps[part].sum(dtype=np.float64) for part in PARTS]
    assert astuple(found)[5:] == pytest.approx(sums, rel=1e-12)


def test_totals_trust_the_rollups_for_what_they_cover(tmp_path: Path) -> None:
    path = write_steps(tmp_path, 600)
    stored = bytearray(path.with_suffix(".rollups").read_bytes())
    at = HEADER.size + ROLLUP.fields["compute"][1]  # type: ignore[index]
    stored[at : at + 8] = np.float64(1e6).tobytes()
    path.with_suffix(".rollups").write_bytes(stored)
    found = totals(path)
    assert found is not None
    assert found.compute_s > 1e6


def test_rollups_are_made_again_at_every_torn_byte(tmp_path: Path) -> None:
    path = write_steps(tmp_path, 600)
    stored = path.with_suffix(".rollups").read_bytes()
    whole = totals(path)
    for length in range(len(stored)):
        path.with_suffix(".rollups").write_bytes(stored[:length])
        assert totals(path) == whole
    path.with_suffix(".rollups").unlink()
    assert totals(path) == whole


def test_rollups_ahead_of_the_steps_are_not_believed(tmp_path: Path) -> None:
    path = write_steps(tmp_path, 600)
    path.write_bytes(path.read_bytes()[: HEADER.size + 300 * STEP.itemsize + 5])
    found = totals(path)
    assert found is not None
    assert found.steps == 300
    assert len(read_rollups(path)) == 2
    assert found.compute_s == pytest.approx(read_steps(path)["compute"].sum(dtype=np.float64))
