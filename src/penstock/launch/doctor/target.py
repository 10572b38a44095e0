"""The cluster and the run that a command names."""

from pathlib import Path

from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.launch.doctor.fleet import Target
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.apply import with_cluster_file
from penstock.run.clusters.file import ClusterFile
from penstock.run.clusters.load import load_cluster
from penstock.run.load import load
from penstock.run.schema.run import Run


def find_target(
    run_file: str | None, overrides: list[str], on: Path | None
) -> tuple[Target, Run | None, str]:
    """Return what to examine, for which run, and the folder on the nodes that it works in."""
    run = with_cluster_file(load(run_file, overrides)) if run_file else None
    if on is not None:
        file = load_cluster(on, unmeasured=True)
        return Target.of_file(file), run, file.ssh.folder or str(Path.cwd())
    if run is None:
        return Target(file=_here()), None, ""
    target = Target.of_run(run, _file_of(run))
    return target, run, target.ssh.folder or str(Path.cwd())


def _file_of(run: Run) -> ClusterFile | None:
    use = run.cluster.use
    if use == "here":
        return _here()
    return load_cluster(expanded_path(use)) if use.endswith(".toml") else None


def _here() -> ClusterFile | None:
    """Return the probe of this machine, if there is one that can be read."""
    try:
        return load_cluster(here_file()) if here_file().is_file() else None
    except PenstockError:
        return None
