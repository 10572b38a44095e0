"""By what addresses other hosts can reach this one, and by what name it goes."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

from penstock.errors import PenstockError

_SIOCGIFADDR = 0x8915  # the IPv4 address of an interface (Linux)


def node() -> str:
    """This host's name among the hosts of a run: $PENSTOCK_NODE, or what it calls itself."""
    return os.environ.get("PENSTOCK_NODE") or socket.gethostname()


def own(interface: str | None = None) -> tuple[str, ...]:
    """Return $PENSTOCK_ADDRESS, or the address of an interface, or those of all interfaces.

    Loopback only where there is nothing else.
    """
    if given := os.environ.get("PENSTOCK_ADDRESS"):
        return (given,)
    there = dict(_interfaces())
    if interface is not None:
        if interface not in there:
            raise PenstockError(
                f'cluster.interface = "{interface}": this host has no such interface with an IPv4 '
                f"address; it has {', '.join(there) or 'none'}"
            )
        return (there[interface],)
    found = dict.fromkeys(there.values())
    far = [address for address in found if not address.startswith("127.")]
    return tuple(far or found or ["127.0.0.1"])


def interface(address: str) -> str | None:
    """The name of the interface that has an address; None where it cannot be told."""
    return next((name for name, own in _interfaces() if own == address), None)


def network(address: str) -> dict[str, str]:
    """Bind collectives to the interface that has an address."""
    if address.startswith("127."):
        return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    name = interface(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}


def _interfaces() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # one that is down or has no IPv4
                found = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(found[20:24])
