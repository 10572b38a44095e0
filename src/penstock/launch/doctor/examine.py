"""The examination of all nodes of a cluster: orders go out, readings come back, one verdict.

The full form takes less than a minute. The short form, which `train` runs first, leaves out what
needs torch: accelerators, collectives and layouts.
"""

import time
from typing import Any

from penstock.launch.doctor import judge
from penstock.launch.doctor.finding import Examination, bad
from penstock.launch.doctor.fleet import Fleet, Target, open_fleet, without_errors
from penstock.launch.doctor.lines import ERROR
from penstock.launch.doctor.links import (
    judge_links,
    measure_links,
    stated_rate,
)
from penstock.launch.doctor.together import Progress, WorldChecks
from penstock.launch.engines.ssh import handed_on
from penstock.run.paths import located_paths
from penstock.run.save import to_toml
from penstock.run.schema.run import Run

PINGS = 5
CHECK_S = 40.0
ACCELERATOR_S = 60.0
IMPORT_S = 120.0  # of torch, from a cold disk
FULL_S = 50.0  # no further layout is begun after so long


def examine(
    target: Target,
    run: Run | None = None,
    short: bool = False,
    folder: str = "",
    progress: Progress = lambda what: None,
) -> Examination:
    """Examine every node of a cluster, for a run where one is given."""
    began, found = time.monotonic(), Examination()
    progress("reaching the nodes")
    with open_fleet(target) as fleet:
        doctor = Doctor(fleet, target, run, short, folder, found, progress, began)
        doctor.examine()
    found.took_s = time.monotonic() - began
    return found


class Doctor:
    """One examination."""

    def __init__(
        self,
        fleet: Fleet,
        target: Target,
        run: Run | None,
        short: bool,
        folder: str,
        found: Examination,
        progress: Progress,
        began: float,
    ) -> None:
        self.fleet, self.target, self.run, self.short = fleet, target, run, short
        self.folder, self.found, self.progress, self.began = folder, found, progress, began
        self.ranks: dict[str, int] = {}
        self.kind = "cpu"

    def examine(self) -> None:
        fleet, found = self.fleet, self.found
        found.nodes = (*fleet.nodes, *fleet.failed)
        found.add(*judge.judge_failed(fleet.failed))
        self._begin()
        if not fleet.nodes:
            return
        if not self.short:
            self._start_ranks()
        self.progress("clocks, disks and data")
        self._clocks()
        disks = self._ask("disk", {"do": "disks"})
        found.add(*judge.judge_disks(disks, self.run))
        self._data()
        if not self.short:
            self._about_ranks()
        self._links()
        if not self.short:
            self._accelerators()
            checks = WorldChecks(
                self.fleet, self.target, self.run, self.ranks, self.kind, found, self.progress
            )
            checks.check(self.began + FULL_S)

    def _ask(self, check: str, order: dict[str, Any], timeout_s: float = CHECK_S) -> Any:
        """Ask all nodes; one without an answer is named, and asked nothing more."""
        answers = self.fleet.ask(order, timeout_s=timeout_s)
        for node, answer in answers.items():
            if ERROR in answer:
                self.found.add(*judge.judge_errors(check, {node: answer}))
                self.fleet.drop(node)
        good_ones = without_errors(answers)
        self.found.facts[check] = dict(good_ones)
        return good_ones

    def _begin(self) -> None:
        order = {
            "do": "begin",
            "run": to_toml(self.run) if self.run else None,
            "paths": located_paths(self.run) if self.run else {},
            "folder": self.folder or None,
            "interface": self.target.interface,
            "env": handed_on() if self.target.launcher == "ssh" else {},
        }
        answers = self._ask("versions", order)
        self.found.add(*judge.judge_software(answers))

    def _clocks(self) -> None:
        """Read the clocks: an offset is known to half of the time that the question took."""
        offsets: dict[str, tuple[float, float]] = {}
        for node in self.fleet.nodes:
            for _ in range(PINGS):
                before, start = time.time(), time.monotonic()
                answer = self.fleet.ask({"do": "time"}, [node])[node]
                trip_s = time.monotonic() - start
                if ERROR in answer:
                    continue
                read = (answer["time"] - (before + trip_s / 2), trip_s / 2)
                offsets[node] = min(offsets.get(node, read), read, key=lambda one: one[1])
        self.found.facts["clocks"] = {
            node: {"offset_s": offset, "open_s": open_s}
            for node, (offset, open_s) in offsets.items()
        }
        self.found.add(*judge.judge_clocks(offsets))

    def _data(self) -> None:
        if self.run is None:
            return
        data = self._ask("data", {"do": "data", "verify": not self.short})
        store = self._ask("store", {"do": "store"})
        self.found.add(*judge.judge_data(data, store))

    def _links(self) -> None:
        if len(self.fleet.nodes) < 2:
            return
        self.progress("links between the nodes")
        by_nccl = self.kind == "cuda"
        stated = stated_rate(self.target.file, by_nccl)
        links = measure_links(self.fleet, "short" if self.short else "full", stated)
        self.found.facts["links"] = {
            link.names: {"bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
            for link in links
        }
        nodes = len(self.fleet.nodes)
        self.found.add(*judge_links(links, self.target.file, by_nccl, nodes))

    # Accelerators

    def _start_ranks(self) -> None:
        several = len(self.fleet.nodes) > 1
        order = {
            "do": "start_ranks",
            "accelerators": self.target.accelerators,
            # One process stands for all cores of a node; alone, it needs others to talk to.
            "most_on_cpu": 1 if several else 4,
        }
        answers = self._ask("ranks", order)
        self.ranks = {node: answer["ranks"] for node, answer in answers.items()}
        kinds = {answer["kind"] for answer in answers.values()}
        self.kind = "cuda" if kinds == {"cuda"} else "cpu"
        if len(kinds) > 1:
            lacking = [node for node, a in answers.items() if a["kind"] == "cpu"]
            words = "it has no accelerator that the driver shows, and other nodes have some"
            self.found.add(bad("accelerators", lacking, words, "look at `nvidia-smi` there"))

    def _about_ranks(self) -> None:
        self.progress("importing torch")
        self._ask("torch", {"do": "about_ranks"}, timeout_s=IMPORT_S)

    def _accelerators(self) -> None:
        self.progress("accelerators")
        order = {"do": "accelerators", "timeout_s": ACCELERATOR_S}
        answers = self._ask("accelerators", order, timeout_s=ACCELERATOR_S + 5)
        kind = {"kind": self.kind}
        told = {
            node: {rank: {**facts, **kind} for rank, facts in ranks.items()}
            for node, ranks in answers.items()
        }
        self.found.add(*judge.judge_accelerators(told))
