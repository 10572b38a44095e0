"""Which steps may change weights: never a false alarm on normal curves, never a miss on wild ones.

`recorded_curve.json` is the curve of examples/stdlib.toml, 489 steps, as its journal has it.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy import spike
from penstock.policy.spike import IN_A_ROW, LEAST, WIDTHS, OnSpike, SpikeState, decide

BAD = st.sampled_from([math.nan, math.inf, -math.inf])
Curve = list[tuple[float, float]]


def recorded() -> Curve:
    found = json.loads((Path(__file__).parent / "recorded_curve.json").read_text())
    return list(zip(found["loss"], found["grad_norm"], strict=True))


def made(seed: int, steps: int, noise: str) -> Curve:
    """A power law with noise that loss and norm share, so that both are high together."""
    draw = np.random.default_rng(seed)
    wild = draw.normal(size=steps) if noise == "normal" else draw.laplace(size=steps) / 2**0.5
    at = np.arange(1, steps + 1)
    loss = 2.5 + 6.0 * at**-0.35 + 0.1 * wild
    norm = np.exp(0.35 * wild + 0.1 * draw.normal(size=steps)) * (0.5 + 4.0 / at**0.5)
    return list(zip(loss.tolist(), norm.tolist(), strict=True))


def walk(
    curve: Curve, on_spike: OnSpike = "skip", state: SpikeState | None = None, first: int = 1
) -> tuple[SpikeState, dict[int, str]]:
    """The state at the end, and every verdict that was not good."""
    state, verdicts = state or SpikeState(), {}
    for step, (loss, norm) in enumerate(curve, start=first):
        state, verdict = decide(state, step, loss, norm, on_spike)
        if verdict.kind != "good":
            verdicts[step] = verdict.kind
    return state, verdicts


@pytest.mark.parametrize("noise", ["normal", "laplace"])
@pytest.mark.parametrize("seed", range(5))
def test_no_false_alarm_on_a_normal_curve(noise: str, seed: int) -> None:
    assert walk(made(seed, 3000, noise))[1] == {}


def test_no_false_alarm_on_a_recorded_curve() -> None:
    """Although its norms reach 3.7 times their median."""
    assert walk(recorded())[1] == {}


@pytest.mark.parametrize("at", [40, 200, 488])
@pytest.mark.parametrize("on_spike", ["skip", "rollback", "stop"])
def test_a_spike_in_the_recorded_curve_is_found(at: int, on_spike: OnSpike) -> None:
    curve = recorded()
    loss, norm = curve[at - 1]
    curve[at - 1] = (max(12.0, 2 * loss), 40 * norm)
    state, verdicts = walk(curve, on_spike)
    assert verdicts == {at: on_spike}
    assert state.refused == (at,)


def test_a_steep_gradient_or_a_high_loss_alone_is_let_through_unless_it_is_enormous() -> None:
    state, _ = walk(recorded())
    loss, norm = recorded()[-1]
    for pair in [(loss, 30 * norm), (3 * loss, norm)]:
        assert decide(state, 490, *pair, "skip")[1].kind == "good"
    assert decide(state, 490, loss, 1000 * norm, "skip")[1].kind == "skip"


def test_nothing_finite_is_judged_before_there_is_something_to_compare_with() -> None:
    calm = made(0, LEAST - 1, "normal")
    assert walk([*calm, (1e3, 1e3)])[1] == {}
    assert walk([*calm, calm[0], (1e3, 1e3)])[1] == {LEAST + 1: "skip"}


@given(bad=BAD, which=st.booleans(), on_spike=st.sampled_from(["skip", "rollback", "stop"]))
def test_what_is_not_finite_is_never_taken(bad: float, which: bool, on_spike: OnSpike) -> None:
    """From the first step on; nothing was changed, so there is nothing to roll back."""
    pair = (bad, 1.0) if which else (1.0, bad)
    state, verdict = decide(SpikeState(), 1, *pair, on_spike)
    assert verdict.kind == ("stop" if on_spike == "stop" else "skip")
    assert state.losses == ()


def test_three_bad_steps_in_a_row_end_the_run() -> None:
    nan = (math.nan, 1.0)
    _, verdicts = walk([*made(0, 500, "normal"), nan, nan, nan])
    assert list(verdicts.values()) == ["skip", "skip", "stop"]
    assert len(verdicts) == IN_A_ROW


def test_with_rollback_they_are_tried_once_more_from_good_weights() -> None:
    """A weight that went wrong in memory makes every batch look bad."""
    calm, nan = made(0, 503, "normal"), (math.nan, 1.0)
    before, _ = walk(calm[:490])
    later, verdicts = walk([*calm[490:500], nan, nan, nan], "rollback", before, first=491)
    assert verdicts == {501: "skip", 502: "skip", 503: "rollback"}
    assert later.skips == ()
    state = before.knowing(later)
    assert walk(calm[490:], "rollback", state, first=491)[1] == {}
    verdicts = walk([*calm[490:500], nan, nan, nan], "rollback", state, first=491)[1]
    assert verdicts == {501: "skip", 502: "skip", 503: "stop"}


def test_more_than_one_bad_step_in_a_hundred_ends_the_run() -> None:
    """A few are allowed even when the run is young; more only as it gets older."""

    def lived(every: int) -> int:
        state = SpikeState()
        for step in range(1, 2001):
            loss = math.nan if step % every == 0 else 3.0
            state, verdict = decide(state, step, loss, 1.0, "skip")
            if verdict.kind == "stop":
                return step
        return 2001

    assert lived(every=150) == 2001
    assert lived(every=20) == 80


def test_after_a_roll_back_the_batch_is_left_out_and_nothing_else() -> None:
    calm = made(1, 100, "normal")
    before, _ = walk(calm[:60])
    state, verdicts = walk([*calm[60:79], (30.0, 90.0)], "rollback", before, first=61)
    assert verdicts == {80: "rollback"}
    again, verdicts = walk(calm[60:], "rollback", before.knowing(state), first=61)
    assert verdicts == {80: "skip"}
    assert again.skips == again.refused == (80,)


def test_a_spike_that_comes_back_takes_more_batches_with_it_and_then_ends_the_run() -> None:
    """A run whose loss is broken from step 78 on, wherever it goes on from."""
    calm = made(2, 70, "normal")
    before, _ = walk(calm)
    state, firsts = before, []
    for _ in range(len(WIDTHS)):
        step = next(s for s in range(78, 200) if s not in state.skips)
        state, verdict = decide(state, step, 30.0, 90.0, "rollback")
        assert verdict.kind == "rollback"
        firsts.append((step, verdict.first))
        state = before.knowing(state)
    assert firsts == [(78, 78), (79, 76), (80, 65)]
    assert state.skips == tuple(range(65, 81))
    assert decide(state, 81, 30.0, 90.0, "rollback")[1].kind == "stop"


def test_roll_backs_far_apart_do_not_add_up() -> None:
    state, _ = walk(made(3, 300, "normal"))
    for step in (400, 600, 800, 1000):
        state, verdict = decide(state, step, 30.0, 90.0, "rollback")
        assert (verdict.kind, verdict.first) == ("rollback", step)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), cut=st.integers(1, 119), bad=st.sets(st.integers(30, 120)))
def test_a_state_that_went_through_json_decides_the_same(
    seed: int, cut: int, bad: set[int]
) -> None:
    curve = made(seed, 120, "laplace")
    for step in list(bad)[:2]:
        curve[step - 1] = (1e2, 1e3) if step % 2 else (math.nan, 1.0)
    whole = walk(curve)
    state, first = walk(curve[:cut])
    state = SpikeState.from_json(json.loads(json.dumps(state.to_json())))
    end, rest = walk(curve[cut:], "skip", state, first=cut + 1)
    assert (end, first | rest) == whole


def test_the_state_stays_small() -> None:
    state, _ = walk(made(4, 2000, "normal"))
    assert len(state.losses) == len(state.norms) == spike.WINDOW
    assert len(json.dumps(state.to_json())) < 4000


def test_a_model_without_gradients_is_never_a_spike() -> None:
    assert walk([(3.0, 0.0)] * 100 + [(3.0, 1.0)] * 100)[1] == {}
