"""The doctor's agent on a node: `python -m penstock.launch.doctor.agent`.

It answers orders on standard input and ends with it. It imports no torch: the processes of its
ranks do, while the node looks at its disks and data.
"""

import contextlib
import itertools
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.launch.doctor import link_node, node_checks
from penstock.launch.doctor.lines import ERROR, Answer, LineProcess, Order, collect, serve
from penstock.launch.hosts.tunnel import Tunnel
from penstock.launch.supervisor import addresses, environment
from penstock.meter import devices
from penstock.meter.rendezvous import LOOPBACK
from penstock.private import private_folder
from penstock.run.folder import memory_root
from penstock.run.load import load
from penstock.run.paths import KEY, PLAN
from penstock.run.schema.run import Run

RANK = "penstock.launch.doctor.rank"
READY_S = 120.0  # the imports of torch may come from a cold network disk


class NodeAgent:
    """This node in an examination: what was started for it ends with it."""

    def __init__(self, node: str) -> None:
        self.node = node
        root = memory_root() or Path(tempfile.gettempdir())
        private_folder(root)
        self.folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=root))
        self.run: Run | None = None
        self.interface: str | None = None
        self.listener: link_node.LinkListener | None = None
        self.tunnel: Tunnel | None = None
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._ranks: dict[str, LineProcess] = {}
        self._numbers = itertools.count()

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.close(wait_s=0.5)
        if self.listener:
            self.listener.close()
        if self.tunnel:
            self.tunnel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # By itself

    def begin(self, order: Order) -> Answer:
        """Read the run file, where one is given, from the folder that the run works in."""
        os.environ.update(order.get("env") or {})
        self.interface = order.get("interface")
        folder = Path(order.get("folder") or ".").expanduser()
        if folder.is_dir():
            os.chdir(folder)
        if order.get("run"):
            file = self.folder / "run.toml"
            file.write_text(order["run"])
            # Read beside the run file: where its relative paths were found.
            file.with_name(PLAN).write_text(json.dumps({KEY: order["paths"]}))
            self.run = load(file)
            if not folder.is_dir():
                # Relative to a folder that does not exist yet: it is made when the run starts.
                own = {"dir": str(folder / self.run.dir)}
                self.run = self.run.model_copy(update=own)
        found = devices.guess()
        return {**node_checks.software(), "kind": found.kind, "count": found.count}

    def tell_time(self, order: Order) -> Answer:
        return {"time": time.time()}

    def disks(self, order: Order) -> Answer:
        return node_checks.disks(self.run)

    def data(self, order: Order) -> Answer:
        return node_checks.data(self._known_run(), bool(order["verify"]))

    def store(self, order: Order) -> Answer:
        return node_checks.store(self._known_run())

    def probe(self, order: Order) -> Answer:
        """Measure this node as `penstock probe` does."""
        from penstock.meter.probe import probe
        from penstock.run.clusters.load import to_table

        return {"file": to_table(probe(lambda what, done, of: None, bool(order["quick"])))}

    def _known_run(self) -> Run:
        if self.run is None:
            raise PenstockError("no run file was given")
        return self.run

    # Links to other nodes

    def listen(self, order: Order) -> Answer:
        self.listener = link_node.LinkListener(order["token"], self.interface)
        return {"addresses": list(self.listener.addresses), "port": self.listener.port}

    def measure(self, order: Order) -> Answer:
        return link_node.measure(order["addresses"], order["port"], order["token"], order["for_s"])

    # Accelerators, and all of them together

    def start_ranks(self, order: Order) -> Answer:
        """Start a process for each accelerator; they import torch meanwhile."""
        found = devices.guess()
        count = found.ranks(order["accelerators"])
        if found.kind == "cpu":
            count = min(count, int(order["most_on_cpu"]))
        env = os.environ | environment.for_fork_server(found.threads(count))
        env |= {"PENSTOCK_PARENT": str(os.getpid()), "PENSTOCK_MEMORY": str(self.folder / "memory")}
        (self.folder / "memory").mkdir()
        for rank in map(str, range(count)):
            command = [sys.executable, "-m", RANK, rank]
            self._ranks[rank] = LineProcess(command, self._answers, rank, env)
        return {"ranks": count, "kind": found.kind}

    def about_ranks(self, order: Order) -> Answer:
        return self._ask({"do": "about"}, self._ranks, READY_S)

    def accelerators(self, order: Order) -> Answer:
        """Check every accelerator, all at once."""
        return self._ask({"do": "accelerator"}, self._ranks, order["timeout_s"])

    def open_tunnel(self, order: Order) -> Answer:
        """Open this node's port for the collectives of all nodes, which are encrypted."""
        own = addresses.own(self.interface)
        self.tunnel = Tunnel(order["secret"], self.node, own, {}, self.folder)
        return {"addresses": list(own), "port": self.tunnel.port}

    def open_store(self, order: Order) -> Answer:
        """Open the store in this node's first rank; the other nodes reach it by the tunnel."""
        found = self._ask({"do": "open_store"}, ["0"], READY_S)["0"]
        if ERROR not in found and self.tunnel is not None:
            self.tunnel.set_service("store", found["port"])
        return found

    def join(self, order: Order) -> Answer:
        """Give every rank of this node its place among all ranks."""
        env = {"MASTER_ADDR": LOOPBACK, "WORLD_SIZE": str(order["ranks"])}
        tunnel: Answer = {}
        if self.tunnel is None:
            env |= addresses.network(LOOPBACK) | {"MASTER_PORT": str(order["store"])}
        else:
            hosts = [(tuple(where), port) for where, port in order["hosts"]]
            own = int(order["own"])
            self.tunnel.set_hosts(hosts)
            port = order["store"]
            if own:
                port = self.tunnel.forward(*hosts[0], "store", check=False).port
            env |= {"MASTER_PORT": str(port)}
            tunnel = {
                "socket": str(self.tunnel.socket),
                "own": own,
                "address": addresses.own(self.interface)[0],
            }
        orders = {
            rank: {
                "do": "join",
                "tunnel": tunnel,
                "folder": str(self.folder / f"rank-{rank}"),
                "env": {**env, "RANK": str(order["first"] + int(rank)), "LOCAL_RANK": rank},
            }
            for rank in self._ranks
        }
        return self._ask_each(orders, READY_S)

    def together(self, order: Order) -> Answer:
        """Pass an order on to all ranks of this node, or to the first `only` of them."""
        ranks = list(self._ranks)[: order.get("only")]
        return self._ask(order["order"], ranks, order["timeout_s"])

    def _ask(self, order: Order, ranks: Iterable[str], timeout_s: float) -> Answer:
        return self._ask_each(dict.fromkeys(ranks, order), timeout_s)

    def _ask_each(self, orders: Mapping[str, Order], timeout_s: float) -> Answer:
        number = next(self._numbers)
        for rank, order in orders.items():
            self._ranks[rank].send({**order, "id": number})
        return collect(
            self._answers,
            number,
            orders,
            timeout_s,
            self._ranks.__getitem__,
        )


def main() -> None:
    node = addresses.node()
    agent = NodeAgent(node)
    handlers: dict[str, Any] = {
        "begin": agent.begin,
        "time": agent.tell_time,
        "disks": agent.disks,
        "data": agent.data,
        "store": agent.store,
        "probe": agent.probe,
        "listen": agent.listen,
        "measure": agent.measure,
        "start_ranks": agent.start_ranks,
        "about_ranks": agent.about_ranks,
        "accelerators": agent.accelerators,
        "open_tunnel": agent.open_tunnel,
        "open_store": agent.open_store,
        "join": agent.join,
        "together": agent.together,
    }
    try:
        serve(node, handlers, {"process": os.environ.get("PENSTOCK_NODE", "")})
    finally:
        with contextlib.suppress(OSError):
            agent.close()


if __name__ == "__main__":
    main()
