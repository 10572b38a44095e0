"""The prices and carbon factors of a run: from its cluster file now, else from its launch."""

from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from penstock.errors import PenstockError
from penstock.found import expanded_path
from penstock.plan.cost.rates import CostRates, of_file
from penstock.plan.hardware.cluster import here_file
from penstock.run.clusters.file import ClusterFile
from penstock.run.clusters.load import load_cluster
from penstock.watch.facts.run_view import RunView


def rates_of(view: RunView) -> CostRates:
    """Return the rates of a run.

    A price that was written into the cluster file later counts for the whole run.
    """
    saved = view.launch.rates
    table = saved if isinstance(saved, dict) else {}
    then, today = CostRates.from_json(table), _today(view, str(table.get("seen", "")))
    names = [field.name for field in fields(CostRates)]
    found = {name: getattr(today, name) or getattr(then, name) for name in names}
    if today.usd_per_hour:  # electricity is paid apart by the price that counts, or is in it
        found["usd_per_kwh_apart"] = today.usd_per_kwh_apart
    return CostRates(**found)


def _today(view: RunView, seen: str) -> CostRates:
    use = view.run.cluster.use
    here = use == "here"
    if not here and not use.endswith(".toml"):
        return CostRates()  # a name of the catalog, whose prices move
    path = here_file() if here else expanded_path(use)
    try:
        file = _loaded(path, path.stat().st_mtime_ns)
        # The report may be read on another machine than the run ran on.
        if here and not (file.probe and file.probe.seen == seen):
            return CostRates()
        return of_file(view.run, file)
    except (OSError, PenstockError):  # gone, or not readable any more
        return CostRates()


@lru_cache(maxsize=8)
def _loaded(path: Path, changed_ns: int) -> ClusterFile:
    """Load a cluster file; cached, because pages ask every second."""
    return load_cluster(path)
