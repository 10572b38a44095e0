"""Calibration: folded runs move the plan of their accelerator, a little each and no other."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_plans as made
from penstock.errors import PenstockError
from penstock.plan import calibration
from penstock.plan.calibration import CalibrationRecord
from penstock.plan.job.outcome import Band
from penstock.plan.make import make

RATIOS = st.lists(st.floats(0.3, 3.0), min_size=1, max_size=6)


JOB = made.job(8)


def record(ratio: float = 1.2, run: str = "a", accelerator: str = "H100 SXM5") -> CalibrationRecord:
    params = JOB.shape.params()
    basis = calibration.basis(JOB.machine)
    return CalibrationRecord(
        run, accelerator, 8, "bf16", params, 2048, "8 shard", basis, 2.0, 2.0 * ratio
    )


@given(RATIOS)
def test_the_factor_lies_between_one_and_what_was_measured(ratios: list[float]) -> None:
    found = calibration.factor(JOB, [record(ratio) for ratio in ratios])
    assert min([*ratios, 1.0]) <= found <= max([*ratios, 1.0])


def test_one_run_moves_two_thirds_of_the_way_and_no_run_not_at_all() -> None:
    assert calibration.factor(JOB, []) == 1.0
    assert calibration.factor(JOB, [record(1.331)]) == pytest.approx(1.331 ** (2 / 3))


@given(RATIOS)
def test_a_band_is_the_usual_one_until_there_are_runs_enough_to_scatter(
    ratios: list[float],
) -> None:
    usual = Band(0.8, 1.25)
    runs = [record(ratio) for ratio in ratios]
    found = calibration.band(JOB, runs, usual)
    if len(runs) < calibration.ENOUGH:
        assert found == usual
    else:
        by = calibration.factor(JOB, runs)
        assert all(found.low * 0.999 <= r / by <= found.high * 1.001 for r in ratios)
        assert found.low <= 0.96
        assert found.high >= 1.05


def test_measured_starts_and_evaluations_move_those_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    before = make(made.run(), made.machine(8))
    slow = replace(record(1.0), precision="fp8", startup_ratio=8.0, evaluate_ratio=0.125)
    calibration.fold(slow)
    after = make(made.run(), made.machine(8))
    starts, evaluations = (
        after.life.recovery.startup_s / before.life.recovery.startup_s,
        after.life.evaluate_s / before.life.evaluate_s,
    )
    assert starts == pytest.approx(4.0, rel=0.05)  # one run alike counts for two thirds
    assert evaluations == pytest.approx(0.25, rel=0.05)
    assert after.step.step_s == pytest.approx(before.step.step_s)
    assert "by earlier runs here" in after.explain("startup_s")
    alone = calibration.uncalibrated_life(made.run(), after.job, after.step, after.life.steps)
    assert alone["startup_s"] == pytest.approx(before.life.recovery.startup_s)


def test_folding_a_run_again_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "calibration.jsonl"
    calibration.fold(record(1.5), path)
    calibration.fold(record(1.1, "b", "H200 SXM"), path)
    own = calibration.fold(record(1.2), path)
    assert [r.ratio for r in own] == [pytest.approx(1.2)]
    assert [r.run for r in calibration.load(path)] == ["b", "a"]


def test_a_torn_line_and_an_unmeasured_run_are_told(tmp_path: Path) -> None:
    path = tmp_path / "calibration.jsonl"
    path.write_text('{"run": "a"')
    with pytest.raises(PenstockError, match="line 1"):
        calibration.load(path)
    with pytest.raises(PenstockError, match="no step was measured"):
        calibration.fold(record(0.0), tmp_path / "other")


def test_a_plan_of_the_same_accelerator_moves_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    before = make(made.run(), made.machine(8))
    calibration.fold(record(1.331))
    after = make(made.run(), made.machine(8))
    factor = 1.331 ** (2 / 3)
    assert after.step.step_s == pytest.approx(before.step.step_s * factor)
    assert sum(after.step.parts.values()) == pytest.approx(after.step.step_s)
    assert sum(after.step.causes.values()) == pytest.approx(after.step.step_s)
    assert "1 measured run" in after.explain("step_s")
    narrow = make(
        made.run(train={"tokens": "1B", "batch_tokens": 1048576, "precision": "fp8"}),
        made.machine(8),
    )
    assert "measured run(s)" not in narrow.explain("step_s")


def test_a_tiny_run_says_little_about_a_large_one() -> None:
    tiny = replace(record(2.5), params=3_000_000, ranks=1)
    assert calibration.factor(made.job(128), [tiny, tiny]) < 1.02
    assert calibration.factor(JOB, [record(2.5), tiny]) == pytest.approx(2.5 ** (2 / 3), rel=0.02)


def test_a_plan_that_was_moved_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    assert not any("measured run" in note for note in make(made.run(), made.machine(8)).warnings)
    calibration.fold(record(1.5))
    moved = make(made.run(), made.machine(8)).warnings
    assert any(note.startswith("step times are × 1.3") for note in moved)


def test_runs_against_an_older_probe_no_longer_count() -> None:
    assert calibration.matching(JOB, [record()]) == [record()]
    assert calibration.matching(JOB, [replace(record(), basis="measured: an older probe")]) == []
