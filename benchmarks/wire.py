"""A wire with a delay between two network interfaces: this kernel has no netem.

    python benchmarks/wire.py LEFT RIGHT SECONDS

Every frame that comes in at one interface leaves the other so many seconds later, in order. Both
must be up, without offloads and with an MTU of at most 9000.
"""

import collections
import contextlib
import selectors
import socket
import sys
import time

ETH_P_ALL, OUTGOING, FRAME_BYTES = 3, 4, 9100


def main(left: str, right: str, delay_s: float) -> None:
    """Forward until the process is killed."""
    ends = []
    for name in (left, right):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.bind((name, 0))
        end.setblocking(False)
        ends.append(end)
    selector = selectors.DefaultSelector()
    for at, end in enumerate(ends):
        selector.register(end, selectors.EVENT_READ, 1 - at)
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(timeout):
            try:
                while True:
                    frame, address = ends[1 - key.data].recvfrom(FRAME_BYTES)
                    if address[2] != OUTGOING:
                        waiting.append((time.monotonic() + delay_s, key.data, frame))
            except BlockingIOError:
                pass
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # as a wire loses it
                ends[to].send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
