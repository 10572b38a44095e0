"""One host leads at a time, whatever happens to its beats."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.launch.lease import Lease, Observer, Record
from penstock.launch.meeting import Folder, Place, Url
from penstock.policy.lease import DEAD_S, FENCED_S


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    (tmp_path / "there").mkdir()
    folder = tmp_path / "there"
    return Folder(folder) if request.param == "folder" else Url(f"file://{folder}")


def record(number: int, node: str) -> Record:
    return Record(number, node, ("10.0.0.1",), 5000, f"token of {node}")


class Still(Lease):
    """Beats only when told to."""

    def _beat(self) -> None:
        pass


def test_of_many_that_try_at_once_one_gets_it(place: Place) -> None:
    ready, won = threading.Barrier(8), []

    def attempt(node: str) -> None:
        ready.wait()
        if Still.take(place, record(1, node)):
            won.append(node)

    threads = [threading.Thread(target=attempt, args=(f"n{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    seen, free = Observer(place).look()
    assert seen == record(1, won[0])
    assert free is None


def test_a_record_whose_answer_was_lost_is_our_own(place: Place) -> None:
    assert Still.take(place, record(1, "a"))
    assert Still.take(place, record(1, "a"))  # as a second try would
    assert Still.take(place, record(1, "b")) is None


def test_a_holder_that_is_silent_is_fenced_before_another_may_take_it(place: Place) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), clock)
    assert held is not None
    held.renew(clock())
    other = Observer(place, clock)
    assert other.look()[1] is None
    clock.t += FENCED_S
    assert held.left_s() <= 0
    assert other.look()[1] is None
    clock.t += DEAD_S - FENCED_S
    assert other.look()[1] == 2


def test_a_holder_that_beats_is_left_alone(place: Place) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), clock)
    assert held is not None
    other = Observer(place, clock)
    for _ in range(20):
        clock.t += 2.0
        held.renew(clock())
        assert other.look() == (record(1, "a"), None)
        assert held.left_s() == FENCED_S


def test_a_beat_that_took_long_counts_from_when_it_was_sent(place: Place) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), clock)
    assert held is not None
    began = clock()
    clock.t += 4.0
    held.renew(began)
    assert held.left_s() == pytest.approx(FENCED_S - 4.0)


def test_a_higher_number_ends_the_lease_at_once(place: Place) -> None:
    held = Still.take(place, record(1, "a"))
    assert held is not None
    assert Still.take(place, record(2, "b"))
    held.renew(held.clock())
    assert held.left_s() == 0.0
    assert held.until_s == 0.0


def test_what_is_given_back_is_free_at_once(place: Place) -> None:
    held = Lease.take(place, record(1, "a"))
    assert held is not None
    held.release()
    assert Observer(place).look() == (None, 2)
    assert held.left_s() <= 0


class Failing:
    """A place that cannot be reached."""

    def __init__(self, inner: Place) -> None:
        self.inner, self.broken = inner, False

    def _or_fail(self, call: Callable[[], object]) -> object:
        if self.broken:
            raise ConnectionError("cut")
        return call()

    def create(self, name: str, content: bytes) -> bool:
        return bool(self._or_fail(lambda: self.inner.create(name, content)))

    def put(self, name: str, content: bytes) -> None:
        self._or_fail(lambda: self.inner.put(name, content))

    def get(self, name: str) -> bytes:
        return self._or_fail(lambda: self.inner.get(name))  # type: ignore[return-value]

    def list(self, prefix: str) -> dict[str, int]:
        return self._or_fail(lambda: self.inner.list(prefix))  # type: ignore[return-value]


def test_the_beating_thread_tells_how_long_it_may_lead_and_survives_a_short_cut(
    tmp_path: Path,
) -> None:
    place = Failing(Folder(tmp_path))
    told, again = [], threading.Event()

    def renewed(until_s: float) -> None:
        told.append(until_s)
        again.set()

    place.broken = False
    held = Lease.take(place, record(1, "a"))
    assert held is not None
    held.on_renewed = renewed
    place.broken = True
    again.clear()
    place.broken = False
    assert again.wait(20)
    assert held.left_s() > 0
    assert told[-1] == held.until_s
    held.release()
