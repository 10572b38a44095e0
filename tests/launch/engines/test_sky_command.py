"""SkyPilot's command as the engine uses it. A program of its name stands in: it rents nothing.

It answers as SkyPilot 0.14.1 did on a Slurm; `test_sky_slurm.py` asks the real one.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from engine_runs import job_of
from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines import sky
from penstock.launch.engines.engine import JobPhase, Submission
from penstock.launch.engines.sky import Sky

PROGRAM = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$2" in
queue) [ -f {folder}/queue ] || {{ echo "Error: No in-progress managed jobs." >&2; exit 1; }}
    cat {folder}/queue ;;
launch) [ ! -f {folder}/broken ] || {{ cat {folder}/broken >&2; exit 1; }}
    echo '[{{"job_id": 7, "job_name": "a-run", "status": "STARTING"}}]' > {folder}/queue
    printf 'Useful Commands\\nManaged Job ID: 7\\n' ;;
cancel) echo '[{{"job_id": 7, "job_name": "a-run", "status": "CANCELLED"}}]' > {folder}/queue ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "sky"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sky, "_kept", None)
    monkeypatch.setattr(sky, "POLL_S", 0.0)
    return tmp_path


def job_in(folder: Path, *overrides: str):
    return replace(job_of("sky", *overrides), run_file=folder / "submitted.toml")


def test_a_job_is_submitted_asked_for_and_cancelled(folder):
    engine, job = Sky(), job_in(folder, 'cluster.sky.secrets=["A_KEY"]')
    submission = engine.submit(job)
    assert submission.job == "7"
    assert yaml.safe_load((folder / "sky.yaml").read_text()) == yaml.safe_load(engine.text(job))
    state = engine.state(submission)
    assert (state.phase, state.words) == (JobPhase.QUEUED, "machines are being rented")
    engine.cancel(submission)
    assert engine.state(submission).phase is JobPhase.ENDED
    calls = (folder / "calls").read_text().splitlines()
    assert f"jobs launch --yes --detach-run --secret A_KEY {folder}/sky.yaml" in calls
    assert "jobs cancel --yes 7" in calls


def test_a_second_job_of_the_name_is_refused_before_it_is_launched(folder):
    records = [{"job_id": 3, "job_name": "a-run", "status": "RECOVERING"}]
    (folder / "queue").write_text("a warning\n" + json.dumps(records))
    with pytest.raises(PenstockError, match=r'name = "a-run": job 3 of SkyPilot has this name'):
        Sky().submit(job_in(folder))
    assert "launch" not in (folder / "calls").read_text()


def test_a_new_job_is_known_at_once_where_the_queue_was_empty_before(folder):
    (folder / "queue").write_text("[]\n")  # as SkyPilot's server answers that runs the jobs itself
    state = Sky().state(Sky().submit(job_in(folder)))
    assert (state.phase, state.words) == (JobPhase.QUEUED, "machines are being rented")


def test_the_first_command_also_starts_skypilots_server_and_says_so_in_colours(folder):
    record = {"job_id": 3, "job_name": "a-run", "status": "RUNNING", "infra": "Slurm (lab)"}
    begin = "\x1b[2mFailed to connect. Starting a local server.\x1b[0m\n\x1b[32m✓ [x]\x1b[0m\n"
    (folder / "queue").write_text(begin + json.dumps([record], indent=2) + "\n")
    state = Sky().state(Submission("sky", "3", 0.0, {}))
    assert (state.phase, state.words) == (JobPhase.RUNNING, "runs on Slurm (lab)")
    assert "jobs queue --all --verbose" in (folder / "calls").read_text()  # else infra is null


def test_an_answer_that_is_no_queue_is_told(folder):
    (folder / "queue").write_text("[INFO] nothing\n")
    with pytest.raises(RunFailed, match=r"`sky jobs queue` answered something else: '\[INFO\] n"):
        Sky().submit(job_in(folder))


def test_what_skypilot_says_against_a_job_is_told(folder):
    (folder / "broken").write_text("\x1b[31mno credentials\x1b[0m for AWS\n")
    with pytest.raises(RunFailed, match=r"`sky jobs launch` failed: no credentials for AWS"):
        Sky().submit(job_in(folder))


def test_following_does_not_ask_all_the_time(folder):
    submission = Sky().submit(job_in(folder))
    before = (folder / "calls").read_text().count("queue")
    for _ in range(5):
        Sky().state(submission)
    assert (folder / "calls").read_text().count("queue") == before + 1
