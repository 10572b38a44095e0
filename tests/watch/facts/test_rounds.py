"""Rounds of replicas that take local steps, on every face of a run."""

import json
from pathlib import Path

import pytest

from made_run import T0, made_run
from penstock.ledger.journal.writer import Journal
from penstock.run.folder import RunFolder
from penstock.watch.facts.rounds import round_facts
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.result import Report
from penstock.watch.terminal.status_lines import status_lines
from penstock.watch.web.sections import page_sections

SYNC = '\n[train.sync]\nlocal_steps = 10\ncompress = "int4"\n[layout]\nreplicate = 2\n'


def run_with_rounds(root: Path, *ended: list[int], done: str | None = "done") -> RunFolder:
    """A run of 40 steps in rounds of ten; `ended` has the steps of the rounds of each replica."""
    folder = made_run(root, ranks=2, steps=40, ended=done)
    folder.run_file.write_text(folder.run_file.read_text() + SYNC)
    for rank, steps in enumerate(ended):
        with Journal(folder.journal, 1, range(rank, rank + 1)) as journal:
            for place, step in enumerate(steps):
                journal.event("round", t=T0 + 10 + place, step=step, sent_bytes=1000)
    return folder


def test_rounds_bytes_and_lag_of_each_replica(tmp_path: Path) -> None:
    found = round_facts(RunView(run_with_rounds(tmp_path, [10, 20, 30], [10])))
    assert found
    assert (found.rounds, found.planned, found.local_steps) == (3, 4, 10)
    assert (found.sent_bytes, found.round_bytes, found.lag) == (4000, 1000.0, 2)
    first, second = found.members
    assert (first.name, first.rounds, first.behind, first.step) == ("replica 0", 3, 0, 30)
    assert (second.name, second.rounds, second.behind, second.sent_bytes) == (
        "replica 1",
        1,
        2,
        1000,
    )
    assert found.words() == (
        "3 of 4 rounds of 10 steps, 1KB a round from each of 2, 4KB in all; "
        "replica 1 is 2 rounds behind"
    )


def test_rounds_of_sites_as_one_of_them_tells(tmp_path: Path) -> None:
    folder = made_run(tmp_path, ranks=1, steps=40, ended="done")
    sites = '[sites]\nbucket = "/b"\nname = "berlin"\n'
    folder.run_file.write_text(
        folder.run_file.read_text() + "\n[train.sync]\nlocal_steps = 10\n" + sites
    )
    with Journal(folder.journal, 1, range(1)) as journal:
        for number, members in enumerate([{}, {"berlin": 1, "paris": 1}, {"berlin": 2}], 1):
            journal.event(
                "site_round",
                t=T0 + 10 + number,
                number=number,
                by="paris",
                sites=members,
                late=dict.fromkeys(members, 0),
                sent_bytes=500,
                received_bytes=900,
            )
    found = round_facts(RunView(folder))
    assert found
    assert (found.rounds, found.planned, found.sent_bytes, found.lag) == (2, 4, 1500, 1)
    berlin, paris = found.members
    assert (berlin.name, berlin.rounds, berlin.behind, berlin.step) == ("site berlin", 2, 0, 20)
    assert (paris.name, paris.behind, paris.sent_bytes) == ("site paris", 1, None)
    assert "site paris is 1 round behind" in found.words()
    assert found.rows()[1][4] == "–"


def test_a_round_that_was_done_again_counts_once_and_its_bytes_twice(tmp_path: Path) -> None:
    found = round_facts(RunView(run_with_rounds(tmp_path, [10, 20, 20], [10, 20, 20])))
    assert found
    assert [one.rounds for one in found.members] == [2, 2]
    assert found.sent_bytes == 6000
    assert found.lag == 0


def test_every_face_shows_the_rounds(tmp_path: Path) -> None:
    folder = run_with_rounds(tmp_path, [10, 20], [10, 20])
    facts = RunFacts(RunView(folder))
    table = json.loads(json.dumps(Report.of(folder).to_json()))["rounds"]
    assert (table["rounds"], table["sent_bytes"], table["lag"]) == (2, 4000, 0)
    assert [one["name"] for one in table["members"]] == ["replica 0", "replica 1"]
    section = page_sections(RunView(folder))["rounds"]
    assert [row[0] for row in section["rows"]] == ["replica 0", "replica 1"]
    assert len(section["titles"]) + 1 == len(section["rows"][0])
    assert any("2 of 4 rounds" in line.plain for line in status_lines(facts, 80))


def test_a_running_round_says_how_long_ago_the_last_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_with_rounds(tmp_path, [10], [10], done=None)
    monkeypatch.setattr("penstock.watch.facts.rounds.now", lambda: T0 + 40)
    monkeypatch.setattr(RunView, "running", True)
    found = round_facts(RunView(folder))
    assert found
    assert [one.since_s for one in found.members] == [30.0, 30.0]
    assert found.rows()[0][-1].endswith("ago")


def test_replicas_that_agree_in_every_step_have_no_rounds(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    assert round_facts(RunView(folder)) is None
    assert page_sections(RunView(folder))["rounds"]["rows"] == []
    assert Report.of(folder).to_json()["rounds"] is None
