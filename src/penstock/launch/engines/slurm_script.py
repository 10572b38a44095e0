"""The batch script of a run on Slurm: one allocation, or one job of an array for each node.

In both, `srun` starts `penstock train` once per node, and the hosts find each other. Traps that the
script avoids: SIGTERM to `srun` itself kills its tasks, so the tasks are signalled by `scancel`; a
job that was cancelled must not requeue itself; `SLURM_*` variables of an outer job reach the
ranks unless they are removed.
"""

import math
import shlex
import sys
from collections.abc import Iterator

from penstock.launch.engines.engine import JOB_LOGS, JobSpec
from penstock.launch.hosts.meeting import LEAST
from penstock.launch.prepare.nodes import devices_of_nodes
from penstock.policy.spares import majority
from penstock.run.schema.run import Run

SAVE_MARGIN_S = 30.0  # beside guard.grace: until the ranks hear of the signal, and to requeue
LEAVE_S = 10.0
ASK_AGAIN = 75  # exit code: the job should be queued again, and could not do it itself
# Defaults of sbatch that a site may set for its users; the script names them instead.
DEFAULTS = {
    "partition": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "qos": "SBATCH_QOS",
    "constraint": "SBATCH_CONSTRAINT",
}


def batch_script(job: JobSpec, defaults: dict[str, str]) -> str:
    """Return the script for `sbatch`. `defaults` are the site's, for fields that are left out."""
    lines = [*(f"#SBATCH {option}" for option in options(job, defaults)), ""]
    return "\n".join(["#!/bin/bash", *lines, *_body(job, inside=False)]) + "\n"


def allocation_script(job: JobSpec) -> str:
    """Return the script for an allocation that exists already: no options, the same body."""
    return "\n".join(["#!/bin/bash", *_body(job, inside=True)]) + "\n"


def options(job: JobSpec, defaults: dict[str, str]) -> Iterator[str]:
    """Yield the options of `sbatch`, the user's own last: they win."""
    run, own = job.run, job.run.cluster.slurm
    logs = job.run_file.parent / "logs"
    yield f"--job-name={shlex.quote(run.name)}"
    yield f"--comment={shlex.quote(str(job.run_file.parent))}"
    yield f"--chdir={shlex.quote(str(job.folder))}"
    if own.elastic:
        yield f"--array=0-{job.hosts - 1}"
        yield "--nodes=1"
        yield f"--output={shlex.quote(f'{logs}/{JOB_LOGS}%A_%a.log')}"
    else:
        yield f"--nodes={job.hosts}"
        yield "--no-kill"
        yield f"--output={shlex.quote(f'{logs}/{JOB_LOGS}%j.log')}"
    yield "--open-mode=append"
    yield "--ntasks-per-node=1"
    yield "--requeue"
    yield f"--signal=B:TERM@{notice_s(run)}"
    if own.time is not None:
        yield f"--time={slurm_time(own.time)}"
    for field in ("partition", "account", "qos", "constraint"):
        if value := getattr(own, field) or defaults.get(field):
            yield f"--{field}={shlex.quote(value)}"
    yield from _resources(run)
    yield from own.lines


def _resources(run: Run) -> Iterator[str]:
    """Yield what a node gives to the run: all of it, unless the file asks for some accelerators."""
    own, asked = run.cluster.slurm, run.cluster.accelerators
    # Two nodes of an elastic run must not be one machine.
    if asked == "all" or own.elastic:
        yield "--exclusive"
        yield "--mem=0"
    devices = devices_of_nodes(run)
    if own.gpus:
        yield f"--gres={shlex.quote(own.gpus)}"
    elif devices.kind == "cuda":
        yield f"--gres=gpu:{devices.ranks(asked)}"
    elif asked != "all":
        yield f"--cpus-per-task={asked}"


def notice_s(run: Run) -> int:
    """Return how long before the time limit the job is told to save."""
    return math.ceil(run.guard.grace + SAVE_MARGIN_S)


def slurm_time(seconds: float) -> str:
    """Return a time limit as Slurm reads it; it counts in minutes."""
    minutes = max(1, math.ceil(seconds / 60))
    days, rest = divmod(minutes, 24 * 60)
    return (
        f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"
        if days
        else f"{rest // 60}:{rest % 60:02d}:00"
    )


def _body(job: JobSpec, inside: bool) -> Iterator[str]:
    own = job.run.cluster.slurm
    env = dict(job.env)
    if not own.elastic:  # whose jobs start when nodes become free, the first one for itself
        env[LEAST] = str(majority(job.run.cluster.nodes))
    for name, value in env.items():
        yield f"export {name}={shlex.quote(value)}"
    yield from own.setup
    yield ""
    orphans = not inside and not own.elastic and job.hosts > 1
    yield f"node={shlex.quote(_node_command(job) + (_END_ORPHAN if orphans else ''))}"
    yield f'{_srun(job, inside)} bash -c "$node" &'
    yield "runner=$! ending="
    if not inside:
        yield _ON_NOTICE.replace("FOLDER", shlex.quote(str(job.run_file.parent)))
    yield "code=143"
    yield 'while kill -0 "$runner" 2>/dev/null; do wait "$runner"; code=$?; done'
    if inside:
        yield 'exit "$code"'
        return
    yield _REQUEUE.replace(
        "THIS", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if own.elastic else "$SLURM_JOB_ID"
    ).replace("AGAIN", str(ASK_AGAIN))
    if own.elastic:
        yield _DROP_PENDING
    yield 'exit "$code"'


# The notice reaches the batch shell alone (`B:`). Its ranks get SIGTERM by scancel; where there is
# none, the run's own control file asks for the same.
_ON_NOTICE = """\
notice() {
  ending=1
  scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || touch FOLDER/control/stop
}
trap notice TERM"""

# A job that was cancelled gets SIGTERM too, and is then no longer RUNNING.
_REQUEUE = """\
if [ -n "$ending" ]; then
  state=$(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null)
  if [ "${state:-RUNNING}" = RUNNING ]; then
    scontrol requeue "THIS" && exit 0
    echo "this job has saved and cannot queue itself again; exit code AGAIN asks for it"
    exit AGAIN
  fi
fi"""

# The run has ended well on this node, so tasks of the array that still wait have nothing to do.
_DROP_PENDING = """\
if [ "$code" = 0 ] && [ -z "$ending" ]; then
  scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" 2>/dev/null
fi"""


# When the node of the batch script is lost, the others train on to the end of the run, and nobody
# is left to end the job. `srun` was on that node: whether it is there is asked of its port.
_END_ORPHAN = '''
code=$?
if [ "$code$told" = 0 ] && command -v timeout >/dev/null && command -v scancel >/dev/null &&
  ! timeout 10 bash -c "exec 3<>/dev/tcp/$runner" 2>/dev/null; then
  echo "the run has ended, and the node of its batch script is gone: this job is cancelled"
  env ${conf:+SLURM_CONF="$conf"} scancel "$job"
fi
exit "$code"'''


def _node_command(job: JobSpec) -> str:
    """Return what runs on each node, in a shell of its own.

    The shell outlives SIGTERM, which its process group gets, until `penstock` has saved.
    """
    own, file = job.run.cluster.slurm, shlex.quote(str(job.run_file))
    if own.container:
        train = f"penstock train {file}"
        if own.container_by == "apptainer":
            train = f"{_apptainer(job)} {train}"
    else:
        train = f"{shlex.quote(sys.executable)} -m penstock train {file}"
    return (
        "export PENSTOCK_NODE=${SLURMD_NODENAME:-$(hostname)}; "
        "job=$SLURM_JOB_ID conf=$SLURM_CONF told=; "
        "runner=$SLURM_SRUN_COMM_HOST/$SLURM_SRUN_COMM_PORT; "
        "unset ${!SLURM_@} ${!SBATCH_@} ${!PMI_@} ${!PMIX_@}; trap told=1 TERM; "
        f"if [ ! -r {file} ]; then "
        f'echo "$PENSTOCK_NODE does not see "{file}"; '
        'set dir to a folder that all nodes share" >&2; '
        f"exit 2; fi; {train}"
    )


def _apptainer(job: JobSpec) -> str:
    own = job.run.cluster.slurm
    binds = dict.fromkeys([str(job.folder), str(job.run_file.parent.parent)])
    gpus = " --nv" if own.gpus or devices_of_nodes(job.run).kind == "cuda" else ""
    bound = "".join(f" --bind {shlex.quote(folder)}" for folder in binds)
    where = shlex.quote(str(job.folder))
    return f"apptainer exec{gpus}{bound} --pwd {where} {shlex.quote(own.container or '')}"


def _srun(job: JobSpec, inside: bool) -> str:
    """Return `srun` with its options: a lost node or a failed task does not end the others."""
    own = job.run.cluster.slurm
    words = ["srun", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1"]
    if inside:
        words += ["--overlap", f"--job-name={job.run.name}", f"--nodes={job.hosts}"]
        words += [f"--chdir={job.folder}"]
    if own.container and own.container_by == "pyxis":
        mounts = dict.fromkeys([str(job.folder), str(job.run_file.parent.parent)])
        words += [f"--container-image={own.container}", f"--container-workdir={job.folder}"]
        words += ["--container-mounts=" + ",".join(f"{one}:{one}" for one in mounts)]
    return shlex.join(words)
