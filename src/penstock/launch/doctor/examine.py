"""The examination of all nodes of a cluster: orders go out, readings come back, one verdict.

The full form takes less than a minute. The short form, which `train` runs first, leaves out what
needs torch: accelerators, collectives and layouts.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.launch.doctor import equality, judge
from penstock.launch.doctor.finding import Examination, bad, good, note
from penstock.launch.doctor.fleet import Fleet, Target, open_fleet, without_errors
from penstock.launch.doctor.lines import ERROR, Answer
from penstock.launch.doctor.links import (
    judge_links,
    measure_links,
    stated_rate,
    tier_between_nodes,
)
from penstock.launch.engines.ssh import handed_on
from penstock.launch.hosts.meeting import SECRET_BYTES
from penstock.run.paths import located_paths
from penstock.run.save import to_toml
from penstock.run.schema.run import Run

PINGS = 5
CHECK_S = 40.0
ACCELERATOR_S = 60.0
TOGETHER_S = 90.0
FULL_S = 50.0  # no further layout is begun after so long
ALL_REDUCE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
SLOW_COLLECTIVE = 0.5  # of what the cluster file says

Progress = Callable[[str], None]


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
            self._together()

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
        self._ask("torch", {"do": "about_ranks"}, timeout_s=TOGETHER_S)

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

    def _together(self) -> None:
        """Check collectives and layouts on the good nodes together."""
        spoiled = self.found.bad_nodes
        nodes = [node for node in self.fleet.nodes if node not in spoiled and node in self.ranks]
        ranks = sum(self.ranks[node] for node in nodes)
        if ranks < 2:
            words = "one accelerator: there is no other to compute with"
            self.found.add(note("layouts", words))
            return
        self.progress("collectives")
        problem = self._join(nodes, ranks)
        if problem:
            fix = "let every TCP port through between the nodes"
            self.found.add(bad("collectives", nodes, problem, fix, spoils=False))
            return
        if self._all_reduce(nodes, ranks):
            self._layouts(nodes, ranks)

    def _join(self, nodes: Sequence[str], ranks: int) -> str:
        """Bring the ranks of all nodes together as those of a run; return what stands against."""
        hosts: dict[str, Answer] = {}
        if len(nodes) > 1:
            order = {"do": "open_tunnel", "secret": secrets.token_hex(SECRET_BYTES)}
            hosts = self.fleet.ask(order, nodes, CHECK_S)
            if wrong := _errors(hosts):
                return wrong
        store = self.fleet.ask({"do": "open_store"}, nodes[:1], TOGETHER_S)
        if wrong := _errors(store):
            return wrong
        where = [[hosts[node]["addresses"], hosts[node]["port"]] for node in nodes if hosts]
        orders, first = {}, 0
        for own, node in enumerate(nodes):
            orders[node] = {
                "do": "join",
                "ranks": ranks,
                "first": first,
                "own": own,
                "hosts": where,
                "store": store[nodes[0]]["port"],
            }
            first += self.ranks[node]
        return _rank_errors(self.fleet.ask_each(orders, TOGETHER_S))

    def _pass_on(
        self, nodes: Sequence[str], order: dict[str, Any], only: int | None = None
    ) -> dict[str, Answer]:
        passed = {"do": "together", "order": order, "timeout_s": TOGETHER_S}
        if only is not None:
            passed["only"] = only
        return self.fleet.ask(passed, nodes, TOGETHER_S + 5)

    def _all_reduce(self, nodes: Sequence[str], ranks: int) -> bool:
        size = ALL_REDUCE_BYTES[self.kind]
        order = {"do": "all_reduce", "attempt": "all-reduce", "ranks": ranks, "bytes": size}
        answers = self._pass_on(nodes, order)
        name = "NCCL" if self.kind == "cuda" else "Gloo"
        if wrong := _rank_errors(answers):
            words = f"{name} all-reduce over {ranks} ranks broke off: {wrong}"
            fix = "set NCCL_DEBUG=INFO and look at the first error" if name == "NCCL" else ""
            self.found.add(bad("collectives", nodes, words, fix, spoils=False))
            return False
        told = [facts for ranks_ in answers.values() for facts in ranks_.values()]
        rate = min(facts["bytes_per_s"] for facts in told)
        self.found.facts["collectives"] = {"all": {"ranks": ranks, "bytes_per_s": rate}}
        if not all(facts["right"] for facts in told):
            words = f"{name} all-reduce over {ranks} ranks gave a wrong sum"
            fix = "update the driver and NCCL; do not train here"
            self.found.add(bad("collectives", nodes, words, fix, spoils=False))
            return False
        stated = self._stated_rate(nodes)
        if self.kind == "cuda" and rate < SLOW_COLLECTIVE * stated:
            words = f"{name} all-reduce over {ranks} ranks does {rate / 1e9:.3g} GB/s an "
            words += f"accelerator, and the cluster file says {stated / 1e9:.3g} GB/s"
            fix = "look which transport NCCL took: NCCL_DEBUG=INFO"
            self.found.add(bad("collectives", nodes, words, fix, spoils=False))
            return True
        words = f"{name} all-reduce over {ranks} ranks is right, {rate / 1e9:.3g} GB/s"
        self.found.add(good("collectives", words))
        return True

    def _stated_rate(self, nodes: Sequence[str]) -> float:
        file = self.target.file
        if file is None or not file.tier:
            return 0.0
        tier = tier_between_nodes(file) if len(nodes) > 1 else file.tier[0]
        return tier.bandwidth / tier.oversubscription if tier else 0.0

    def _layouts(self, nodes: Sequence[str], ranks: int) -> None:
        """Train a tiny model in every layout that the run may use, and in one process."""
        layouts = equality.layouts_to_try(ranks, self.run, self.kind)
        self.progress("layouts: one process")
        reference = {"do": "alone", "microbatch": 4}
        alone = self._pass_on(nodes[:1], reference, only=1)
        if wrong := _rank_errors(alone):
            self.found.add(bad("layouts", nodes[:1], f"one process broke off: {wrong}", ""))
            return
        expected = next(iter(alone[nodes[0]].values()))
        same = []
        for number, layout in enumerate(layouts):
            name = equality.describe(layout)
            if time.monotonic() - self.began > FULL_S:
                left = [equality.describe(one) for one in layouts[number:]]
                words = f"not tried, the minute was over: {'; '.join(left)}"
                self.found.add(note("layouts", words))
                break
            self.progress(f"layouts: {name}")
            order = {"do": "layout", "layout": layout, "attempt": number + 1}
            answers = self._pass_on(nodes, order)
            if wrong := _rank_errors(answers):
                words = f"layout {name} over {ranks} ranks broke off: {wrong}"
                self.found.add(bad("layouts", nodes, words, "", spoils=False))
                break  # ranks may still wait for each other
            if wrong := self._differs(expected, answers):
                words = f"layout {name} over {ranks} ranks does not compute what one process does: "
                fix = "do not train in this layout here; examine fewer nodes to find the bad one"
                self.found.add(bad("layouts", nodes, words + wrong, fix, spoils=False))
            else:
                same.append(name)
        if same:
            words = f"as one process, over {ranks} ranks: {'; '.join(same)}"
            self.found.add(good("layouts", words))

    def _differs(self, expected: Answer, answers: Mapping[str, Answer]) -> str:
        for node, ranks in answers.items():
            for rank, found in ranks.items():
                if wrong := equality.differences(expected, found, self.kind):
                    return f"{wrong} (accelerator {rank} of {node})"
        return ""


def _errors(answers: Mapping[str, Answer]) -> str:
    wrong = [f"{node}: {a[ERROR]}" for node, a in answers.items() if ERROR in a]
    return "; ".join(wrong)


def _rank_errors(answers: Mapping[str, Answer]) -> str:
    """Return the first error of each node whose agent or ranks have one."""
    wrong = []
    for node, ranks in answers.items():
        if ERROR in ranks:
            wrong.append(f"{node}: {ranks[ERROR]}")
            continue
        broken = [f"{rank} of {node}: {a[ERROR]}" for rank, a in ranks.items() if ERROR in a]
        wrong += [f"accelerator {one}" for one in broken[:1]]
    return "; ".join(wrong)
