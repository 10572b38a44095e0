"""Two strikes by one's own fault, and out."""

import pytest

from penstock.policy.quarantine import (
    FORGIVEN_S,
    HardwareFault,
    HardwarePart,
    QuarantineState,
    decide,
)


def lost(node: str, t_s: float = 0.0) -> HardwareFault:
    return HardwareFault(node, 0, "no beat for 5 s", t_s, "lost")


def test_a_node_that_is_lost_twice_is_left_out() -> None:
    state, out = decide(QuarantineState(), lost("a"))
    assert out is None
    assert state.usable("a", 2) == [0, 1]
    state, out = decide(state, lost("b", 1.0))
    assert out is None
    state, out = decide(state, lost("a", 2.0))
    assert out == HardwarePart("a")
    assert state.usable("a", 2) == []
    assert state.usable("b", 2) == [0, 1]
    assert decide(state, lost("a", 3.0))[1] is None  # told once


def test_an_accelerator_that_fails_twice_is_left_out_alone() -> None:
    words = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    state = QuarantineState()
    for t in (0.0, 5.0):
        state, out = decide(state, HardwareFault("a", 3, words, t, "rank"))
    assert out == HardwarePart("a", 3)
    assert str(out) == "a, accelerator 3"
    assert state.usable("a", 5) == [0, 1, 2, 4]


@pytest.mark.parametrize(
    "words",
    [
        "the process was killed by SIGKILL (out of memory?)",
        "RuntimeError: Connection closed by peer",
        "out of memory: CUDA out of memory",
        "ValueError: bad",
    ],
)
def test_what_says_nothing_about_the_hardware_is_no_strike(words: str) -> None:
    state = QuarantineState()
    for t in range(9):
        state, out = decide(state, HardwareFault("a", 0, words, float(t), "rank"))
        assert out is None
    assert state == QuarantineState()


def test_a_replay_that_differs_counts_against_the_accelerator() -> None:
    state = QuarantineState()
    for t in (0.0, 1.0):
        state, out = decide(state, HardwareFault("a", 1, "replay differs", t, "differs"))
    assert out == HardwarePart("a", 1)


def test_strikes_of_long_ago_are_forgiven() -> None:
    state, _ = decide(QuarantineState(), lost("a"))
    state, out = decide(state, lost("a", FORGIVEN_S + 1))
    assert out is None
    assert len(state.strikes) == 1
