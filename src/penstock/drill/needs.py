"""Needs of faults: what the run or the machine must have, or why a drill is left out."""

import os
import shutil
from collections.abc import Callable

from penstock.data.store.objects import is_url
from penstock.drill.faults import DrillFault, ScratchScale
from penstock.drill.store_proxy import ENDPOINT
from penstock.meter import devices
from penstock.run.schema.run import Run

SITES_STEPS = 24  # of a run whose sites are disturbed


def _root(run: Run, ranks: int) -> str:
    return "" if os.geteuid() == 0 else "needs root, to mount a disk of its own"


def _replicas(run: Run, ranks: int) -> str:
    return "" if ranks > 1 else "needs two replicas"


def _dataset(run: Run, ranks: int) -> str:
    if run.data.mix or is_url(run.data.dataset):
        return "needs one dataset on this machine, to damage a copy of it"
    return ""


def _loading(run: Run, ranks: int) -> str:
    return "in live mode nobody loads" if run.guard.mode == "live" else ""


def _store(run: Run, ranks: int) -> str:
    http = os.environ.get(ENDPOINT, "").startswith("http:")
    if not (http and run.guard.durable and is_url(run.guard.durable)):
        return f"needs guard.durable at a URL, and {ENDPOINT} with http"
    return ""


def bucket_of(run: Run) -> str:
    """Return the URL below which sites of a drill meet; empty if the run names none."""
    named = (run.sites.bucket if run.sites else "", run.guard.durable)
    return next((where for where in named if where and is_url(where)), "")


def _sites(run: Run, ranks: int) -> str:
    if run.layout is not None or run.guard.mode == "live" or run.cluster.nodes > 1:
        return "needs a run on one node whose layout is chosen by the planner, and restarts"
    if not (bucket_of(run) and os.environ.get(ENDPOINT, "").startswith("http:")):
        return f"needs sites.bucket or guard.durable at a URL, and {ENDPOINT} with http"
    return ""


def _hosts(run: Run, ranks: int) -> str:
    if run.layout is not None or run.guard.mode == "live":
        return "needs a run whose layout is chosen by the planner, and restarts"
    if devices.find().kind != "cpu":
        return "needs ranks on CPUs: the hosts of a drill would share the accelerators"
    if not shutil.which("ip") or not shutil.which("iptables"):
        return "needs iproute2 and iptables, for hosts in network namespaces"
    return ""


def too_short(fault: DrillFault, scale: ScratchScale) -> str:
    """Return why a scratch run of this length is too short for the fault; "" if it is not."""
    if "sites" in fault.needs and scale.steps < SITES_STEPS:
        return f"needs rounds before and after the fault: at least {SITES_STEPS} steps"
    if "two_checkpoints" not in fault.needs or scale.two_checkpoints:
        return ""
    return f"needs two checkpoints: at least {scale.steps_for_two_checkpoints()} steps"


CHECKS: dict[str, Callable[[Run, int], str]] = {
    "loading": _loading,
    "root": _root,
    "replicas": _replicas,
    "dataset": _dataset,
    "hosts": _hosts,
    "store": _store,
    "sites": _sites,
}


def missing(fault: DrillFault, run: Run, ranks: int, scale: ScratchScale) -> str:
    """Return the first need that is not met; "" when all are."""
    checks = [CHECKS[need] for need in fault.needs if need in CHECKS]
    unmet = (why for check in checks if (why := check(run, ranks)))
    return too_short(fault, scale) or next(unmet, "")
