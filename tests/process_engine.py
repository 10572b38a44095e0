"""An engine whose nodes are processes of this machine. A job waits while `HELD` is set."""

import itertools
import os
import time
from typing import ClassVar

from penstock.launch.engines.engine import JOB_LOGS, JobPhase, JobSpec, JobState, Submission
from penstock.launch.supervisor import preload

Process = preload.ForkedProcess | preload.subprocess.Popen[bytes]


class ProcessEngine:
    """The engine of tests on machines without a scheduler."""

    name = "processes"
    held: ClassVar[bool] = False
    waiting: ClassVar[dict[str, JobSpec]] = {}
    started: ClassVar[dict[str, list[Process]]] = {}
    numbers: ClassVar["itertools.count[int]"] = itertools.count(1)

    def refusals(self, job: JobSpec) -> list[str]:
        return ["cluster.nodes = 9: too many; ask for 8"] if job.run.cluster.nodes == 9 else []

    def text(self, job: JobSpec) -> str:
        return f"{job.hosts} × penstock train {job.run_file} for {job.token}"

    def submit(self, job: JobSpec) -> Submission:
        number = str(next(self.numbers))
        self.waiting[number] = job
        return Submission("slurm", number, time.time(), {})

    def state(self, submission: Submission) -> JobState:
        number = submission.job
        if number in self.waiting:
            if self.held:
                return JobState(JobPhase.QUEUED, "waits for its turn")
            job = self.waiting.pop(number)
            self.started[number] = [_start(job, one) for one in range(job.hosts)]
        if all(one.poll() is not None for one in self.started.get(number, [])):
            return JobState(JobPhase.ENDED, "ended: all processes are gone")
        return JobState(JobPhase.RUNNING, "running as processes")

    def cancel(self, submission: Submission) -> None:
        self.waiting.pop(submission.job, None)
        for one in self.started.get(submission.job, []):
            if one.poll() is None:
                one.kill()
                one.wait()


def _start(job: JobSpec, number: int) -> Process:
    folder = job.run_file.parent
    memory = folder / "memory" / str(number)
    memory.mkdir(parents=True, exist_ok=True)
    env = os.environ | job.env | {"PENSTOCK_NODE": f"node{number}"}
    env |= {"PENSTOCK_MEMORY": str(memory), "PENSTOCK_ADDRESS": "127.0.0.1"}
    with (folder / "logs" / f"{JOB_LOGS}{number}.log").open("ab") as out, open(os.devnull) as none:
        fds = {0: none.fileno(), 1: out.fileno(), 2: out.fileno()}
        return preload.python_m(["penstock", "train", str(job.run_file)], env, fds)
