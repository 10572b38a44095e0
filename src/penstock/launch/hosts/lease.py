"""The lease: which host leads the run, by numbered records that only one can create.

    lease/000007          {node, addresses, port, token} of the holder, never changed
    lease/000007.beat     rewritten by it every two seconds, and once more when it gives it back

The times and why they are safe: `policy/lease.py`. Nothing here compares the clocks of two hosts.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from secrets import token_hex

from penstock.launch.hosts.meeting import Place
from penstock.policy import lease as policy

FOLDER = "lease"
MOST_BYTES = 1 << 16  # of a record
_BEAT = ".beat"
_NUMBER = re.compile("[0-9]{6,12}")


@dataclass(frozen=True)
class Record:
    """What the others need to reach the host that leads."""

    number: int
    node: str
    addresses: tuple[str, ...]
    port: int  # of its tunnel
    token: str = field(default_factory=lambda: token_hex(8))  # tells this record from any other


class Observer:
    """A host that does not lead, looking at who does."""

    def __init__(
        self,
        place: Place,
        clock: Callable[[], float] = time.monotonic,
        odd: Callable[[str], None] = lambda words: None,  # is told of a damaged record
    ) -> None:
        self.place, self.clock, self.odd = place, clock, odd
        self._watch, self._told = policy.LeaseView(), 0

    def look(self) -> tuple[Record | None, int | None]:
        """Who leads, as far as can be seen, and the number that may be taken, if one may."""
        began_s = self.clock()
        newest = _newest(self.place.list(FOLDER))
        beat, record = "", None
        if newest:
            beat = _beat(self.place, newest)
            record = self._record(newest)
        released = beat == "released"
        self._watch, free = policy.observe(
            self._watch, newest, beat, released, began_s, self.clock()
        )
        return (None if released else record), free

    @property
    def judged(self) -> str | None:
        """The beat of the newest holder as it was seen last; None where there was no holder."""
        return self._watch.beat if self._watch.number else None

    def _record(self, number: int) -> Record | None:
        """Return who holds a number; None where its record is damaged.

        Its holder, if it has one, goes on to beat; without beats the next number becomes free.
        """
        try:
            return _read(number, self.place.get(_name(number)))
        except FileNotFoundError:  # deleted by somebody since it was listed
            return None
        except ValueError as error:
            if number != self._told:
                self._told = number
                self.odd(f"{self.place}/{_name(number)} is damaged and passed over: {error}")
            return None


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
        cls,
        place: Place,
        record: Record,
        judged: str | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> "Lease | None":
        """Take a number: hold it, or None when another host was first.

        `judged` is the beat by which the holder before was taken for dead (`Observer.judged`).
        """
        lease = cls(place, record, clock)
        content = json.dumps(asdict(record)).encode()
        name = _name(record.number)
        # A first try whose answer was lost leaves our own record: the token tells it.
        if not place.create(name, content) and place.get(name) != content:
            return None
        lease._thread.start()
        try:
            beat: str | None = _beat(place, record.number - 1)
        except OSError:
            beat = None
        if (seconds := policy.wait_s(judged, beat)) > 0:
            sleep(seconds)
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
        held, self.over = self.left_s() > 0, True  # before others can see it
        if held:
            self.place.put(_name(self.record.number) + _BEAT, b"released")

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
        if _newest(self.place.list(FOLDER)) > self.record.number:
            self.over = True
        elif not lapsed or self._lapsed_once:
            self._renewed_s, self._lapsed_once = began_s, False
        else:
            self._lapsed_once = True


def _beat(place: Place, number: int) -> str:
    """Read what the holder of a number wrote last."""
    try:
        return place.get(_name(number) + _BEAT).decode(errors="replace")
    except FileNotFoundError:
        return ""  # its holder has only just taken it


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}"


def _newest(names: Iterable[str]) -> int:
    """Return the highest number that a host has taken; 0 where none has."""
    ends = (name.rpartition("/")[2] for name in names)
    return max((int(end) for end in ends if _NUMBER.fullmatch(end)), default=0)


def _read(number: int, content: bytes) -> Record:
    """Read a record; ValueError for one that no host wrote like that."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"{len(content)} bytes")
    try:
        found = json.loads(content)
        node, addresses, port, token = (
            found[name] for name in ("node", "addresses", "port", "token")
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for text in (node, token, *(addresses if isinstance(addresses, list) else [None])):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is no text")
    if type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"port {port!r}")
    return Record(number, node, tuple(addresses), port, token)
