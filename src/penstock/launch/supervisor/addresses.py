"""The name of this host and the addresses by which other hosts reach it."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

from penstock.errors import PenstockError

_SIOCGIFADDR = 0x8915  # the IPv4 address of an interface (Linux)


def node() -> str:
    """Return this host's name among the hosts of a run: $PENSTOCK_NODE or its hostname."""
    return os.environ.get("PENSTOCK_NODE") or socket.gethostname()


def own(interface: str | None = None) -> tuple[str, ...]:
    """Return $PENSTOCK_ADDRESS, or the address of an interface, or those of all interfaces.

    Loopback is returned only where there is no other address.
    """
    if address := os.environ.get("PENSTOCK_ADDRESS"):
        return (address,)
    by_interface = dict(_interfaces())
    if interface is not None:
        if interface not in by_interface:
            raise PenstockError(
                f'cluster.interface = "{interface}": this host has no such interface with an IPv4 '
                f"address; it has {', '.join(by_interface) or 'none'}"
            )
        return (by_interface[interface],)
    addresses = dict.fromkeys(by_interface.values())
    external = [address for address in addresses if not address.startswith("127.")]
    return tuple(external or addresses or ["127.0.0.1"])


def network(address: str) -> dict[str, str]:
    """Return variables that bind collectives to the interface that has an address."""
    if address.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    name = next((name for name, own in _interfaces() if own == address), None)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}


def _interfaces() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # one that is down or has no IPv4
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(answer[20:24])
