"""A store where the ranks of one machine meet, reachable from this machine alone."""

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"


def loopback_store() -> "TCPStore":
    """Open torch's store on loopback.

    `TCPStore("127.0.0.1", 0)` listens on every interface, whatever its address says, and anyone who
    reaches it can take part in the run. So the store gets a socket that is already bound.
    """
    from torch.distributed import TCPStore

    listener = socket.create_server((LOOPBACK, 0), backlog=1024)
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # torch closes it
    )
