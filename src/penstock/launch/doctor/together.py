"""The checks of all accelerators together: collectives, and every layout against one process.

The ranks of all good nodes meet as those of a run do: over encrypted tunnels on CPUs, by NCCL on
the nodes' own network on GPUs.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.launch.doctor import equality
from penstock.launch.doctor.finding import Examination, bad, good, note
from penstock.launch.doctor.fleet import Fleet, Target
from penstock.launch.doctor.lines import ERROR, Answer
from penstock.launch.doctor.links import tier_between_nodes
from penstock.launch.hosts.meeting import SECRET_BYTES
from penstock.run.schema.run import Run

CHECK_S, TOGETHER_S = 40.0, 90.0
ALL_REDUCE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
SLOW_COLLECTIVE = 0.5  # of what the cluster file says

Progress = Callable[[str], None]


@dataclass
class WorldChecks:
    """The checks of one examination that need several ranks."""

    fleet: Fleet
    target: Target
    run: Run | None
    ranks: dict[str, int]  # of each node
    kind: str
    found: Examination
    progress: Progress

    def check(self, until: float) -> None:
        """Check collectives and layouts on the good nodes; begin no layout after `until`."""
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
            self._layouts(nodes, ranks, until)

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

    def _layouts(self, nodes: Sequence[str], ranks: int, until: float) -> None:
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
            if time.monotonic() > until:
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
