"""One host leads at a time, whatever happens to its beats."""

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.store.meeting_place import MeetingPlace, ObjectStore, SharedFolder
from penstock.launch.hosts.lease import Lease, LeaseObserver, LeaseRecord, _parse_record
from penstock.launch.hosts.meeting import read_or_create_secret
from penstock.policy.lease import DEAD_S, FENCED_S


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> MeetingPlace:
    (tmp_path / "there").mkdir()
    folder = tmp_path / "there"
    return SharedFolder(folder) if request.param == "folder" else ObjectStore(f"file://{folder}")


def record(number: int, node: str) -> LeaseRecord:
    return LeaseRecord(number, node, ("10.0.0.1",), 5000, f"token of {node}")


class Still(Lease):
    """Beats only when told to."""

    def _beat(self) -> None:
        pass


def test_of_many_that_try_at_once_one_gets_it(place: MeetingPlace) -> None:
    ready, won = threading.Barrier(8), []

    def attempt(node: str) -> None:
        ready.wait()
        if Still.take(place, record(1, node), None):
            won.append(node)

    threads = [threading.Thread(target=attempt, args=(f"n{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    seen, free = LeaseObserver(place).poll()
    assert seen == record(1, won[0])
    assert free is None


def test_a_record_whose_answer_was_lost_is_our_own(place: MeetingPlace) -> None:
    assert Still.take(place, record(1, "a"), None)
    assert Still.take(place, record(1, "a"), None)  # as a second try would
    assert Still.take(place, record(1, "b"), None) is None


def test_a_holder_that_is_silent_is_fenced_before_another_may_take_it(place: MeetingPlace) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), None, clock)
    assert held is not None
    held.renew(clock())
    other = LeaseObserver(place, clock)
    assert other.poll()[1] is None
    clock.t += FENCED_S
    assert held.left_s() <= 0
    assert other.poll()[1] is None
    clock.t += DEAD_S - FENCED_S
    assert other.poll()[1] == 2


def test_a_holder_that_beats_is_left_alone(place: MeetingPlace) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), None, clock)
    assert held is not None
    other = LeaseObserver(place, clock)
    for _ in range(20):
        clock.t += 2.0
        held.renew(clock())
        assert other.poll() == (record(1, "a"), None)
        assert held.left_s() == FENCED_S


def test_a_beat_that_took_long_counts_from_when_it_was_sent(place: MeetingPlace) -> None:
    clock = Clock()
    held = Still.take(place, record(1, "a"), None, clock)
    assert held is not None
    began = clock()
    clock.t += 4.0
    held.renew(began)
    assert held.left_s() == pytest.approx(FENCED_S - 4.0)


def test_a_higher_number_ends_the_lease_at_once(place: MeetingPlace) -> None:
    held = Still.take(place, record(1, "a"), None)
    assert held is not None
    assert Still.take(place, record(2, "b"), None)
    held.renew(held.clock())
    assert held.left_s() == 0.0
    assert held.until_s == 0.0


def test_what_is_given_back_is_free_at_once(place: MeetingPlace) -> None:
    held = Lease.take(place, record(1, "a"), None)
    assert held is not None
    held.release()
    assert LeaseObserver(place).poll() == (None, 2)
    assert held.left_s() <= 0


class Failing:
    """A place that cannot be reached."""

    def __init__(self, inner: MeetingPlace) -> None:
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
    place = Failing(SharedFolder(tmp_path))
    told, again = [], threading.Event()

    def renewed(until_s: float) -> None:
        told.append(until_s)
        again.set()

    place.broken = False
    held = Lease.take(place, record(1, "a"), None, on_renewed=renewed)
    assert held is not None
    place.broken = True
    again.clear()
    place.broken = False
    assert again.wait(20)
    assert held.left_s() > 0
    assert told[-1] == held.until_s
    held.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}"])
def test_a_damaged_record_is_passed_over_with_a_word(place: MeetingPlace, content: bytes) -> None:
    """A power cut on a disk that lies leaves such records; every host met them at every start."""
    clock, told = Clock(), []
    assert Still.take(place, record(1, "a"), None)
    assert place.create("lease/000099", content)
    other = LeaseObserver(place, clock, told.append)
    assert other.poll() == (None, None)
    assert "lease/000099 is damaged" in told[0]
    clock.t += DEAD_S
    assert other.poll() == (None, 100)
    assert len(told) == 1
    assert Still.take(place, record(100, "b"), other.last_beat)
    assert other.poll() == (record(100, "b"), None)


def odd(**changed: object) -> bytes:
    fields = {"number": 1, "node": "a", "addresses": ["x"], "port": 1, "token": "t"} | changed
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "content",
    [odd(port=0), odd(port="1"), odd(port=True), odd(node=None), odd(addresses="x"), odd(token=[])],
)
def test_a_record_with_an_odd_field_is_passed_over(place: MeetingPlace, content: bytes) -> None:
    assert place.create("lease/000001", content)
    assert LeaseObserver(place).poll() == (None, None)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_content_of_a_record_is_read_or_passed_over(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(_parse_record(1, content), LeaseRecord)


def test_names_that_are_no_numbers_are_no_records(place: MeetingPlace) -> None:
    for name in ("notes.txt", "1", "٣٣٣٣٣٣", "9" * 40, ".000007"):
        place.create(f"lease/{name}", b"x")
    assert LeaseObserver(place).poll() == (None, 1)


def test_a_host_that_takes_over_waits_for_a_holder_that_came_back(place: MeetingPlace) -> None:
    held = Still.take(place, record(1, "a"), None)
    assert held is not None
    held.renew(held.clock())
    slept: list[float] = []
    assert Still.take(place, record(2, "b"), "1", sleep=slept.append)
    assert slept == []  # still the beat by which it was taken for dead
    assert Still.take(place, record(2, "b"), "0", sleep=slept.append)
    assert slept[0] > FENCED_S


def test_the_read_or_create_secret_the_hosts_is_made_once_and_is_the_owners_alone(
    tmp_path: Path,
) -> None:
    place = SharedFolder(tmp_path)
    secret = read_or_create_secret(place)
    assert read_or_create_secret(SharedFolder(tmp_path)) == secret
    assert len(secret) == 64
    (file,) = (tmp_path / "secret").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(b"torn")
    second = read_or_create_secret(place)
    assert second not in ("torn", secret)
    assert read_or_create_secret(place) == second
