"""The lease: which host leads the run, by numbered records that only one host can create.

    lease/000007          {node, addresses, port, token} of the holder, never changed
    lease/000007.beat     rewritten by the holder every two seconds, and when it releases the lease

`policy/lease.py` has the times and says why they are safe. No clocks of two hosts are compared.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from secrets import token_hex

from penstock.data.store.meeting_place import MeetingPlace
from penstock.policy import lease as policy

FOLDER = "lease"
MOST_BYTES = 1 << 16  # of a record
_BEAT = ".beat"
_NUMBER = re.compile("[0-9]{6,12}")


@dataclass(frozen=True)
class LeaseRecord:
    """The holder of a lease: what the other hosts need to reach it."""

    number: int
    node: str
    addresses: tuple[str, ...]
    port: int  # of its tunnel
    token: str = field(default_factory=lambda: token_hex(8))  # unique: tells records apart


class LeaseObserver:
    """A host that does not lead, watching who does."""

    def __init__(
        self,
        place: MeetingPlace,
        clock: Callable[[], float] = time.monotonic,
        report_damage: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.place, self.clock, self.report_damage = place, clock, report_damage
        self._watch, self._reported = policy.LeaseView(), 0

    def poll(self) -> tuple[LeaseRecord | None, int | None]:
        """Return who leads, if that is known, and the number that this host may take, if any."""
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
    def last_beat(self) -> str | None:
        """The last beat of the newest holder that was read; None where there was no holder."""
        return self._watch.beat if self._watch.number else None

    def _record(self, number: int) -> LeaseRecord | None:
        """Return who holds a number; None where its record is damaged.

        A holder of a damaged record still beats; without beats the next number becomes free.
        """
        try:
            return _parse_record(number, self.place.get(_name(number)))
        except FileNotFoundError:  # deleted by somebody since it was listed
            return None
        except ValueError as error:
            if number != self._reported:
                self._reported = number
                path = f"{self.place}/{_name(number)}"
                self.report_damage(f"{path} is damaged and passed over: {error}")
            return None


class Lease:
    """A lease that this host holds. A thread of its own beats, so that no other work delays it."""

    def __init__(
        self,
        place: MeetingPlace,
        record: LeaseRecord,
        clock: Callable[[], float] = time.monotonic,
        on_renewed: Callable[[float], None] = lambda until_s: None,
    ) -> None:
        self.place, self.record, self.clock, self._on_renewed = place, record, clock, on_renewed
        self._renewed_s = clock()
        self._lapsed_once = False
        self.over = False  # another host has the next number, or this one released it
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    @classmethod
    def take(
        cls,
        place: MeetingPlace,
        record: LeaseRecord,
        last_beat: str | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_renewed: Callable[[float], None] = lambda until_s: None,
    ) -> "Lease | None":
        """Take a number and return the lease, or None when another host was first.

        `last_beat` is the beat after which the holder before was taken for dead
        (`LeaseObserver.last_beat`). `on_renewed` gets the moment until which each beat extends it.
        """
        lease = cls(place, record, clock, on_renewed)
        content = json.dumps(asdict(record)).encode()
        name = _name(record.number)
        # If the answer to a first try was lost, the record there is ours: the token says so.
        if not place.create(name, content) and place.get(name) != content:
            return None
        lease._thread.start()
        try:
            beat: str | None = _beat(place, record.number - 1)
        except OSError:
            beat = None
        if (seconds := policy.wait_s(last_beat, beat)) > 0:
            sleep(seconds)
        return lease

    def left_s(self) -> float:
        """Return how long this host may still lead; at zero it must have ended its ranks."""
        return 0.0 if self.over else policy.left_s(self._renewed_s, self.clock())

    @property
    def until_s(self) -> float:
        """The same as a moment of the monotonic clock."""
        return 0.0 if self.over else self._renewed_s + policy.FENCED_S

    def release(self) -> None:
        """Give the lease back, so that the next host need not wait until it expires."""
        self._ended.set()
        self._thread.join()
        held, self.over = self.left_s() > 0, True  # before others can see the release
        if held:
            self.place.put(_name(self.record.number) + _BEAT, b"released")

    def _beat(self) -> None:
        pause_s = 0.0
        while not self.over and not self._ended.wait(pause_s):
            began = self.clock()
            try:
                self.renew(began)
                self._on_renewed(self.until_s)
                pause_s = max(0.0, policy.BEAT_S - (self.clock() - began))
            except OSError:
                pause_s = 0.1  # try again until `left_s` is used up

    def renew(self, began_s: float) -> None:
        """Write one beat. A record with a higher number means that this lease is over.

        The first beat after the lease ran out does not renew it: another host may have decided to
        take it just before it read that beat. The second beat would find the record of that host.
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


def _beat(place: MeetingPlace, number: int) -> str:
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


def _parse_record(number: int, content: bytes) -> LeaseRecord:
    """Read a record; raise ValueError where it is damaged."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"{len(content)} bytes")
    try:
        fields = json.loads(content)
        node, addresses, port, token = (
            fields[name] for name in ("node", "addresses", "port", "token")
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    for text in (node, token, *(addresses if isinstance(addresses, list) else [None])):
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not a string")
    if type(port) is not int or not 0 < port < 1 << 16:
        raise ValueError(f"port {port!r}")
    return LeaseRecord(number, node, tuple(addresses), port, token)
