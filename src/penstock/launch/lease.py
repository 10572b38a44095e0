"""The lease: which host leads the run, by numbered records that only one can create.

    lease/000007          {node, addresses, port, secret} of the holder, never changed
    lease/000007.beat     rewritten by it every two seconds, and once more when it gives it back

The times and why they are safe: `policy/lease.py`. Nothing here compares the clocks of two hosts.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from penstock.launch.meeting import Place
from penstock.policy import lease as policy

FOLDER = "lease"
_BEAT = ".beat"


@dataclass(frozen=True)
class Record:
    """What the others need to reach the host that leads."""

    number: int
    node: str
    addresses: tuple[str, ...]
    port: int
    secret: str


class Observer:
    """A host that does not lead, looking at who does."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self.place, self.clock = place, clock
        self._watch = policy.Watch()

    def look(self) -> tuple[Record | None, int | None]:
        """Who leads, as far as can be seen, and the number that may be taken, if one may."""
        names = self.place.list(FOLDER)
        numbers = [int(n) for name in names if (n := name.rpartition("/")[2]).isdecimal()]
        newest = max(numbers, default=0)
        beat, record = "", None
        if newest:
            beat = self._beat(newest)
            record = _read(newest, self.place.get(_name(newest)))
        released = beat == "released"
        self._watch, free = policy.see(self._watch, newest, beat, released, self.clock())
        return (None if released else record), free

    def _beat(self, number: int) -> str:
        try:
            return self.place.get(_name(number) + _BEAT).decode()
        except FileNotFoundError:
            return ""  # its holder has only just taken it


class Lease:
    """A lease that this host holds. A thread of its own beats, so that no other work delays it."""

    def __init__(
        self, place: Place, record: Record, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self.record, self.clock = place, record, clock
        self._renewed_s = clock()
        self._lapsed_once = False
        self.over = False  # another host has the next number, or this one gave it back
        self._count = 0
        self._ended = threading.Event()
        self.on_renewed: Callable[[float], None] = lambda until_s: None
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    @classmethod
    def take(
        cls, place: Place, record: Record, clock: Callable[[], float] = time.monotonic
    ) -> "Lease | None":
        """Holds it, or None when another host was first."""
        lease = cls(place, record, clock)
        content = json.dumps(asdict(record)).encode()
        name = _name(record.number)
        # A first try whose answer was lost leaves our own record: the secret tells it.
        if not place.create(name, content) and place.get(name) != content:
            return None
        lease._thread.start()
        return lease

    def left_s(self) -> float:
        """How long this host may still lead; zero or less: it must have ended its ranks."""
        return 0.0 if self.over else policy.left_s(self._renewed_s, self.clock())

    @property
    def until_s(self) -> float:
        """The same as a moment of the monotonic clock."""
        return 0.0 if self.over else self._renewed_s + policy.FENCED_S

    def release(self) -> None:
        """The next host need not wait. Where it cannot be told, it does."""
        self._ended.set()
        self._thread.join()
        if self.left_s() > 0:
            self.place.put(_name(self.record.number) + _BEAT, b"released")
        self.over = True

    def _beat(self) -> None:
        pause_s = 0.0
        while not self.over and not self._ended.wait(pause_s):
            began = self.clock()
            try:
                self.renew(began)
                self.on_renewed(self.until_s)
                pause_s = max(0.0, policy.BEAT_S - (self.clock() - began))
            except OSError:
                pause_s = 0.1  # at once again; the time that is left tells when to give up

    def renew(self, began_s: float) -> None:
        """One beat. A record with a higher number means that this one is over.

        A beat after the lease had run out does not renew it yet: another host may have decided to
        take it just before it saw that beat. The next one finds its record.
        """
        lapsed = self.left_s() <= 0
        self._count += 1
        self.place.put(_name(self.record.number) + _BEAT, f"{self._count}".encode())
        names = self.place.list(FOLDER)
        newest = max(int(n) for name in names if (n := name.rpartition("/")[2]).isdecimal())
        if newest > self.record.number:
            self.over = True
        elif not lapsed or self._lapsed_once:
            self._renewed_s, self._lapsed_once = began_s, False
        else:
            self._lapsed_once = True


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}"


def _read(number: int, content: bytes) -> Record:
    found = json.loads(content)
    return Record(number, found["node"], tuple(found["addresses"]), found["port"], found["secret"])
