"""The network of a host for one attempt: variables that tell its ranks how to reach other hosts.

The store, copies of the fast tier and Gloo's collectives go through the tunnels, so ranks see
loopback only. NCCL has neither authentication nor encryption and does not use the tunnels: it is
bound to the interface by which the hosts reach each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.guard.tiers import peers
from penstock.launch.hosts.tunnel import Tunnel, TunnelAddress
from penstock.launch.supervisor.addresses import network
from penstock.meter.rendezvous import LOOPBACK
from penstock.train.world import tunnel_store


@dataclass
class HostNetwork:
    """How this host reaches the other hosts of the present attempt."""

    tunnel: Tunnel
    secret: str = field(repr=False)  # of the run's hosts
    memory_port: int  # of this host's memory server
    kind: str  # of its devices
    _hosts: list[TunnelAddress] = field(default_factory=list)
    _own: int = 0

    def begin_attempt(self, hosts: Sequence[TunnelAddress], own: int) -> None:
        """Begin an attempt on these hosts; `own` is the index of this one (-1: it only leads)."""
        self._hosts, self._own = list(hosts), own
        self.tunnel.set_hosts(hosts)

    def env(self, address: str, leader: TunnelAddress | None) -> dict[str, str]:
        """Return the variables of this host's ranks.

        `address` is this host's own address for the others. `leader` has the store; None where this
        host leads.
        """
        memory = [self._memory_server(number) for number in range(len(self._hosts))]
        env = network(LOOPBACK)
        if len(self._hosts) > 1:
            env = collectives(self.kind, self.tunnel.socket, self._own, address)
        env |= {
            peers.SHELVES: ",".join(memory),
            peers.OWN: str(self._own),
            peers.SECRET: self.secret,
        }
        if leader is not None:
            port = self.tunnel.forward(*leader, "store", check=False).port
            env |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
        return env

    def _memory_server(self, number: int) -> str:
        port = self.memory_port
        if number != self._own:
            port = self.tunnel.forward(*self._hosts[number], "shelf", check=False).port
        return f"{LOOPBACK}:{port}"


def collectives(kind: str, tunnel: Path, own: int, address: str) -> dict[str, str]:
    """Return the variables of ranks that talk to other hosts: Gloo by the tunnel, NCCL directly.

    `tunnel` is the socket of the tunnel, `own` the index of this host among its hosts.
    """
    if kind != "cpu":  # torch's NCCL threads cannot call a store that is written in Python
        return network(address)
    return network(LOOPBACK) | {
        tunnel_store.SOCKET: str(tunnel),
        tunnel_store.HOST: str(own),
    }
