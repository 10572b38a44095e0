"""The parts of a step, against a clock that the test moves by hand."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from penstock.meter import clock as module
from penstock.meter.clock import StepClock, now

Pass = Callable[[float], None]
START = 1_700_000_000.0


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """wait(s): time goes on by `s`, and by nothing else."""
    passed = 0.0

    def move(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(module, "now", lambda: START + passed)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: passed))
    return move


class Event:
    """A CUDA event of a device that is `behind` seconds late; done when the host has caught up."""

    behind = 0.0
    time_s: Callable[[], float]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = type(self).time_s() + type(self).behind

    def query(self) -> bool:
        return type(self).time_s() >= self.at

    def elapsed_time(self, last: "Event") -> float:
        return (last.at - self.at) * 1e3


@pytest.fixture
def cuda(wait: Pass, monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    class Here(Event):
        time_s = staticmethod(lambda: module.time.perf_counter())

    monkeypatch.setattr(torch.cuda, "Event", Here)
    return Here


def test_parts_are_counted_and_add_up(wait: Pass) -> None:
    clock = StepClock(cuda=False)
    for name, seconds in [("fetch", 1), ("compute", 2), ("exchange", 3), ("compute", 4)]:
        with clock.part(name):
            wait(seconds)
    spent = clock.settle()
    assert spent == {
        "start": START,
        "total": 10.0,
        "fetch": 1.0,
        "compute": 6.0,
        "exchange": 3.0,
        "bubble": 0.0,
        "held": 0.0,
    }
    assert sum(spent[part] for part in StepClock.PARTS) == spent["total"]


def test_a_sleep_that_nobody_measured_stays_in_the_total_alone(wait: Pass) -> None:
    clock = StepClock(cuda=False)
    with clock.part("fetch"):
        wait(1)
    wait(5)
    with clock.part("compute"):
        wait(2)
    spent = clock.settle()
    assert spent["total"] == 8.0
    assert sum(spent[part] for part in StepClock.PARTS) == 3.0


def test_a_step_begins_with_empty_parts(wait: Pass) -> None:
    clock = StepClock(cuda=False)
    with clock.part("compute"):
        wait(2)
    clock.settle()
    wait(100)  # between the steps: belongs to neither
    clock.begin()
    with clock.part("exchange"):
        wait(3)
    spent = clock.settle()
    assert (spent["start"], spent["total"]) == (START + 102, 3.0)
    assert (spent["compute"], spent["exchange"]) == (0.0, 3.0)


def test_the_device_is_timed_by_its_own_events(wait: Pass, cuda: type[Event]) -> None:
    clock = StepClock(cuda=True)
    with clock.part("fetch"):
        wait(1)
    with clock.part("compute"):
        wait(4)
    spent = clock.settle()
    assert (spent["fetch"], spent["compute"], spent["total"]) == (1.0, 4.0, 5.0)


def test_what_the_device_has_not_finished_is_counted_in_the_next_step(
    wait: Pass, cuda: type[Event]
) -> None:
    clock = StepClock(cuda=True)
    with clock.part("exchange"):
        wait(2)
    cuda.behind = 3.0
    with clock.part("compute"):
        wait(1)
    first = clock.settle()
    assert (first["exchange"], first["compute"], first["total"]) == (2.0, 0.0, 3.0)
    clock.begin()
    wait(4)
    second = clock.settle()
    assert (second["exchange"], second["compute"], second["total"]) == (0.0, 1.0, 4.0)


def test_waiting_for_data_behind_a_busy_device_is_no_wait(wait: Pass, cuda: type[Event]) -> None:
    clock = StepClock(cuda=True)
    cuda.behind = 4.0  # the last update is still running while the host fetches
    with clock.part("compute"):
        wait(3)
    clock.settle()
    clock.begin()
    cuda.behind = 0.0
    with clock.part("fetch"):
        wait(4)
    with clock.part("exchange"):
        wait(1)
    spent = clock.settle()
    # 3 (the rest of the update) + 4 + 1 are more than the 5 that went by; fetch gives way.
    assert (spent["compute"], spent["exchange"], spent["fetch"]) == (3.0, 1.0, 1.0)
    assert sum(spent[part] for part in StepClock.PARTS) == spent["total"] == 5.0


def test_fetch_never_becomes_negative(wait: Pass, cuda: type[Event]) -> None:
    clock = StepClock(cuda=True)
    with clock.part("compute"):
        wait(9)
    clock.begin()
    with clock.part("fetch"):
        wait(1)
    assert clock.settle()["fetch"] == 0.0


def test_now_is_the_time_of_day_and_never_goes_back() -> None:
    assert now() == pytest.approx(time.time(), abs=5)
    times = [now() for _ in range(1000)]
    assert times == sorted(times)


def test_events_of_the_device_are_used_again(wait: Pass, cuda: type[Event]) -> None:
    clock = StepClock(cuda=True)
    used = set()
    for _ in range(5):
        clock.begin()
        for name in ("compute", "exchange"):
            with clock.part(name):
                wait(1)
        used |= {id(event) for _, *pair in clock._pending for event in pair}
        assert clock.settle()["compute"] == 1.0
    assert len(used) == 4
