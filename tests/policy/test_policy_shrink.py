"""The layout that was asked for, on what is left."""

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy.shrink import fit_to_ranks

WAYS = ("replicate", "shard", "tensor", "pipeline", "context")
SIZES = st.sampled_from([1, 2, 3, 4, 8])


@settings(deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(WAYS, SIZES) | {"expert": st.sampled_from([1, 2, 4])}),
    st.integers(1, 64),
)
def test_it_fits_and_keeps_how_the_model_was_cut(asked: dict[str, int], ranks: int) -> None:
    found = fit_to_ranks(asked, ranks)
    unit = asked["tensor"] * asked["pipeline"] * asked["context"]
    if found is None:
        assert ranks < unit
        return
    assert prod(found[way] for way in WAYS) <= ranks
    for way in ("tensor", "pipeline", "context"):
        assert found[way] == asked[way]
    inner = found["shard"] * found["tensor"] * found["context"]
    assert inner % found["expert"] == asked["expert"] % found["expert"] == 0
    assert found["shard"] == min(asked["shard"], ranks // unit)
    # One more replica would not fit.
    assert prod(found[way] for way in WAYS) + found["shard"] * unit > ranks


def test_replicas_go_before_shards() -> None:
    assert fit_to_ranks({"replicate": 4, "shard": 2}, 4) == {
        "replicate": 2, "shard": 2, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1,
    }  # fmt: skip
    found = fit_to_ranks({"replicate": 1, "shard": 4}, 3)
    assert found is not None
    assert (found["replicate"], found["shard"]) == (1, 3)


def test_all_ranks_of_the_full_number_are_used() -> None:
    asked = {"replicate": 2, "shard": 2, "tensor": 2, "pipeline": 1, "context": 1, "expert": 1}
    assert fit_to_ranks(asked, 8) == asked


def test_a_model_that_was_cut_over_more_ranks_than_are_left_cannot_go_on() -> None:
    assert fit_to_ranks({"tensor": 4, "replicate": 2}, 3) is None
