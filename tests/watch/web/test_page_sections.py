"""The sections of a run's page, for runs in every state."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_run import T0, made_run
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.plan.cost.rates import CostRates, SourcedRate
from penstock.run.folder import RunFolder
from penstock.watch.facts.downsample import (
    MOST_POINTS,
    block_extremes,
    block_means,
    block_starts,
    json_numbers,
    not_superseded,
)
from penstock.watch.facts.event_lines import event_lines
from penstock.watch.facts.rank_health import RED_S, rank_health
from penstock.watch.facts.run_view import RunView
from penstock.watch.facts.timeline import disruptions, invocation_phases
from penstock.watch.web.sections import SECTIONS, page_sections, run_summary


def taken(folder: RunFolder) -> dict[str, dict]:
    """As the browser gets it: what is not JSON fails here."""
    return json.loads(json.dumps(page_sections(RunView(folder)), allow_nan=False))


def test_a_run_that_was_killed_and_resumed(tmp_path: Path) -> None:
    found = taken(made_run(tmp_path, killed_at=30))
    assert not [name for name, section in found.items() if "problem" in section]
    assert found["headline"]["status"] == "done"
    assert found["headline"]["step"] == 40
    assert found["headline"]["tokens_per_s"] == pytest.approx(4096)
    assert found["curve"]["step"] == list(range(1, 41))  # what was lost with the kill is cut off
    assert [v[0] for v in found["curve"]["validation"]] == [20, 40]
    (mark,) = found["curve"]["marks"]
    assert (mark["step"], mark["kind"]) == (26, "fault")
    assert found["speed"]["plan"]["tokens_per_s"] == pytest.approx(2048 / 0.45)
    assert found["speed"]["plan"]["low"] == pytest.approx(2048 / 0.55)
    rows = {row["cause"]: row for row in found["plan"]["rows"]}
    assert rows["compute"]["planned_s"] == pytest.approx(0.4 * 40)
    assert rows["down"]["actual_s"] > 0
    assert "slower" in found["plan"]["says"] or "within" in found["plan"]["says"]
    total = sum(row["actual_s"] for row in found["plan"]["rows"])
    assert total == pytest.approx(found["plan"]["actual_s"])
    (trouble,) = found["story"]["troubles"]
    assert trouble["rank"] == 1
    assert trouble["step"] == 26
    assert trouble["back"] - trouble["since"] == pytest.approx(3.0)
    assert found["ranks"]["letters"] == "ee"
    assert found["ranks"]["fell"] == {"1": 1}


def test_the_stacked_areas_add_up_to_the_table(tmp_path: Path) -> None:
    found = taken(made_run(tmp_path, killed_at=30))
    ranks = found["headline"]["ranks"]
    rows = {row["cause"]: row["actual_s"] * ranks for row in found["plan"]["rows"]}
    sums = dict(zip(found["where"]["causes"], map(sum, found["where"]["seconds"]), strict=True))
    assert sums == {cause: pytest.approx(s, rel=2e-3, abs=1e-2) for cause, s in rows.items()}
    assert len(found["where"]["edges"]) == len(found["where"]["seconds"][0]) + 1


def test_time_that_is_not_written_yet_is_not_drawn_as_unexplained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_run(tmp_path, ended=None)
    last = float(RunView(folder).curve["t"][-1])
    monkeypatch.setattr(RunFolder, "running", lambda self: True)

    def shown(later_s: float) -> float:
        monkeypatch.setattr("penstock.watch.facts.run_view.now", lambda: last + later_s)
        edges = taken(folder)["where"]["edges"]
        return edges[-1] - last

    assert shown(20.0) < 1.0  # an evaluation, say, which is written when it is over
    assert shown(200.0) == pytest.approx(200.0, abs=0.1)  # something is wrong


def test_energy_and_money_say_where_they_come_from(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    costs = taken(folder)["energy"]["costs"]
    assert costs["usd"] is None
    assert any("no price is known" in note for note in costs["notes"])
    priced = folder.read_plan() | {
        "rates": CostRates(usd_per_hour=SourcedRate(3.6, "given")).to_json()
    }
    folder.plan_file.write_text(json.dumps(priced))
    found = taken(folder)
    hours = found["headline"]["wall_s"] * 2 / 3600
    assert found["energy"]["costs"]["usd"] == pytest.approx(3.6 * hours)


def test_runs_that_have_hardly_begun(tmp_path: Path) -> None:
    new = RunFolder(tmp_path / "new")
    new.make()
    new.run_file.write_text('name = "new"\n[model]\npreset = "llama-3m"\n')
    assert taken(new)["headline"]["status"] == "new"
    empty = RunFolder(tmp_path / "empty")
    empty.make()
    found = taken(empty)  # not even a run file
    assert "problem" in found["headline"]
    assert "problem" not in found["where"]
    killed = made_run(tmp_path, "killed", ended=None)
    assert taken(killed)["headline"]["status"] == "killed"


def test_a_journal_cut_anywhere_still_has_a_page(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=30, killed_at=20)
    files = {path: path.read_bytes() for path in folder.journal.iterdir()}
    dice = random.Random(7)
    for _ in range(25):
        for path, whole in files.items():
            path.write_bytes(whole[: dice.randrange(len(whole) + 1)])
        found = taken(folder)
        assert set(found) == set(SECTIONS)


def test_secrets_of_the_run_file_stay_there(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    text = folder.run_file.read_text() + '[log]\nwebhook = "https://hooks.example.com/T0/secret"\n'
    folder.run_file.write_text(text)
    found = json.dumps(taken(folder))
    assert "hooks.example.com" in found
    assert "T0/secret" not in found


def test_a_long_curve_is_thinned_and_keeps_its_spike(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=1)
    with Journal(folder.journal, 1) as journal:
        for step in range(2, 5000):
            journal.curve(step, 99.0 if step == 3333 else 2.0, 1.0, 1e-3, step, t=T0 + step)
    curve = taken(folder)["curve"]
    assert len(curve["step"]) == MOST_POINTS <= 1000
    assert max(curve["high"]) == 99.0
    assert curve["step"][-1] == 4999


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300),
    st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_block_means_lie_between_block_extremes(values: list[float], most: int) -> None:
    column = np.array(values, np.float64)
    at = block_starts(len(column), most)
    assert 1 <= len(at) <= most
    assert at[0] == 0
    low, high = block_extremes(column, at)
    mean = block_means(column, at)
    known = np.isfinite(low)
    assert (np.isfinite(mean) == known).all()
    slack = 1e-6 * np.maximum(np.abs(low[known]), np.abs(high[known])) + 1e-30
    assert (low[known] - slack <= mean[known]).all()
    assert (mean[known] <= high[known] + slack).all()
    finite = column[np.isfinite(column)]
    if len(finite):
        assert np.nanmin(low) == finite.min()
        assert np.nanmax(high) == finite.max()
    assert all(x is None or np.isfinite(x) for x in json_numbers(mean))


@given(st.lists(st.integers(0, 30), max_size=60))
def test_steps_that_a_restart_took_back_are_cut_off(steps: list[int]) -> None:
    kept = np.array(steps, np.int64)[not_superseded(np.array(steps, np.int64))]
    assert (np.diff(kept) > 0).all()
    assert steps[-1:] == kept[-1:].tolist()


def lines(folder: RunFolder) -> SupervisorJournal:
    folder.make()
    supervisor = SupervisorJournal(folder.journal)
    supervisor.event("invocation", t=T0, ranks=3, machine="m")
    supervisor.event("launch", t=T0 + 1, attempt=0, ranks=3)
    return supervisor


def test_ranks_fall_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    monkeypatch.setattr(RunFolder, "running", lambda self: True)
    supervisor = lines(folder)

    def letters(t: float = T0 + 1000) -> str:
        return "".join(rank_health(RunView(folder), t).letters)

    assert letters() == "uuu"
    journals = [Journal(folder.journal, 0, range(r, r + 1)) for r in range(3)]
    for rank, journal in enumerate(journals):
        journal.event("ready", t=T0 + 2 + rank)
    assert letters() == "fff"
    supervisor.event("straggler", t=T0 + 10, attempt=0, rank=2, factor=1.5, slow=True)
    assert letters() == "ffs"
    assert "1.5 times" in rank_health(RunView(folder)).why[2]
    supervisor.event("straggler", t=T0 + 11, attempt=0, rank=2, factor=1.0, slow=False)
    journals[0].event("end", t=T0 + 12, result="failed", error="connection closed by peer")
    supervisor.event("fault", t=T0 + 13, attempt=0, rank=1, reason="killed", action="restart")
    assert letters() == "udu"
    supervisor.event("launch", t=T0 + 14, attempt=1, ranks=3)
    for rank in (0, 2):
        Journal(folder.journal, 1, range(rank, rank + 1)).event("ready", t=T0 + 15)
    assert letters() == "fdf"
    Journal(folder.journal, 1, range(1, 2)).event("ready", t=T0 + 15)
    assert letters() == "fff"
    assert letters(T0 + 13 + RED_S / 2) == "fdf"  # seen, though it was back at once
    lost = {"attempt": 1, "ranks": [2, 2], "rank": 2, "reason": "gone", "since": T0 + 20}
    supervisor.event("lost", t=T0 + 20, **lost)
    assert letters() == "ffd"
    monkeypatch.setattr(RunFolder, "running", lambda self: False)
    assert letters() == "eed"


def test_a_timeline_has_no_gaps(tmp_path: Path) -> None:
    view = RunView(made_run(tmp_path, killed_at=30))
    (row,) = invocation_phases(view, disruptions(view))
    assert [part[0] for part in row["parts"]] == ["startup", "work", "down", "work"]
    assert row["parts"][0][1] == row["start"]
    assert row["parts"][-1][2] == row["end"]
    assert all(a[2] == b[1] for a, b in zip(row["parts"], row["parts"][1:], strict=False))


def test_events_are_lines_newest_first_and_each_once(tmp_path: Path) -> None:
    folder = made_run(tmp_path, killed_at=30)
    with Journal(folder.journal, 2) as journal:
        journal.event("a_new_kind", t=T0 + 500, what="<script>")
        journal.event("regrouped", t=T0 + 501, members=[0, 1], healed=[1], step=3)
    found = event_lines(RunView(folder))
    assert [line.t for line in found] == sorted((line.t for line in found), reverse=True)
    words = [line.words for line in found]
    assert words[0] == "replicas 0, 1 go on from step 3; replica 1 healed"
    assert words[1] == 'a new kind {"what": "<script>"}'
    assert words.count("validation loss 3.000 at step 20") == 1
    fault = next(line for line in found if line.kind == "fault")
    assert fault.level == "bad"
    assert fault.words == "rank 1: the process was killed by SIGKILL; restart"


def test_the_summary_of_a_run_in_the_list(tmp_path: Path) -> None:
    found = run_summary(RunView(made_run(tmp_path)))
    assert found["status"] == "done"
    assert 2 <= len(found["spark"]) <= 60
    assert found["useful"] == pytest.approx(
        RunView(RunFolder(tmp_path / "made")).account.ledger.useful
    )


def test_learning_rate_and_gradient_norm_keep_their_spikes(tmp_path: Path) -> None:
    folder = made_run(tmp_path, steps=2)
    with Journal(folder.journal, 5) as journal:
        for step in range(3, 4003):
            norm = 50.0 if step == 2000 else 0.5
            journal.curve(step, 3.0, norm, 1e-3 * step, 1.0, t=T0 + step)
    curve = page_sections(RunView(folder))["curve"]
    lengths = {len(curve[name]) for name in ("step", "learning_rate", "grad_norm")}
    assert lengths == {len(curve["grad_norm_high"])}
    assert max(curve["grad_norm_high"]) == 50.0  # thinned, and still there
    assert max(curve["grad_norm"][10:]) < 15
    assert curve["learning_rate"][-1] == pytest.approx(4.002, rel=1e-3)
    assert curve["clip"] == 1.0
