"""Random histories of hosts that take, hold and lose the lease, in simulated time.

The code under test is the real one: `launch/hosts/lease.py` and `policy/lease.py`. Hosts are
greenlets with clocks of their own, which start anywhere and run up to 1 % fast or slow. The place
where they meet answers late, fails before or after a write took effect, and may tear the newest
record, as a power cut would on a disk that lies. Hosts stop for seconds at any call, are cut off,
and come back.

    python tests/lease_model.py 50000      so many histories, on one core
"""

import contextlib
import math
import random
import sys
import time
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from penstock.launch.hosts.lease import Lease, LeaseObserver, LeaseRecord
from penstock.policy.lease import DEAD_S

LOOK_S, ACT_S = 0.5, 0.1
# What two clocks that are 1 % apart make of the longest time that is measured.
DRIFT = 0.01
# Somebody must lead so long after the last fault: a host may be stopped for 25 s then, and a write
# arrive 8 s late, whose record must be seen to be dead before the next one is taken.
QUIET_S = 25 + 8 + 2 * DEAD_S + 10


class Violated(AssertionError):
    """A rule was broken; the seed tells which history."""


class Simulation:
    """Simulated time: greenlets that sleep are woken in order."""

    def __init__(self, seed: int) -> None:
        self.dice, self.now, self.count = random.Random(seed), 0.0, 0
        self.waiting: list[tuple[float, int, greenlet]] = []
        self.main = getcurrent()

    def spawn(self, work: Any, *args: Any) -> None:
        self._wake(greenlet(lambda *_: work(*args), parent=self.main), 0.0)

    def _wake(self, what: greenlet, after_s: float) -> None:
        self.count += 1
        heappush(self.waiting, (self.now + max(0.0, after_s), self.count, what))

    def sleep(self, seconds: float) -> None:
        self._wake(getcurrent(), seconds)
        self.main.switch()

    def run(self, until_s: float) -> None:
        while self.waiting and self.waiting[0][0] <= until_s:
            self.now, _, what = heappop(self.waiting)
            what.switch()


@dataclass
class Store:
    """What is in the place, and what goes wrong with it."""

    sim: Simulation
    troubled_until: float
    objects: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)  # by whom a record was created
    late: float = 0.3  # share of calls that take long
    failing: float = 0.1
    torn: float = 0.01

    def trouble(self, share: float) -> bool:
        return self.sim.now < self.troubled_until and self.sim.dice.random() < share


class HostPlace:
    """The place as one host reaches it."""

    def __init__(self, store: Store, host: "Host") -> None:
        self.store, self.host = store, host

    def _call(self, work: Any, write: bool = False) -> Any:
        """Take time before and after the moment of effect; fail before or after it."""
        store, dice = self.store, self.store.sim.dice
        self._pass(dice.uniform(0.0, 4.0) if store.trouble(store.late) else 0.01)
        if self.host.cut_until > store.sim.now or store.trouble(store.failing):
            if write and store.trouble(0.3):  # it arrives when the host has given up on it
                store.sim.spawn(lambda: (store.sim.sleep(dice.uniform(0, 8)), work()))
            self._pass(dice.choice((0.0, 3.0)))
            raise OSError("cut")
        found = work()
        self._pass(dice.uniform(0.0, 3.0) if store.trouble(store.late) else 0.01)
        if store.trouble(store.failing):
            raise OSError("the answer was lost" if write else "cut")
        return found

    def _pass(self, seconds: float) -> None:
        self.store.sim.sleep(seconds)
        if self.store.trouble(0.02):  # the host stops here: SIGSTOP, swapping, a frozen guest
            self.store.sim.sleep(self.store.sim.dice.uniform(0.0, 25.0))

    def create(self, name: str, content: bytes) -> bool:
        def work() -> bool:
            if name in self.store.objects:
                return False
            self.store.objects[name] = self.store.written[name] = content
            if self.store.trouble(self.store.torn):
                self.store.objects[name] = content[: self.store.sim.dice.randrange(len(content))]
            return True

        return bool(self._call(work, write=True))

    def put(self, name: str, content: bytes) -> None:
        self._call(lambda: self.store.objects.__setitem__(name, content), write=True)

    def get(self, name: str) -> bytes:
        def work() -> bytes:
            if name not in self.store.objects:
                raise FileNotFoundError(name)
            return self.store.objects[name]

        return bytes(self._call(work))

    def list(self, prefix: str) -> dict[str, int]:
        return dict(
            self._call(
                lambda: {
                    name: len(content)
                    for name, content in self.store.objects.items()
                    if name.startswith(prefix)
                }
            )
        )


class SimulatedEvent:
    """What `Lease` waits on between two beats."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.is_set = sim, False

    def set(self) -> None:
        self.is_set = True

    def wait(self, seconds: float) -> bool:
        self.sim.sleep(seconds)
        return self.is_set


class SimulatedLease(Lease):
    """A lease whose thread is a greenlet."""

    def __init__(self, place: HostPlace, *args: Any) -> None:
        super().__init__(place, *args)
        self._ended = SimulatedEvent(place.store.sim)  # type: ignore[assignment]
        self._thread = SimulatedThread(place.store.sim, self._beat)  # type: ignore[assignment]


class SimulatedThread:
    """The thread that beats. Nobody has to wait for it: a beat on its way harms nothing."""

    def __init__(self, sim: Simulation, work: Any) -> None:
        self.sim, self.work = sim, work

    def start(self) -> None:
        self.sim.spawn(self.work)

    def join(self) -> None: ...


@dataclass
class Host:
    """A host: it looks at who leads, takes the lease when it may, and leads while it holds it."""

    name: str
    world: "World"
    rate: float
    offset: float
    cut_until: float = -1.0
    lease: SimulatedLease | None = None
    led: list[int] = field(default_factory=list)

    def clock(self) -> float:
        return self.offset + self.rate * self.world.sim.now

    @property
    def leads(self) -> bool:
        return self.lease is not None and self.lease.left_s() > 0

    def live(self) -> None:
        sim, place = self.world.sim, HostPlace(self.world.store, self)
        observer = LeaseObserver(place, self.clock)
        while True:
            try:
                _, free = observer.poll()
                if free is not None:
                    self._lead(place, free, observer)
            except OSError:
                pass
            sim.sleep(LOOK_S)

    def _lead(self, place: HostPlace, number: int, observer: LeaseObserver) -> None:
        sim = self.world.sim
        record = LeaseRecord(number, self.name, ("10.0.0.1",), 1, f"{sim.dice.random()}")
        lease = SimulatedLease.take(place, record, observer.last_beat, self.clock, sim.sleep)
        if lease is None:
            return
        self.lease = lease
        self.led.append(number)
        leaves = sim.now + sim.dice.expovariate(1 / 60)
        while lease.left_s() > 0:
            self.world.check(self)
            sim.sleep(ACT_S)
            if sim.now > leaves:
                with contextlib.suppress(OSError):
                    lease.release()
                break
        lease._ended.set()
        lease.over = True
        self.lease = None


class World:
    """One history."""

    def __init__(self, seed: int, troubled_s: float = 120.0) -> None:
        self.sim = Simulation(seed)
        dice = self.sim.dice
        self.store = Store(self.sim, troubled_s)
        self.store.late, self.store.failing = dice.choice((0.0, 0.3)), dice.choice((0.0, 0.1, 0.4))
        self.hosts = [
            Host(name, self, 1 + dice.uniform(-DRIFT, DRIFT), dice.uniform(0, 1e6))
            for name in "abcd"[: dice.randint(2, 4)]
        ]
        self.troubled_s, self.seed = troubled_s, seed
        self.leaders = 0
        self.acted = -math.inf  # when somebody last led

    def run(self) -> None:
        for host in self.hosts:
            self.sim.spawn(host.live)
        self.sim.spawn(self._cut)
        self.sim.run(self.troubled_s + QUIET_S)
        numbers = [number for host in self.hosts for number in host.led]
        if len(numbers) != len(set(numbers)):
            raise Violated(f"seed {self.seed}: two hosts led by one number: {sorted(numbers)}")
        if self.sim.now - self.acted > DEAD_S + 5:
            raise Violated(f"seed {self.seed}: nobody leads since {self.acted:.1f}")

    def check(self, host: Host) -> None:
        """Whenever a host acts as the leader, no other host may."""
        self.acted = self.sim.now
        self.leaders += 1
        others = [one.name for one in self.hosts if one is not host and one.leads]
        if others:
            raise Violated(f"seed {self.seed}: {host.name} and {others} lead at {self.sim.now:.2f}")

    def _cut(self) -> None:
        """Cut hosts off now and then, each for up to 30 s."""
        while self.sim.now < self.troubled_s:
            self.sim.sleep(self.sim.dice.expovariate(1 / 15))
            if self.sim.now < self.troubled_s:
                end = min(self.troubled_s, self.sim.now + self.sim.dice.uniform(0, 30))
                self.sim.dice.choice(self.hosts).cut_until = end


def histories(first: int, count: int) -> int:
    """Run so many; how often somebody acted as the leader in all of them."""
    acted = 0
    for seed in range(first, first + count):
        world = World(seed)
        world.run()
        acted += world.leaders
    return acted


if __name__ == "__main__":
    began, number = time.monotonic(), int(sys.argv[1])
    done = histories(int(sys.argv[2]) if len(sys.argv) > 2 else 0, number)
    took_s = time.monotonic() - began
    print(f"{number} histories, {done} acts of a leader, {took_s:.0f} s: no rule broken")
