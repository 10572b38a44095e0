"""`penstock train --dry-run`: all checks, then what would be submitted or started, as text."""

import shlex
import sys
from dataclasses import dataclass

from penstock.errors import NotReached
from penstock.launch.engines.engine import submits
from penstock.launch.engines.table import open_engine
from penstock.launch.submit import job_for
from penstock.launch.verify import verify
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.schema.run import Run


@dataclass(frozen=True)
class DryRun:
    """The plan of `train --dry-run`: what it would submit or start."""

    engine: str
    text: str
    notes: tuple[str, ...] = ()
    """What could not be checked."""


def dry_run(run: Run) -> DryRun:
    """Check a run as `train` does, and return what it would submit or start."""
    run = with_cluster_file(run)
    found = verify(run, dry=True)
    unreached = isinstance(found.refused, NotReached)  # without credentials, what is far stays so
    if submits(run) and (unreached or not found.refused):
        engine = open_engine(run.cluster.launcher)
        notes = (f"not checked: {found.refused}",) if unreached else ()
        return DryRun(engine.name, engine.text(job_for(run)), notes)
    if found.refused:
        raise found.refused
    return DryRun("local", "\n".join(_local_lines(found.run, found.memory)))


def _local_lines(run: Run, memory: str) -> list[str]:
    hosts = run.cluster.nodes
    where = "this machine" if hosts == 1 else f"this machine, as one of {hosts} hosts"
    words = [sys.executable, "-m", "penstock.launch.supervisor.fork_server"]
    lines = [
        f"run '{run.name}' would train on {where}, in {run.folder}",
        f"ranks are forked by: {shlex.join(words)}",
    ]
    return [*lines, *([f"memory: {memory}"] if memory else [])]
