"""The end of a run on machines elsewhere, as the command that follows it tells it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_runs import job_of
from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed
from penstock.launch.engines.engine import JobPhase, JobState, Submission
from penstock.launch.follow import refuse_failure
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.run.save import save
from penstock.run.schema.run import Run

DONE = JobState(JobPhase.ENDED, "ended: done")
OF_SKY = Submission("sky", "7", 0.0, {})


def ended(folder: Path, engine: str, saves: dict[str, int], result: str = "done") -> Run:
    """Return a run whose journal has these newest saves, by tier."""
    durable = "s3://bucket/runs" if engine != "kubernetes" else "/volume/runs"
    run = job_of(engine, f"dir={folder}", f"guard.durable={durable}").run
    made = RunFolder(run.folder)
    made.make()
    supervisor = SupervisorJournal(made.journal)
    supervisor.event("invocation", t=1.0, ranks=1)
    with Journal(made.journal, 0, clock=lambda: 2.0) as rank:
        for tier, step in saves.items():
            fields = {"path": "p", "bytes": 1, "seconds": 0.1, "manifest": "m"}
            rank.event("saved", step=step, tier=tier, **fields)
    supervisor.event("ended", t=3.0, result=result, error="")
    supervisor.close()
    return run


def test_a_last_checkpoint_that_never_reached_the_bucket_is_a_failure(tmp_path):
    run = ended(tmp_path, "sky", {"remote": 40, "disk": 60})
    told = r"ended at step 60, and that checkpoint did not reach .*, which has step 40: .*"
    with pytest.raises(RunFailed, match=told + "`sky jobs logs 7` shows why"):
        refuse_failure(run, OF_SKY, DONE)
    with pytest.raises(RunFailed, match="which has no checkpoint of it"):
        refuse_failure(ended(tmp_path / "none", "sky", {"disk": 60}), OF_SKY, DONE)


@pytest.mark.parametrize(
    ("engine", "saves"),
    [("sky", {"disk": 60, "remote": 60}), ("sky", {}), ("kubernetes", {"disk": 60})],
)
def test_what_reached_the_bucket_or_a_volume_ended_well(tmp_path, engine, saves):
    refuse_failure(ended(tmp_path, engine, saves), OF_SKY, DONE)


@pytest.mark.parametrize(
    ("submission", "command"),
    [
        (OF_SKY, "sky jobs logs 7"),
        (
            Submission("kubernetes", "a-run", 0.0, {"namespace": "lab"}),
            "kubectl logs -n lab -l app.kubernetes.io/instance=a-run",
        ),
        (Submission("slurm", "7", 0.0, {}), "penstock logs a-run"),
    ],
)
def test_a_failure_names_the_command_that_shows_what_nodes_printed(tmp_path, submission, command):
    run = ended(tmp_path, "sky", {}, result="failed")
    with pytest.raises(RunFailed, match=f"`{command}` shows what its nodes printed"):
        refuse_failure(run, submission, DONE)


def test_logs_of_nodes_elsewhere_are_asked_for_by_their_engine(tmp_path):
    run = ended(tmp_path, "sky", {})
    folder = RunFolder(run.folder)
    save(run, folder.run_file)
    OF_SKY.save(folder.path)
    done = CliRunner().invoke(app, ["logs", folder.name, "--dir", str(tmp_path)])
    assert isinstance(done.exception, PenstockError)
    assert str(done.exception).endswith("print on other machines; `sky jobs logs 7` shows it")
