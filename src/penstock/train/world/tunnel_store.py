"""The supervisor's store for ranks whose collectives go through encrypted tunnels between hosts.

Gloo has no authentication and, as torch is built, no TLS. So every rank listens on loopback only,
and this store rewrites the addresses that ranks publish: a loopback address becomes the number of
its host when it is set, and the entrance of a tunnel to that host when it is read. The tunnels are
those of `launch/hosts/tunnel_process.py`, which a rank asks through a Unix socket.

Gloo compares both addresses of a pair to decide which side connects: the lower one listens. Here
the host with the lower number listens: it sees its peers at 127.0.0.2, which is never used, and the
others see theirs at 0.0.0.0, which is lower than 127.0.0.1 and leads to loopback as well.
"""

import json
import os
import re
import socket
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from penstock.train.world.unix_path import short_path

SOCKET, HOST = "PENSTOCK_TUNNEL", "PENSTOCK_TUNNEL_HOST"  # where to ask; which host this is
ANSWER_S = 30.0
# sockaddr_in as Linux has it: family 2, port, address, eight bytes of zero. 127.0.0.1 is what Gloo
# listens at, 127.77.x.y stands for host 256 x + y.
_LISTENS = re.compile(rb"\x02\x00(..)\x7f\x00\x00\x01(?=\x00{8})", re.DOTALL)
_MARKED = re.compile(rb"\x02\x00(..)\x7f\x4d(..)(?=\x00{8})", re.DOTALL)
_LOOPBACK, _NEVER_USED, _LOWEST = b"\x7f\x00\x00\x01", b"\x7f\x00\x00\x02", b"\0\0\0\0"


class TunnelStore(dist.Store):
    """A torch store that rewrites the addresses in values, and nothing else."""

    def __init__(self, inner: dist.Store, asked: Path, host: int) -> None:
        super().__init__()
        self._inner, self._asked, self._host = inner, asked, host
        self._entrances: dict[tuple[int, int], int] = {}

    def set(self, key: str, value: bytes | str) -> None:
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(key, _LISTENS.sub(self._published, content))

    def get(self, key: str) -> bytes:
        return _MARKED.sub(self._reached, self._inner.get(key))

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._inner.wait(keys)
        else:
            self._inner.wait(keys, timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._inner.compare_set(key, expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._inner.delete_key(key)

    def num_keys(self) -> int:
        return self._inner.num_keys()

    def has_extended_api(self) -> bool:
        return False  # Gloo would publish addresses by calls that change nothing

    def _published(self, found: re.Match[bytes]) -> bytes:
        port = found[1]
        self._ask(listens=int.from_bytes(port, "big"))
        return b"\x02\x00" + port + b"\x7f\x4d" + self._host.to_bytes(2, "big")

    def _reached(self, found: re.Match[bytes]) -> bytes:
        port, host = found[1], int.from_bytes(found[2], "big")
        address = _LOOPBACK
        if host > self._host:
            address = _NEVER_USED
        elif host < self._host:
            address, port = _LOWEST, self._entrance(host, port)
        return b"\x02\x00" + port + address

    def _entrance(self, host: int, port: bytes) -> bytes:
        key = (host, int.from_bytes(port, "big"))
        if key not in self._entrances:
            self._entrances[key] = self._ask(host=host, port=key[1])
        return self._entrances[key].to_bytes(2, "big")

    def _ask(self, **question: int) -> int:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_S)
            with short_path(self._asked) as short:
                line.connect(short)
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = line.makefile("rb").readline()
        if not answer:
            raise OSError(f"{self._asked}: the tunnel to the other hosts gives no answer")
        return int(json.loads(answer)["local"])


def wrap_for_tunnels(store: dist.Store) -> dist.Store:
    """Return the store as ranks of this host must use it: unchanged, unless there are tunnels."""
    asked = os.environ.get(SOCKET)
    return TunnelStore(store, Path(asked), int(os.environ[HOST])) if asked else store
