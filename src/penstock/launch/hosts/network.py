"""How this host reaches the others of a run: the environment of its ranks for one attempt.

Everything between hosts goes through the tunnel of each host, and ranks see loopback only: the
store, copies of the fast tier, and Gloo's collectives. NCCL has neither authentication nor
encryption and goes around: it is bound to the interface by which the hosts reach each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.guard.tiers import peers
from penstock.launch.hosts.tunnel import Address, Tunnel
from penstock.launch.supervisor.addresses import network
from penstock.meter.rendezvous import LOOPBACK
from penstock.train.world import tunnel_store


@dataclass
class HostNetwork:
    tunnel: Tunnel
    secret: str = field(repr=False)  # of the run's hosts
    shelf: int  # the port of this host's own
    kind: str  # of its devices
    _hosts: list[Address] = field(default_factory=list)
    _own: int = 0

    def enter(self, hosts: Sequence[Address], own: int) -> None:
        """Begin an attempt on these hosts, of which `own` is this one (-1: it only leads)."""
        self._hosts, self._own = list(hosts), own
        self.tunnel.set_hosts(hosts)

    def env(self, address: str, leader: Address | None) -> dict[str, str]:
        """Return what ranks of this host need. `address` is this host's own among the others;
        `leader` is who has the store, None for this host itself."""
        env = self._collectives(address) | {
            peers.SHELVES: ",".join(self._shelf(number) for number in range(len(self._hosts))),
            peers.OWN: str(self._own),
            peers.SECRET: self.secret,
        }
        if leader is not None:
            port = self.tunnel.forward(*leader, "store", check=False).port
            env |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
        return env

    def _collectives(self, address: str) -> dict[str, str]:
        if len(self._hosts) == 1:
            return network(LOOPBACK)
        if self.kind != "cpu":  # torch's NCCL threads cannot call a store that is written in Python
            return network(address)
        return network(LOOPBACK) | {
            tunnel_store.SOCKET: str(self.tunnel.socket),
            tunnel_store.HOST: str(self._own),
        }

    def _shelf(self, number: int) -> str:
        port = self.shelf
        if number != self._own:
            port = self.tunnel.forward(*self._hosts[number], "shelf", check=False).port
        return f"{LOOPBACK}:{port}"
