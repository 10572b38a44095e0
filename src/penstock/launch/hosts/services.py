"""The services that a host keeps for a whole run, whether it leads or follows."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from penstock.launch.hosts.memory_server import MemoryServer
from penstock.launch.hosts.network import HostNetwork
from penstock.launch.hosts.tunnel import Tunnel
from penstock.launch.supervisor import addresses, environment
from penstock.launch.supervisor.fence import ENVIRONMENT, Fence, fence_path
from penstock.launch.supervisor.fork_client import ForkClient, modules
from penstock.launch.supervisor.head_start import HeadStart
from penstock.meter.rendezvous import LOOPBACK
from penstock.run.folder import RunFolder

MOST_GREETED = 64  # hosts at once


@dataclass(frozen=True)
class HostServices:
    """The open services of this host: all of them close when the host leaves the run."""

    secret: str  # of the run's hosts
    addresses: tuple[str, ...]
    fence: Fence
    fork_client: ForkClient
    tunnel: Tunnel
    network: HostNetwork


@dataclass(frozen=True)
class HostCallbacks:
    """Callbacks of a host for connections of other hosts."""

    greet: Callable[[socket.socket], None]  # a host that came through the tunnel
    greeting_failed: Callable[[Exception], None]
    refused: Callable[[int, str, str], None]  # connections: how many, from where, why


@contextmanager
def open_services(
    folder: RunFolder,
    secret: str,
    node: str,
    interface: str | None,
    kind: str,
    threads: int,
    callbacks: HostCallbacks,
    early: HeadStart,
    compiled: str,
) -> Iterator[HostServices]:
    """Open the services of this host. `kind` is that of its devices, `threads` those of a rank.

    `early` is its fork server, where one imports already; `compiled` is `train.compile`.
    """
    folder.make_scratch()
    fence = Fence(fence_path(folder))
    env = environment.for_fork_server(threads) | {ENVIRONMENT: str(fence.path)}
    # First, so that it imports while the rest starts.
    fork_client = early.take(env, modules(kind, compiled))
    own_addresses = addresses.own(interface)
    with (
        closing(socket.create_server((LOOPBACK, 0), backlog=64)) as server,
        closing(MemoryServer(folder.scratch, secret)) as memory,
        closing(
            Tunnel(
                secret,
                node,
                own_addresses,
                {"link": server.getsockname()[1], "shelf": memory.port},
                folder.scratch,
                callbacks.refused,
            )
        ) as tunnel,
        closing(fork_client),
    ):
        threading.Thread(
            target=_accept_hosts, args=(server, callbacks), name="listen", daemon=True
        ).start()
        network = HostNetwork(tunnel, secret, memory.port, kind)
        yield HostServices(secret, own_addresses, fence, fork_client, tunnel, network)


def _accept_hosts(server: socket.socket, callbacks: HostCallbacks) -> None:
    """Greet hosts that connect, each on a thread of its own: a slow one must not delay others."""
    free = threading.BoundedSemaphore(MOST_GREETED)

    def greet(sock: socket.socket) -> None:
        try:
            callbacks.greet(sock)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sock.close()
            callbacks.greeting_failed(error)
        finally:
            free.release()

    while True:
        try:
            sock, _ = server.accept()
        except ConnectionError:
            continue  # it hung up at once
        except OSError:
            return  # closed: this host is done
        if not free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                sock.close()  # the host tries again in a moment
            continue
        threading.Thread(target=greet, args=(sock,), daemon=True).start()
