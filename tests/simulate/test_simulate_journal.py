"""A life as the folder of a run: its journal gives the life's own ledger back."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.ledger.journal.events import RunResized
from penstock.ledger.merge import merge
from penstock.run.clusters.file import FailuresSection
from penstock.run.load import load_table
from penstock.run.schema.run import Run
from penstock.simulate.calibrate import read_journals
from penstock.simulate.conditions import conditions, with_measured
from penstock.simulate.given import changed
from penstock.simulate.journal import write_run
from penstock.simulate.result import Simulation
from penstock.simulate.simulate import Question, simulate, stated_failures
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.result import Report


def run_in(
    folder: Path,
    mode: str = "restart",
    nodes: int = 16,
    spares: int = 1,
    tokens: str = "1T",
    **more: Any,
) -> Run:
    return load_table(
        {
            "name": "real",
            "dir": str(folder),
            "model": {"preset": "llama-8b"},
            "data": {"sequence": 8192},
            "train": {"tokens": tokens, "batch_tokens": 512 * 8192, "precision": "bf16"},
            "layout": {"replicate": nodes, "shard": 8, "microbatch": 1, "recompute": "full"},
            "cluster": {"use": "H100", "nodes": nodes},
            "guard": {"mode": mode, "spares": spares},
            **more,
        },
        [],
    )


def lived(run: Run, days: float = 4, seed: int = 0, *rates: str) -> Simulation:
    given = changed(stated_failures(run), [f"failures.{rate}" for rate in rates])
    return simulate(run, Question(lives=5, days=days, seed=seed), given)


@pytest.mark.parametrize("mode", ["restart", "live"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_journal_gives_the_ledger_of_the_life(tmp_path: Path, mode: str, seed: int) -> None:
    done = lived(run_in(tmp_path, mode), 4, seed, "node_mtbf=3 days", "repair=3 h")
    folder = write_run(done, "lived")
    found = merge(folder.journal).ledger
    wanted = done.ledger
    assert found.total == pytest.approx(wanted.total, rel=1e-6)
    assert wanted.seconds[Cause.DOWN] > 0
    for cause in Cause:
        assert found.seconds[cause] / found.total == pytest.approx(
            wanted.seconds[cause] / wanted.total, abs=0.004
        ), cause
    assert found.effective == pytest.approx(wanted.effective, abs=0.003)
    faults = sum(done.lives[done.middle].interruptions.values())
    assert faults > 10


@pytest.mark.parametrize("mode", ["restart", "live"])
def test_the_hours_of_a_life_are_in_its_journal(tmp_path: Path, mode: str) -> None:
    """Every other hour has the power for half of the accelerators."""
    path = tmp_path / "hours.csv"

    def hours_of(limit_w: float) -> Run:
        rows = [f"{hour},0.1,{limit_w if hour % 2 else 1e9}" for hour in range(24)]
        path.write_text("\n".join(["hour,usd_per_kwh,grid_limit_w", *rows]) + "\n")
        budget = {"hours_csv": str(path), "finish_within": "2 days"}
        return run_in(tmp_path, mode, tokens="30B", budget=budget)

    planned = penstock.plan(hours_of(1e9)).hours
    assert planned is not None
    (above,) = [one.needs_w for one in planned.terms.levels if one.accelerators == 96]
    (half,) = [one.needs_w for one in planned.terms.levels if one.accelerators == 64]
    run = hours_of((above + half) / 2)
    given = changed(stated_failures(run), ["failures.node_mtbf=30 days"])
    done = simulate(run, Question(lives=5, seed=1), given)
    life = done.lives[done.middle]
    assert life.finished
    assert life.fewer_s > 3600
    folder = write_run(done, "lived")
    found, view = merge(folder.journal).ledger, RunView(folder)
    assert found.total == pytest.approx(done.ledger.total, rel=1e-6)
    for cause in Cause:
        assert found.seconds[cause] / found.total == pytest.approx(
            done.ledger.seconds[cause] / found.total, abs=0.01
        ), cause
    sizes = {line.event.ranks for line in view.supervisor_events_of(RunResized)}
    assert sizes == {64, 128}
    assert view.fewer_s == pytest.approx(life.fewer_s, rel=0.15)  # its attempts begin with starts
    assert view.fault_count == sum(life.interruptions.values())


@given(st.integers(0, 2**32 - 1), st.sampled_from(["restart", "live"]))
@settings(deadline=None, max_examples=4)
def test_the_same_seed_writes_the_same_bytes(seed: int, mode: str) -> None:
    files = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            done = lived(run_in(Path(folder), mode), 1, seed, "node_mtbf=3 days")
            journal = write_run(done, "lived").journal
            files.append({path.name: path.read_bytes() for path in journal.iterdir()})
    assert files[0] == files[1]
    assert len(files[0]) > 5


def test_a_report_opens_it_like_any_other_run(tmp_path: Path) -> None:
    done = lived(run_in(tmp_path), 2, 0, "node_mtbf=3 days")
    report = Report.of(write_run(done, "lived"))
    assert report.status == "stopped"
    assert report.step == int(done.lives[done.middle].steps)
    assert report.ledger.effective == pytest.approx(done.ledger.effective, abs=0.003)


@pytest.mark.parametrize(
    ("name", "why"), [("../x", "not a path"), ("twice", "exists; choose another name")]
)
def test_a_bad_name_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "twice").mkdir()
    with pytest.raises(PenstockError, match=why):
        write_run(lived(run_in(tmp_path), 0.2), name)


def test_a_journal_calibrates_the_next_simulation(tmp_path: Path) -> None:
    done = lived(run_in(tmp_path), 4, 0, "node_mtbf=3 days")
    seen = read_journals([str(write_run(done, "lived").path)]).seen
    assert seen.hardware > 10
    assert seen.run_s > 0


def test_a_journal_of_the_same_run_gives_its_times(tmp_path: Path) -> None:
    """Of a life with other times than the planned ones, which are found again."""
    done = lived(run_in(tmp_path), 4, 0, "node_mtbf=20 days", "stall=7 min")
    journals = read_journals([str(write_run(done, "lived").path)])
    ranks, params = done.own.ranks, done.plan.job.shape.params()
    assert journals.times_of(ranks + 8, params) is None
    assert journals.times_of(ranks, 2 * params) is None
    times = journals.times_of(ranks, params)
    assert times is not None
    assert times.step_s == pytest.approx(done.own.step_s, rel=0.1)
    assert times.stall_s == pytest.approx(7 * 60, rel=0.1)
    planned = conditions(done.run, done.plan, FailuresSection(), 4, None, times)
    assert planned.stall_s == times.stall_s
    assert planned.step_s == times.step_s
    assert planned == with_measured(planned, times)
    both = times + times
    assert (both.step_s, both.stall_s) == pytest.approx((times.step_s, times.stall_s))
