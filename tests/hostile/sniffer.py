"""Writes every packet that passes the switch to a file, until it is told to end."""

import signal
import socket
import sys

ALL_PROTOCOLS = 3
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(sys.argv[1], "wb") as file:
    while True:
        file.write(wire.recv(1 << 17))
        file.flush()
