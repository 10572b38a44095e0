"""The ssh engine: `penstock train` once on each host of a list, detached from this machine.

It checks the hosts first and installs nothing. The hosts go on when this machine is gone; if one
of them dies, the others go on without it.
"""

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from penstock.errors import RunFailed
from penstock.found import expanded_path
from penstock.launch.engines.engine import JOB_LOGS, JobPhase, JobSpec, JobState, Submission
from penstock.launch.ssh import checks
from penstock.launch.ssh.hosts import (
    Ssh,
    SshHost,
    Unreachable,
    connected,
    each,
    nodes_of,
)
from penstock.launch.ssh.node import MODULE
from penstock.run.paths import located_paths
from penstock.run.save import visible_toml
from penstock.run.schema.engines import SshSection
from penstock.run.schema.run import Run

# Variables of this machine that the hosts get: credentials of buckets and trackers. They travel
# inside the ssh connection and are not written to a disk.
HANDED_ON = ("AWS_", "GOOGLE_", "AZURE_", "HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_")
Order = dict[str, Any]
END_S = 60.0  # beyond the grace of a run: SIGKILL, and the connection


def handed_on() -> dict[str, str]:
    """Return the variables that hosts get from this machine."""
    return {k: v for k, v in os.environ.items() if k.startswith(HANDED_ON)}


@dataclass(frozen=True)
class SshJob:
    """The hosts of a job, and the folders that they use."""

    section: SshSection
    nodes: dict[str, SshHost]
    folder: str
    """Folder on the hosts that the run works in."""
    run_folder: str

    def orders(self, name: str, run: str, job: JobSpec, env: Mapping[str, str]) -> Iterator[Order]:
        """Yield what each node is told to start."""
        for node in self.nodes:
            yield {
                "job": name,
                "node": node,
                "folder": self.folder,
                "run_folder": self.run_folder,
                "log": f"{self.run_folder}/logs/{JOB_LOGS}{name}-{node}.log",
                "env": {**env, **job.env},
                "paths": located_paths(job.run),
                "files": _sent_files(job.run),
                "run": run,
            }


def job_of(job: JobSpec) -> SshJob:
    """Return the hosts and folders of a job."""
    section = job.run.cluster.ssh
    folder = section.folder or str(job.folder)
    run_folder = str(PurePosixPath(folder, job.run.dir, job.run.name))
    return SshJob(section, nodes_of(section), folder, run_folder)


class SshEngine:
    """The engine of `cluster.launcher = "ssh"`."""

    name = "ssh"

    def refusals(self, job: JobSpec) -> list[str]:
        """Return why this job cannot start on its hosts, a line each."""
        wrong = checks.section_refusals(job.run)
        if wrong:
            return wrong
        made = job_of(job)
        ssh, where = connected(made.section), (made.folder, made.run_folder, job.folder)
        return checks.host_refusals(ssh, made.nodes, job.run, *where, handed_on())

    def text(self, job: JobSpec) -> str:
        """Return the commands, what they read, and the run file that every host gets."""
        made, ssh = job_of(job), Ssh(job.run.cluster.ssh)
        names = sorted(handed_on())
        lines = [
            "# Each command reads the JSON object below it. The hosts also get the variables "
            + (", ".join(names) if names else "AWS_*, GOOGLE_*, AZURE_*; none is set here"),
        ]
        for order in made.orders(_job_name(job), "…", job, {}):
            host = made.nodes[order["node"]]
            lines += [shlex.join(ssh.command(host, ssh.python("-m", MODULE, "start")))]
            lines += [json.dumps(order, ensure_ascii=False)]
        lines += ["", "# The run file, in place of …", visible_toml(job.run)]
        return "\n".join(lines)

    def submit(self, job: JobSpec) -> Submission:
        """Start the run on every host; a host that fails now is left out."""
        made = job_of(job)
        name, run = _job_name(job), job.run_file.read_text()
        orders = {order["node"]: order for order in made.orders(name, run, job, handed_on())}
        answers = _ask(connected(made.section), made.nodes, "start", orders)
        wrong = {node: answer["error"] for node, answer in answers.items() if "error" in answer}
        if len(wrong) == len(answers):
            raise RunFailed("\n".join(f"{node}: {why}" for node, why in wrong.items()))
        detail = {
            "section": made.section.model_dump_json(),
            "grace_s": str(job.run.guard.grace),
            "not_started": json.dumps(wrong),
        }
        return Submission(self.name, name, time.time(), detail)

    def state(self, submission: Submission) -> JobState:
        """Ask every host whether its process runs."""
        section, nodes = _of(submission)
        return job_state(_ask(connected(section), nodes, "state", _orders(submission, nodes)))

    def cancel(self, submission: Submission) -> None:
        """End everything that was started on every host."""
        section, nodes = _of(submission)
        grace_s = float(submission.detail["grace_s"])
        orders = _orders(submission, nodes, grace_s=grace_s)
        answers = _ask(connected(section), nodes, "end", orders, grace_s + END_S)
        wrong = [f"{node}: {a['error']}" for node, a in answers.items() if "error" in a]
        wrong += [
            f"{node}: processes {', '.join(map(str, a['left']))} cannot be ended: the kernel holds "
            "them for a device or a disk"
            for node, a in answers.items()
            if a.get("left")
        ]
        if wrong:
            raise RunFailed("\n".join([*wrong, f"job {submission.job} is ended on the others"]))


def job_state(answers: Mapping[str, Mapping[str, Any]]) -> JobState:
    """Return the state of a job from what its hosts answered."""
    running = tuple(node for node, a in answers.items() if a.get("phase") == "running")
    silent = {node: str(a["error"]) for node, a in answers.items() if "error" in a}
    gone = {
        node: _how_it_ended(a)
        for node, a in answers.items()
        if a.get("phase") in ("ended", "absent") and a.get("code") != 0
    }
    notes = [f"{node}: {why}" for node, why in {**silent, **gone}.items()]
    if running:
        words = [f"runs on {len(running)} of {len(answers)} hosts", *notes]
        return JobState(JobPhase.RUNNING, "; ".join(words), running)
    if len(silent) == len(answers):
        return JobState(JobPhase.UNKNOWN, "; ".join(notes))
    # Hosts that are silent do not count: a host that is dead must not keep an ended run open.
    return JobState(JobPhase.ENDED, "; ".join(["ended", *notes]))


def _how_it_ended(answer: Mapping[str, Any]) -> str:
    if answer["phase"] == "absent":
        return "was not started"
    code, said = answer["code"], answer.get("said", "")
    how = "was killed" if code is None or code < 0 else f"exit code {code}"
    return f"{how}: {said}" if said else how


def _sent_files(run: Run) -> dict[str, str]:
    """Return the cluster file by its relative path, as hosts may share no folder with this one."""
    use = run.cluster.use
    if not use.endswith(".toml") or PurePosixPath(use).is_absolute() or use.startswith("~"):
        return {}
    return {str(use): expanded_path(use).read_text()}


def _job_name(job: JobSpec) -> str:
    """Return the name of the job: everything that is started carries it."""
    return f"{job.run.name}-{job.token[:8]}"


def _of(submission: Submission) -> tuple[SshSection, dict[str, SshHost]]:
    section = SshSection.model_validate_json(submission.detail["section"])
    return section, nodes_of(section)


def _orders(
    submission: Submission, nodes: Mapping[str, SshHost], **more: Any
) -> dict[str, dict[str, Any]]:
    return {node: {"job": submission.job, "node": node, **more} for node in nodes}


def _ask(
    ssh: Ssh,
    nodes: Mapping[str, SshHost],
    verb: str,
    orders: Mapping[str, Mapping[str, Any]],
    timeout_s: float = checks.ANSWER_S,
) -> dict[str, dict[str, Any]]:
    """Ask every node at once; one that does not answer has an "error" in place of its answer."""

    def ask(node: str) -> dict[str, Any]:
        try:
            return checks.ask(ssh, nodes[node], verb, orders[node], timeout_s)
        except (Unreachable, RunFailed) as error:
            return {"error": str(error)}

    return each(nodes, ask)
