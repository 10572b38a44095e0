"""Why Slurm would not start a run: asked of Slurm itself before anything is submitted."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import nearest
from penstock.launch.engines.engine import JobSpec
from penstock.launch.engines.slurm_script import notice_s
from penstock.style import format_duration

Ask = Callable[..., str]
UNLIMITED = float("inf")
# Error texts of sbatch, and the field that each is about.
_BLAMED = (
    ("invalid account", "account"),
    ("invalid qos", "qos"),
    ("invalid feature", "constraint"),
    ("invalid partition", "partition"),
    ("invalid generic resource", "gpus"),
    ("more processors requested", "nodes"),
    ("node count", "nodes"),
    ("requested time limit is invalid", "time"),
)


@dataclass(frozen=True)
class Partition:
    """A partition, as far as a run can be refused by it."""

    name: str
    nodes: int
    most_nodes: float  # of one job
    most_s: float  # of one job
    state: str
    default: bool


def refusals_of(job: JobSpec, script: str, defaults: dict[str, str], ask: Ask) -> list[str]:
    """Return everything that is wrong, one line each: field, value, fix."""
    own, found = job.run.cluster.slurm, list[str]()
    if own.time is not None and own.time <= 2 * notice_s(job.run):
        found.append(
            f'cluster.slurm.time = "{format_duration(own.time)}": the run is told to save '
            f"{notice_s(job.run)} s before the end (guard.grace and a margin), so nothing is "
            f"trained; write at least {format_duration(4 * notice_s(job.run))}, or a shorter "
            "guard.grace"
        )
    try:
        partitions = parse_partitions(ask("scontrol", "-o", "show", "partition"))
    except OSError as error:
        if job.dry:  # what would be submitted can be read anywhere
            return found
        return [
            f'cluster.launcher = "slurm": {error}; give the command on a machine with the commands '
            "of Slurm and its configuration, such as a login node"
        ]
    found += _partition_problems(job, partitions, defaults)
    found += _same_name(job, ask)
    if not found:
        found += _sbatch_problems(job, script, ask)
    return found


def parse_partitions(printed: str) -> dict[str, Partition]:
    """Read what `scontrol -o show partition` printed."""
    found = {}
    for line in printed.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if name := fields.get("PartitionName"):
            found[name] = Partition(
                name,
                int(fields.get("TotalNodes", "0") or 0),
                _number(fields.get("MaxNodes", "")),
                _seconds(fields.get("MaxTime", "")),
                fields.get("State", "UP"),
                fields.get("Default") == "YES",
            )
    return found


def _partition_problems(
    job: JobSpec, partitions: dict[str, Partition], defaults: dict[str, str]
) -> list[str]:
    run, own = job.run, job.run.cluster.slurm
    asked = own.partition or defaults.get("partition")
    names = asked.split(",") if asked else [p.name for p in partitions.values() if p.default]
    if unknown := [name for name in names if name not in partitions]:
        hint = nearest(unknown[0], partitions) or f"there are {', '.join(partitions)}"
        return [f'cluster.slurm.partition = "{asked}": Slurm has no {unknown[0]}; {hint}']
    if not names:
        return [
            "cluster.slurm.partition: Slurm has no default partition; write one of "
            f"{', '.join(partitions)}"
        ]
    chosen = [partitions[name] for name in names]
    found = []
    if down := [p for p in chosen if p.state != "UP"]:
        found.append(
            f'cluster.slurm.partition = "{down[0].name}": it is {down[0].state}, and jobs in it do '
            "not start; write another"
        )
    # Each job of an elastic run is one node, and tasks that find no node wait.
    most = max(p.nodes if own.elastic else min(p.nodes, p.most_nodes) for p in chosen)
    if job.hosts > most:
        spares = f" and guard.spares = {run.guard.spares}" if run.guard.spares else ""
        found.append(
            f"cluster.nodes = {run.cluster.nodes}{spares}: partition {'/'.join(names)} has "
            f"{most:.0f} nodes for one job; ask for {most:.0f} or fewer, or another "
            "cluster.slurm.partition"
        )
    longest = max(p.most_s for p in chosen)
    if own.time is not None and own.time > longest:
        found.append(
            f'cluster.slurm.time = "{format_duration(own.time)}": partition {"/".join(names)} '
            f"allows {format_duration(longest)}; write that or less, the run goes on in the next "
            "job by itself"
        )
    return found


def _same_name(job: JobSpec, ask: Ask) -> list[str]:
    """Refuse a name that another job of this user has, from another run folder."""
    try:
        printed = ask("squeue", "-h", "--me", "--name", job.run.name, "-o", "%A|%k")
    except OSError:
        return []
    folder = str(job.run_file.parent)
    others = dict(line.strip().partition("|")[::2] for line in printed.splitlines())
    for number, comment in others.items():
        where = shlex.split(comment)[0] if comment else ""
        if where != folder:
            return [
                f'name = "{job.run.name}": job {number} has this name and another run folder '
                f"({where or 'not of Penstock'}); give the run another name, or end that job with "
                f"`scancel {number}`"
            ]
    return []


def _sbatch_problems(job: JobSpec, script: str, ask: Ask) -> list[str]:
    """Let sbatch check the whole script; it knows accounts, QOS, features and limits."""
    try:
        ask("sbatch", "--test-only", stdin=script)
    except OSError as error:
        said = str(error).partition("error: ")[2] or str(error)
        said = said.removeprefix("Batch job submission failed: ").removeprefix(
            "allocation failure: "
        )
        for words, field in _BLAMED:
            if words in said.lower():
                return [_blame(job, field, said)]
        return [f"cluster.slurm: sbatch would refuse the run: {said}"]
    return []


def _blame(job: JobSpec, field: str, said: str) -> str:
    if field == "nodes":
        return f"cluster.nodes = {job.run.cluster.nodes}: sbatch would refuse the run: {said}"
    value = getattr(job.run.cluster.slurm, field)
    shown = f' = "{value}"' if value is not None else ""
    fix = {
        "account": "`sacctmgr show associations user=$USER` lists yours",
        "qos": "`sacctmgr show qos` lists them",
        "constraint": "`sinfo -o %f` lists the features of nodes",
    }.get(field, "`sinfo` shows what there is")
    return f"cluster.slurm.{field}{shown}: sbatch would refuse the run: {said}; {fix}"


def _number(text: str) -> float:
    return float(text) if text.isdigit() else UNLIMITED


def _seconds(text: str) -> float:
    """Read a time limit: `1-02:00:00`, `10:00:00`, or UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not found:
        return UNLIMITED
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
