"""The nodes of a run: those at work, spares, those in repair, and lemons that fail more often.

Nodes are counted, not looped over: a node has an entry only once something happened to it.
"""

from collections import deque

from penstock.plan.life.causes import FaultClass
from penstock.policy import quarantine, spares
from penstock.policy.quarantine import HardwareFault, QuarantineState
from penstock.policy.spares import AvailableHost
from penstock.simulate.conditions import Conditions
from penstock.simulate.draws import Draws

NO_STRIKES = QuarantineState()


class NodePool:
    """All nodes of one life. A place is a position among the working nodes; a node fills it."""

    def __init__(self, own: Conditions, draws: Draws) -> None:
        self.nodes, self.per_node, self.replicas = own.nodes, own.per_node, own.replicas
        self.draws = draws
        total = own.nodes + own.spares
        count = round(own.lemons * total)
        found = draws.source.choice(total, count, replace=False).tolist() if count else []
        self.lemons = set(found)
        # Half of the failures come from the lemons; on average a node fails at the rate of a fleet.
        share = count / total
        self.good_weight = 0.5 / (1 - share) if 0 < share < 1 else 1.0
        self.lemon_weight = 0.5 / share if 0 < share < 1 else 1.0
        self.waiting = deque(range(own.nodes, total))  # spares, in the order in which they came
        self.open: set[int] = set()  # places without a node
        self.gone: set[int] = set()  # nodes in quarantine
        self.benched: list[int] = []  # those of them that are repaired
        self.lacking: dict[int, int] = {}  # open places and lost trays by replica
        self.trays_out: dict[int, int] = {}  # by node: those in repair, and those that stand in
        self.short: dict[int, list[range]] = {}  # by place: replicas of each tray that is missing
        # A node's own strikes decide about it, so that each has a state of its own.
        self._strikes: dict[int, QuarantineState] = {}
        self._at: dict[int, int] = {}  # place -> node, where it is not its first one
        self._place: dict[int, int] = {}
        self._active = [node for node in found if node < own.nodes]  # lemons at work
        self._index = {node: i for i, node in enumerate(self._active)}
        self.weight = 0.0  # how many nodes of the average rate the working ones fail like
        self._weigh()

    def _weigh(self) -> None:
        lemons = len(self._active)
        good = self.nodes - len(self.open) - lemons
        self.weight = good * self.good_weight + lemons * self.lemon_weight

    def pick(self) -> int:
        """Return the place of the node that fails next."""
        lemons = len(self._active) * self.lemon_weight
        if self.draws.uniform() * self.weight < lemons:
            node = self._active[int(self.draws.uniform() * len(self._active))]
            return self._place.get(node, node)
        while True:
            place = int(self.draws.uniform() * self.nodes)
            if place not in self.open and self.node_at(place) not in self.lemons:
                return place

    def node_at(self, place: int) -> int:
        return self._at.get(place, place)

    def replicas_at(self, place: int) -> range:
        """Return the replicas that have ranks on the node of a place."""
        nodes, replicas = self.nodes, self.replicas
        return range(place * replicas // nodes, -(-(place + 1) * replicas // nodes))

    def lose_tray(self, place: int, spares: int, tray: int) -> range:
        """Take one tray out of a node that stays; return the replicas that go on without it, none
        where a spare tray stands in.
        """
        node = self.node_at(place)
        self.trays_out[node] = self.trays_out.get(node, 0) + 1
        if self.trays_out[node] <= spares:
            return range(0)
        replicas = self.replicas_of_tray(place, tray)
        self.short.setdefault(place, []).append(replicas)
        for replica in replicas:
            self.lacking[replica] = self.lacking.get(replica, 0) + 1
        return replicas

    def tray_back(self, place: int, node: int) -> bool:
        """Take a repaired tray back into its node; return whether one was missing there."""
        if self.node_at(place) != node or place in self.open or not self.trays_out.get(node):
            return False  # the whole node went to repair meanwhile
        self.trays_out[node] -= 1
        if place not in self.short:
            return False
        self._fill_tray(place)
        return True

    def _fill_tray(self, place: int) -> None:
        for replica in self.short[place].pop():
            self._less_lacking(replica)
        if not self.short[place]:
            del self.short[place]

    def replicas_of_tray(self, place: int, tray: int) -> range:
        """Return the replicas that have ranks on one tray of a node, drawn at random."""
        number = int(self.draws.uniform() * (self.per_node // tray))
        first, total = place * self.per_node + number * tray, self.nodes * self.per_node
        return range(first * self.replicas // total, -(-(first + tray) * self.replicas // total))

    def judge(self, place: int, cause: FaultClass, lost: bool, t_s: float) -> bool:
        """Count a failure against its node by the policy; return whether the node is left out."""
        node = self.node_at(place)
        fault = HardwareFault(_name(node), 0, cause.reason, t_s, "lost" if lost else "rank")
        known = self._strikes.get(node, NO_STRIKES)
        self._strikes[node], part = quarantine.decide(known, fault)
        if part is not None:
            self.gone.add(node)
        return part is not None

    def remove(self, place: int) -> int:
        """Take the node from its place."""
        node = self.node_at(place)
        while place in self.short:
            self._fill_tray(place)
        self.trays_out.pop(node, None)
        self.open.add(place)
        for replica in self.replicas_at(place):
            self.lacking[replica] = self.lacking.get(replica, 0) + 1
        if node in self.lemons:
            last = self._active[-1]
            at = self._index.pop(node)
            self._active[at] = last
            self._active.pop()
            if last != node:
                self._index[last] = at
        self._weigh()
        return node

    def fill(self, place: int, node: int) -> None:
        """Put a node into an open place."""
        self.open.remove(place)
        for replica in self.replicas_at(place):
            self._less_lacking(replica)
        self._at[place], self._place[node] = node, place
        if node in self.lemons:
            self._index[node] = len(self._active)
            self._active.append(node)
        self._weigh()

    def _less_lacking(self, replica: int) -> None:
        self.lacking[replica] -= 1
        if not self.lacking[replica]:
            del self.lacking[replica]

    def replace_open(self) -> list[int]:
        """Fill open places with spares, as the policy chooses; return the places filled.

        The policy keeps hosts that work and takes those that wait in their order: it is asked about
        as many of them as there are places.
        """
        if not self.open or not self.waiting:
            return []
        wanted = sorted(self.open)
        hosts = [
            AvailableHost(_name(self.waiting[i]), self.per_node)
            for i in range(min(len(wanted), len(self.waiting)))
        ]
        chosen = spares.choose_hosts(hosts, len(wanted), "")
        for place, name in zip(wanted, chosen, strict=False):
            node = int(name[1:])
            self.waiting.remove(node)
            self.fill(place, node)
        return wanted[: len(chosen)]

    def back(self, node: int) -> None:
        """Take back a node that was repaired."""
        (self.benched if node in self.gone else self.waiting).append(node)

    def readmit(self) -> None:
        """Use repaired nodes again that are in quarantine, because somebody said so."""
        self.gone.difference_update(self.benched)
        self.waiting.extend(self.benched)
        self.benched.clear()


def _name(node: int) -> str:
    return f"n{node}"
