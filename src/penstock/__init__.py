"""Penstock: one run file in, a trained model and its ledger out."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.run.file import Run


def load(path: str, *overrides: str) -> "Run":
    """Read and check a run file; `overrides` are dotted, as on the command line."""
    from penstock.run.load import load

    return load(path, list(overrides))


def train(run: "Run | str", fork: str | None = None, fresh: bool = False) -> dict[str, Any]:
    """Train a run (or go on with it) on this machine; its report."""
    from penstock.launch.start import start
    from penstock.watch import outlets
    from penstock.watch.report import summary

    run, elsewhere = load(run) if isinstance(run, str) else run, outlets.Elsewhere()
    outlets.check(run)
    try:
        folder = start(run, fork=fork, fresh=fresh, listener=elsewhere)
    finally:
        elsewhere.ended()
    return summary(folder)


def plan(run: "Run | str") -> dict[str, Any]:
    """What a run will take on its cluster, before anything is started."""
    from penstock.plan.cluster import machine_for
    from penstock.plan.make import make

    run = load(run) if isinstance(run, str) else run
    found = machine_for(run)
    return make(run, found.machine, found.warnings).to_json()


def report(run: "Run | str") -> dict[str, Any]:
    """What is known of a run: a `Run`, its name under `runs/`, its folder or its run file."""
    from penstock.run.folder import RunFolder, find
    from penstock.watch.report import summary

    return summary(find(run) if isinstance(run, str) else RunFolder(run.folder))


_VERBS = {"plan": plan, "train": train}


class _Package(ModuleType):
    """`penstock.train` and `penstock.plan` are verbs and rooms. Importing the room would hide the
    verb, since the import system binds it here under the same name; so the room is made callable
    as the verb."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _VERBS:
            verb = staticmethod(_VERBS[name])
            value.__class__ = type("VerbAndRoom", (ModuleType,), {"__call__": verb})
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
