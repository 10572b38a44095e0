"""By what addresses other hosts can reach this one, and by what name it goes."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

_SIOCGIFADDR = 0x8915  # the IPv4 address of an interface (Linux)


def node() -> str:
    """This host's name among the hosts of a run: $PENSTOCK_NODE, or what it calls itself."""
    return os.environ.get("PENSTOCK_NODE") or socket.gethostname()


def own() -> tuple[str, ...]:
    """$PENSTOCK_ADDRESS, or those of all interfaces; loopback only where there is nothing else."""
    if given := os.environ.get("PENSTOCK_ADDRESS"):
        return (given,)
    found = dict.fromkeys(address for _, address in _interfaces())
    far = [address for address in found if not address.startswith("127.")]
    return tuple(far or found or ["127.0.0.1"])


def interface(address: str) -> str | None:
    """The name of the interface that has an address; None where it cannot be told."""
    return next((name for name, own in _interfaces() if own == address), None)


def network(address: str) -> dict[str, str]:
    """For collectives: the interface that has an address, unless somebody named another."""
    name = interface(address)
    if name is None:
        return {}
    return {
        variable: os.environ.get(variable) or name
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    }


def _interfaces() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # one that is down or has no IPv4
                found = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(found[20:24])
