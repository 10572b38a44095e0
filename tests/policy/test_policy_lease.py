"""No two hosts lead at once, whatever the network does to their beats."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy import lease


def see(
    watch: lease.LeaseView, number: int, beat: str, released: bool, now_s: float
) -> tuple[lease.LeaseView, int | None]:
    """A look that takes no time."""
    return lease.observe(watch, number, beat, released, now_s, now_s)


def test_without_a_record_the_first_number_may_be_taken() -> None:
    _, number = see(lease.LeaseView(), 0, "", False, 5.0)
    assert number == 1


def test_a_holder_that_beats_keeps_it_and_one_that_does_not_loses_it() -> None:
    watch = lease.LeaseView()
    for now in range(0, 100, 2):
        watch, number = see(watch, 3, f"beat {now}", False, float(now))
        assert number is None
    watch, number = see(watch, 3, "beat 98", False, 98.0 + lease.DEAD_S - 0.1)
    assert number is None
    _, number = see(watch, 3, "beat 98", False, 98.0 + lease.DEAD_S)
    assert number == 4


def test_a_new_holder_is_watched_from_the_beginning() -> None:
    watch, _ = see(lease.LeaseView(), 3, "x", False, 0.0)
    _, number = see(watch, 4, "x", False, lease.DEAD_S + 1)
    assert number is None


def test_a_lease_that_was_given_back_is_free_at_once() -> None:
    _, number = see(lease.LeaseView(), 3, "x", True, 0.0)
    assert number == 4


@settings(deadline=None)
@given(
    gaps=st.lists(st.floats(0.0, 15.0), min_size=1, max_size=30),
    delays=st.lists(st.floats(0.0, 20.0), min_size=30, max_size=30),
    looks=st.lists(st.floats(0.05, 3.0), min_size=1, max_size=200),
)
def test_when_a_number_may_be_taken_its_holder_has_stopped_leading(
    gaps: list[float], delays: list[float], looks: list[float]
) -> None:
    """The holder beats at odd moments, each beat takes its time to land, and another host looks at
    odd moments of a clock of its own."""
    sent, landed, at = [], [], 0.0
    for gap, delay in zip(gaps, delays, strict=False):
        at += gap
        sent.append(at)
        at += delay  # the next is sent when this one has landed
        landed.append(at)
    watch, now = lease.LeaseView(), 0.0
    for look in looks:
        now += look
        seen = [i for i, t in enumerate(landed) if t <= now]
        if not seen:
            continue
        offset = 1000.0  # the two clocks have nothing in common
        watch, free = see(watch, 1, str(seen[-1]), False, now + offset)
        if free:
            began = sent[seen[-1]]  # the last that the holder knows to have succeeded
            assert lease.left_s(began, now) <= lease.FENCED_S - lease.DEAD_S < 0
            return


def test_a_holder_goes_on_without_the_place_only_with_every_host_at_its_side() -> None:
    assert lease.lead_without_beat_s(-50.0, False, there=2, hosts=2) == lease.FENCED_S
    assert lease.lead_without_beat_s(-50.0, False, there=1, hosts=2) == -50.0
    assert lease.lead_without_beat_s(-50.0, True, there=2, hosts=2) == 0.0
    assert lease.lead_without_beat_s(4.0, False, there=1, hosts=2) == 4.0


def test_a_look_that_took_long_judges_by_when_it_began() -> None:
    """The beat was read at some moment of it, and the holder may have beaten since."""
    watch, _ = lease.observe(lease.LeaseView(), 3, "x", False, 0.0, 0.0)
    watch, number = lease.observe(watch, 3, "x", False, 1.0, lease.DEAD_S + 5)
    assert number is None
    _, number = lease.observe(watch, 3, "x", False, lease.DEAD_S, lease.DEAD_S + 5)
    assert number == 4


def test_who_takes_a_number_waits_for_a_holder_that_came_back() -> None:
    assert lease.wait_s(None, "") == 0
    assert lease.wait_s("17", "17") == 0
    assert lease.wait_s("released", "released") == 0
    assert lease.wait_s("17", "18") > lease.FENCED_S
    assert lease.wait_s("17", None) > lease.FENCED_S  # not known: the same
