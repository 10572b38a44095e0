"""[budget]: the plan says no before anything is spent; a run that reaches it saves and stops."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError, RunFailed
from penstock.launch.prepare import launch_plan
from penstock.launch.start import start
from penstock.ledger.journal.read import read_events
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.watch.facts.costs import costs_of
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.screen import summary

MakeFile = Callable[..., Path]
FIELDS: dict[str, Any] = {"train.steps": 60, "cluster.accelerators": 1}


def test_a_plan_over_budget_starts_nothing_and_says_by_how_much(run_file: MakeFile) -> None:
    run = load(run_file(**FIELDS), ["budget.hours=0.0001"])
    with pytest.raises(RunFailed, match=r"budget\.hours = 0\.0001: the plan takes .* over"):
        start(run)
    assert not RunFolder(run.folder).run_file.exists()


def test_money_without_a_price_is_refused_and_not_forgotten(run_file: MakeFile) -> None:
    run = load(run_file(**FIELDS), ["budget.usd=5"])
    with pytest.raises(PenstockError, match=r"budget\.usd = 5: no price is known"):
        start(run)


def test_a_price_in_the_run_file_is_planned_with_kept_and_counted(run_file: MakeFile) -> None:
    own = ["cluster.usd_per_hour=36", "cluster.carbon=100", "budget.usd=5", "train.steps=5"]
    folder = start(load(run_file(**FIELDS), own))
    costs = costs_of(RunView(folder))
    assert costs.usd == pytest.approx(summary(folder)["rank_s"] / 100)
    assert costs.usd_to_go == 0
    assert costs.gco2e is not None
    assert costs.gco2e > 0
    assert all("given in the run file" in note for note in costs.notes[:2])
    plan = folder.read_plan()
    assert plan["rates"]["usd_per_hour"]["value"] == 36
    assert plan["predicted"]["usd"] > 0


def test_a_run_that_reaches_its_budget_saves_stops_and_goes_on_when_it_is_raised(
    run_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A planner that errs: what is tested is the clock of the supervisor.
    monkeypatch.setattr(launch_plan, "predict", lambda *_: {"none": "not planned here"})
    path = run_file(**FIELDS | {"train.steps": 1_000_000})
    seconds, steps = 6.0, 0
    while not steps:  # on a busy machine a start alone may take longer
        seconds *= 2
        folder = start(load(path, [f"budget.hours={seconds / 3600}"]))
        found = summary(folder)
        assert found["status"] == "stopped"
        steps = found["steps"]
    assert found["checkpoint"].endswith(f"{found['steps']:08d}")  # nothing was lost
    assert found["wall_s"] >= seconds
    *_, told = [e for e in events(folder) if e.kind == "budget_reached"]
    assert str(told.payload["budget"]).startswith("budget.hours = ")

    with pytest.raises(RunFailed, match="has used it"):
        start(load(path, [f"budget.hours={seconds / 3600}"]))
    spent = found["wall_s"]
    more = launch_plan.budget_limit(
        load(path, [f"budget.hours={(spent + 60) / 3600}"]), folder, 1, began=0.0
    )
    assert more is not None
    assert more.at_s == pytest.approx(60, abs=1e-6)  # what is left of it, not all of it again


def events(folder: RunFolder) -> list[Any]:
    return list(read_events(folder.journal / "supervisor.events"))
