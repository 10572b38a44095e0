"""Plan against actual by cause, for the steps that were made, with the largest gap named."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.ledger.causes import Cause
from penstock.plan import calibration
from penstock.watch.facts.plan_vs_actual import add_to_calibration
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import screen
from written_run import BEGIN, PLAN, STEPS, Written, facts, planned, shown


def written(home: Path, plan: dict[str, Any], steps: int, forked_at: int | None = None) -> Written:
    fork = {} if forked_at is None else {"forked_from": {"run": "other", "step": forked_at}}
    run = Written(home, PLAN | fork | {"predicted": plan, "sequence": 256})
    run.supervisor(*BEGIN)
    first = (forked_at or 0) + 1
    run.ranks(0, 1.0, range(first, first + steps))
    run.end(0, 6.0 + 2 * steps, result="stopped")
    return run


def test_half_a_run_is_compared_with_half_of_the_steps_and_a_whole_start(tmp_path: Path) -> None:
    # Two ranks: 60 + 20 rank-seconds of steps in all, 12 of starting.
    plan = planned(2.0, compute=60.0, communicate=20.0, startup=12.0)
    found = facts(written(tmp_path, plan, STEPS // 2).folder)["plan"]
    assert found["by_cause"]["compute"]["predicted"] == pytest.approx(30)
    assert found["by_cause"]["startup"]["predicted"] == pytest.approx(12)
    assert found["by_cause"]["compute"]["measured"] == pytest.approx(30)  # 1.5 s × 10 × 2
    assert found["step_s"]["deviation"] == pytest.approx(0)
    assert found["steps"] == STEPS // 2


def test_a_fork_is_compared_on_its_own_steps_only(tmp_path: Path) -> None:
    plan = planned(2.0, compute=60.0, startup=12.0)
    found = facts(written(tmp_path, plan, STEPS // 4, forked_at=STEPS // 2).folder)["plan"]
    assert found["by_cause"]["compute"]["predicted"] == pytest.approx(15)
    assert found["by_cause"]["compute"]["measured"] == pytest.approx(15)
    assert found["steps"] == STEPS // 4


def test_the_deviation_is_named(tmp_path: Path) -> None:
    plan = planned(1.0, compute=60.0, startup=12.0)  # nothing for communicate, and half the step
    run = written(tmp_path, plan, STEPS)
    says = facts(run.folder)["plan"]["says"]
    assert says.startswith("2 × the planned time: a step took 2.00 s, planned 1.00 s")
    assert "more data_wait" in says or "more communicate" in says
    text = shown(screen(run.folder))
    assert "planned" in text
    assert "2 × the planned time" in text


def test_inside_of_the_band_is_as_planned(tmp_path: Path) -> None:
    plan = planned(2.1, compute=60.0, communicate=10.0, data_wait=10.0, startup=12.0)
    says = facts(written(tmp_path, plan, STEPS).folder)["plan"]["says"]
    assert says.startswith("within the plan's band")


@pytest.mark.parametrize("plan", [None, {"none": "the model is the user's own module"}])
def test_a_run_without_a_plan_is_shown_as_before(tmp_path: Path, plan: Any) -> None:
    run = written(tmp_path, plan, 3)
    assert facts(run.folder)["plan"] is None
    assert "planned" not in shown(screen(run.folder))
    with pytest.raises(PenstockError, match="has no plan"):
        add_to_calibration(run.folder)


def test_a_measured_run_is_added_to_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    run = written(tmp_path, planned(1.6, compute=60.0), STEPS)
    record, own = add_to_calibration(run.folder)
    assert record.ratio == pytest.approx(2.0 / 1.6)
    assert own == calibration.load() == [record]
    assert record.startup_ratio is None  # its plan is of an earlier version
    assert json.loads(calibration.file().read_text())["accelerator"] == "a CPU"


def test_a_start_is_compared_with_that_of_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    plan = planned(1.6, compute=60.0)
    plan["uncalibrated"] |= {"startup_s": 4.0, "evaluate_s": 0.5}
    run = written(tmp_path, plan, STEPS)
    account = RunView(run.folder).account
    record, _ = add_to_calibration(run.folder)
    took_s = account.ledger.seconds[Cause.STARTUP] / account.ranks / len(account.invocations)
    assert took_s > 0
    assert record.startup_ratio == pytest.approx(took_s / 4.0)
    assert record.evaluate_ratio is None  # it was never evaluated


def test_a_run_of_few_steps_cannot_calibrate(tmp_path: Path) -> None:
    run = written(tmp_path, planned(1.6, compute=60.0), 9)
    with pytest.raises(PenstockError, match="9 steps"):
        add_to_calibration(run.folder)
