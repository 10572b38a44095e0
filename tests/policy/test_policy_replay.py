"""Who computes wrongly, by what replicas made of each other's microbatches."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.replay import ReplayResult, Results, at_fault, differing


def results(replica: int, factor: float = 1.0) -> Results:
    loss, norm = (2.0 + replica) * factor, (0.5 + replica) * factor
    return tuple(ReplayResult(loss + s, norm, hash((loss, norm, s))) for s in range(2))


def played(count: int, wrong: int | None, factor: float) -> tuple[list[Results], list[Results]]:
    """What each made of its own, and of the next one's, if one of them is always wrong."""
    own = [results(r, factor if r == wrong else 1.0) for r in range(count)]
    of_next = [results((r + 1) % count, factor if r == wrong else 1.0) for r in range(count)]
    return own, of_next


@given(count=st.integers(2, 6))
def test_sound_replicas_never_differ(count: int) -> None:
    for exact in (True, False):
        assert differing(*played(count, None, 1.0), exact) == []


@given(count=st.integers(3, 6), data=st.data())
def test_of_three_or_more_one_that_is_always_wrong_is_named(
    count: int, data: st.DataObject
) -> None:
    wrong = data.draw(st.integers(0, count - 1))
    own, of_next = played(count, wrong, 1.5)
    pairs = differing(own, of_next, exact=True)
    assert len(pairs) == 2
    assert at_fault(pairs, own, own, exact=True) == [wrong]


def test_of_two_only_the_pair_is_known_unless_one_does_not_repeat_itself() -> None:
    own, of_next = played(2, 1, 1.5)
    pairs = differing(own, of_next, exact=True)
    assert at_fault(pairs, own, own, exact=True) == [0, 1]
    assert at_fault(pairs, own, [own[0], results(1)], exact=True) == [1]


def test_without_exactness_rounding_is_no_difference_and_an_exponent_is() -> None:
    assert differing(*played(2, 0, 1 + 1e-6), exact=False) == []
    assert differing(*played(2, 0, 1 + 1e-6), exact=True) != []
    assert differing(*played(2, 0, 2.0), exact=False) != []
