"""The part of a cluster file that decides where a run starts: launcher, nodes, engine settings."""

from typing import Any

from penstock.found import expanded_path
from penstock.run.clusters.load import load_cluster
from penstock.run.schema.run import Run
from penstock.run.schema.section import Section

ENGINE_SECTIONS = ("slurm", "ssh", "kubernetes", "sky")


def with_cluster_file(run: Run) -> Run:
    """Return the run with launcher, nodes and engine settings of its cluster file.

    Where both set a field, the run file wins.
    """
    if not run.cluster.use.endswith(".toml"):
        return run
    file, own = load_cluster(expanded_path(run.cluster.use)), run.cluster
    taken: dict[str, Any] = {
        name: getattr(file, name)
        for name in ("launcher", "nodes")
        if name in file.model_fields_set - own.model_fields_set
    }
    for name in ENGINE_SECTIONS:
        merged = _merged(getattr(file, name), getattr(own, name))
        if merged != getattr(own, name):
            taken[name] = merged
    return run.model_copy(update={"cluster": own.model_copy(update=taken)}) if taken else run


def _merged(below: Section, above: Section) -> Section:
    """Return the fields of `below`, with those that `above` sets itself."""
    return below.model_copy(update={name: getattr(above, name) for name in above.model_fields_set})
