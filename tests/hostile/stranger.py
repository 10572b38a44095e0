"""A stranger on the network of a run, with no secret and no file of it: a program for tests.

    python stranger.py MODE COUNT TARGET…    what it found, as one line of JSON

Modes: `scan` lists open ports; `store` tries to join torch's store behind each and to meet ranks
there; `gloo` speaks to each as the peer of a rank would; `host` speaks as a host of the run would,
with a certificate of its own; `flood` opens COUNT hostile connections; `reset` connects and resets.
"""

import contextlib
import json
import os
import random
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

CONNECT_S = 0.5
MODES = ("store", "gloo", "host")
LINGER = struct.pack("ii", 1, 0)  # a close is a reset


def open_ports(target: str) -> list[int]:
    """All ports of a host that take a connection."""

    def tried(ports: range) -> list[int]:
        found = []
        for port in ports:
            with socket.socket() as sock:
                sock.settimeout(CONNECT_S)
                if sock.connect_ex((target, port)) == 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                    found.append(port)
        return found

    with ThreadPoolExecutor(16) as pool:
        parts = pool.map(tried, [range(n, min(n + 1024, 65536)) for n in range(1, 65536, 1024)])
        return sorted(port for part in parts for port in part)


def store(target: str, port: int) -> str:
    """Join as a client of torch's store, then wait as rank 0 for the ranks of the next attempts."""
    import torch.distributed as dist

    limit = timedelta(seconds=2)
    try:
        found = dist.TCPStore(target, port, is_master=False, timeout=limit)
        found.set("stranger", "was here")
    except RuntimeError:  # dist's errors of connecting and of timing out are both that
        return ""
    return f"joined the store at {target}:{port}"


def gloo(target: str, port: int) -> str:
    """Name the numbers by which Gloo's pairs know each other; one that is taken stays open."""
    answered = 0
    for number in range(8):
        with contextlib.suppress(OSError), socket.create_connection((target, port), CONNECT_S) as s:
            s.sendall(struct.pack("<q", number))
            s.settimeout(1.0)
            answered += bool(s.recv(1))
    return f"a peer answered at {target}:{port}" if answered else ""


def host(target: str, port: int) -> str:
    """Speak as a host, in plain text and over TLS with certificates of another run."""
    from penstock.launch.hosts import certificates

    hello = {"hello": {"node": "evil", "slots": 1, "tunnel": 1}, "drawn": "x", "proof": "y"}
    with contextlib.suppress(OSError), socket.create_connection((target, port), CONNECT_S) as s:
        s.sendall(json.dumps(hello).encode() + b"\n")
        s.settimeout(1.0)
        if b"drawn" in s.recv(100):
            return f"a host answered at {target}:{port}"
    _, context = certificates.contexts("guessed", "evil")
    context.verify_mode = ssl.CERT_NONE
    for service in (b"link\n", b"store\n", b"shelf\n", b"check\n", b"port 22\n"):
        with contextlib.suppress(OSError):
            sock = socket.create_connection((target, port), CONNECT_S)
            sock.settimeout(1.0)
            with context.wrap_socket(sock) as tls:
                tls.sendall(service)
                if tls.recv(1):
                    return f"{service!r} answered at {target}:{port}"
    return ""


def hostile(target: str, port: int, seed: int) -> None:
    """One of many kinds of bad handshake."""
    dice = random.Random(seed)
    kind = dice.randrange(5)
    with contextlib.suppress(OSError):
        sock = socket.create_connection((target, port), CONNECT_S)
        sock.settimeout(0.05)
        with sock:
            if kind == 0:
                sock.sendall(b"[]\n")
            elif kind == 1:
                sock.sendall(dice.randbytes(dice.randrange(1, 2000)))
            elif kind == 2:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + dice.randbytes(100))
            elif kind == 3:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(sock) as tls:
                    tls.sendall(b"link\n")
                    tls.recv(1)
            else:
                time.sleep(0.05)


def reset(target: str, port: int) -> None:
    with contextlib.suppress(OSError):
        sock = socket.create_connection((target, port), CONNECT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        sock.close()


def main(mode: str, count: int, targets: list[str]) -> dict[str, object]:
    began = time.monotonic()
    ports = {target: open_ports(target) for target in targets}
    doors = [(target, port) for target in targets for port in ports[target]]
    found: list[str] = []
    if mode in MODES:
        attack = {"store": store, "gloo": gloo, "host": host}[mode]
        found = [said for target, port in doors if (said := attack(target, port))]
    elif mode in ("flood", "reset") and doors:
        with ThreadPoolExecutor(16) as pool:
            for number in range(count):
                door = doors[number % len(doors)]
                pool.submit(*((hostile, *door, number) if mode == "flood" else (reset, *door)))
    return {"ports": ports, "found": found, "seconds": round(time.monotonic() - began, 2)}


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
