"""When to save: Young's interval within bounds, and the three ways a run file can ask."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.policy.checkpoint import (
    FAST_SHARE,
    FAST_STEPS,
    LONGEST_S,
    SHORTEST_S,
    CheckpointState,
    FastSaveState,
    cost_s,
    due,
    fast_due,
    fast_steps,
    interval_s,
    node_mtbf_s,
)

SECONDS = st.floats(0, 1e9)


def state(
    step: int = 7, now_s: float = 0.0, last_step: int = 0, save_s: float = 1.0
) -> CheckpointState:
    return CheckpointState(step=step, now_s=now_s, last_step=last_step, last_s=0.0, save_s=save_s)


def test_young_between_the_bounds() -> None:
    assert interval_s(2.0, 10_000.0) == 200.0
    assert interval_s(1e-9, 1.0) == SHORTEST_S
    assert interval_s(10.0, 1e9) == LONGEST_S
    assert interval_s(1e3, 1e9) == 20_000.0  # a save that long may take one part in twenty


@given(SECONDS, SECONDS, SECONDS)
def test_a_dearer_save_or_a_rarer_fault_never_shortens_the_interval(
    save_s: float, mtbf_s: float, more: float
) -> None:
    here = interval_s(save_s, mtbf_s)
    assert SHORTEST_S <= here <= max(LONGEST_S, 20 * save_s)
    assert interval_s(save_s + more, mtbf_s) >= here
    assert interval_s(save_s, mtbf_s + more) >= here


@given(st.floats(0.01, 50), st.floats(3600, 1e5), st.floats(1.1, 10))
def test_young_loses_less_than_a_shorter_or_longer_interval(
    save_s: float, mtbf_s: float, factor: float
) -> None:
    def lost(interval: float) -> float:
        """Share of the time that goes to saving and to work redone after faults."""
        return save_s / interval + interval / 2 / mtbf_s

    best = interval_s(save_s, mtbf_s)
    if SHORTEST_S < best < LONGEST_S:
        assert lost(best) <= min(lost(best * factor), lost(best / factor)) * (1 + 1e-9)


def test_a_node_fails_after_months_not_hours() -> None:
    """The published rates are failures per 1,000 node-days: a few to a few tens."""
    assert 20 * 86400 < node_mtbf_s() < 1000 * 86400


@given(st.integers(1, 1000), st.integers(1, 1000), SECONDS)
def test_by_steps_the_clock_does_not_matter(step: int, every: int, now_s: float) -> None:
    assert due(state(step, now_s), every, None) == (step % every == 0)


@given(SECONDS, st.floats(0.1, 1e6))
def test_by_time_the_step_does_not_matter(now_s: float, every_s: float) -> None:
    assert due(state(now_s=now_s), None, every_s) == (now_s >= every_s)


@given(st.floats(1e-4, 1e4))
def test_auto_waits_for_the_interval_of_the_measured_save(save_s: float) -> None:
    wait = interval_s(save_s, node_mtbf_s())
    assert due(state(now_s=wait, save_s=save_s), None, None)
    assert not due(state(now_s=wait * 0.999, save_s=save_s), None, None)


@given(SECONDS, st.none() | st.just(1), st.none() | st.just(1e-3))
def test_the_step_that_is_saved_is_not_saved_again(
    now_s: float, every_steps: int | None, every_s: float | None
) -> None:
    assert not due(state(step=7, now_s=now_s, last_step=7), every_steps, every_s)


def test_seconds_count_from_the_last_save() -> None:
    late = CheckpointState(step=9, now_s=1000.0, last_step=5, last_s=995.0, save_s=1.0)
    assert not due(late, None, 10.0)
    assert due(late, None, 5.0)


def fast(
    step: int = 7,
    step_s: float = 0.1,
    stall_s: float = 0.0,
    seal_s: float = 0.0,
    now_s: float = 0.0,
) -> FastSaveState:
    return FastSaveState(step, now_s, 0, 0.0, step_s, stall_s, seal_s)


@given(st.floats(1e-3, 100), st.floats(0, 10), st.floats(0, 100))
@example(step_s=6.917089132803688, stall_s=6.917089132803688, seal_s=0.0)  # 200 steps, not 201
def test_fast_saves_hold_up_next_to_nothing(step_s: float, stall_s: float, seal_s: float) -> None:
    steps = fast_steps(step_s, stall_s, seal_s)
    assert stall_s <= FAST_SHARE * steps * step_s * (1 + 1e-9)
    assert 2 * seal_s <= steps * step_s * (1 + 1e-9)  # half of the time none is going on
    assert steps >= 1
    if steps > FAST_STEPS:  # no rarer than that takes
        less = (steps - 1) * step_s
        assert stall_s > FAST_SHARE * less or 2 * seal_s > less


def test_fast_saves_are_every_few_steps_and_every_one_of_long_ones() -> None:
    assert fast_steps(0.1, 0.0, 0.0) == FAST_STEPS
    assert fast_steps(30.0, 0.01, 1.0) == 1
    assert fast_steps(0.1, 0.05, 0.0) == 100
    assert fast_steps(0.0, 0.0, 0.0) == FAST_STEPS  # before a step was measured


def test_a_fast_save_is_due_by_steps_time_or_what_the_last_one_took() -> None:
    assert fast_due(fast(5), None, None)
    assert not fast_due(fast(4), None, None)
    assert not fast_due(fast(5, stall_s=0.05), None, None)
    assert fast_due(fast(6), 3, None)
    assert not fast_due(fast(7), 3, None)
    assert fast_due(fast(now_s=2.0), None, 2.0)
    assert not fast_due(fast(now_s=1.9), None, 2.0)
    assert not fast_due(fast(0, now_s=5.0), 1, 1.0)  # that step is saved


def test_a_save_behind_the_training_costs_a_part_of_its_time() -> None:
    assert cost_s(0.0, 0.0) == 0.0
    assert 0.01 < cost_s(0.01, 20.0) < 20.0


def test_a_run_on_many_nodes_saves_more_often() -> None:
    """Any of its nodes may fail, so that the failure rate is that of all of them."""

    def saves(nodes: int, after_s: float) -> bool:
        return due(CheckpointState(10, after_s, 0, 0.0, 0.1, nodes), None, None)

    assert not saves(1, 500.0)
    wait_s = interval_s(0.1, node_mtbf_s() / 2048)
    assert wait_s < 100
    assert saves(2048, wait_s)
    assert not saves(2048, 0.9 * wait_s)
