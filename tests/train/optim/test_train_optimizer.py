"""The curves of the learning rate, and which weights decay."""

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from penstock.model.experts import Experts
from penstock.run.schema.train import TrainSection
from penstock.train.optim.optimizer import build_optimizer
from penstock.train.step import LearningRate

PEAK = 3e-3


def train(**fields: object) -> TrainSection:
    return TrainSection.model_validate(fields)


@st.composite
def curves(draw: st.DrawFn) -> tuple[int, TrainSection, list[float]]:
    """(steps, section, the rate of every step)."""
    steps = draw(st.integers(1, 300))
    portions = st.floats(0, 0.5) | st.integers(0, steps).map("{} steps".format)
    section = train(
        steps=steps,
        schedule=draw(st.sampled_from(["cosine", "wsd"])),
        final=draw(st.floats(0, 1)),
        warmup=draw(portions),
        decay=draw(portions),
    )
    assume(section.misfit(steps) is None)
    return steps, section, [LearningRate.of(section, PEAK, steps).at(i) for i in range(steps)]


@given(curves())
def test_a_rise_then_never_a_rise_again(curve: tuple[int, TrainSection, list[float]]) -> None:
    steps, section, rates = curve
    warmup = section.warmup.of(steps)
    assert all(0 < rate <= PEAK * (1 + 1e-12) for rate in rates[: max(1, warmup)])
    rise, fall = rates[:warmup], rates[warmup:]
    assert rise == pytest.approx([PEAK * (i + 1) / warmup for i in range(warmup)])
    assert all(a >= b - 1e-12 for a, b in pairwise(fall))
    assert min(rates[warmup:], default=PEAK) >= PEAK * section.final * (1 - 1e-12)


@given(curves())
def test_no_jump(curve: tuple[int, TrainSection, list[float]]) -> None:
    """From a step to the next the rate moves by no more than the steepest part of its curve."""
    steps, section, rates = curve
    warmup, decay = section.warmup.of(steps), max(1, section.decay.of(steps))
    down = PEAK * (1 - section.final)
    steepest = {"cosine": down * 1.6 / max(1, steps - warmup), "wsd": down / decay}[
        section.schedule
    ]
    if section.schedule == "wsd" and warmup + decay > steps:  # the rounding that `misfit` lets pass
        steepest *= 2
    after = LearningRate.of(section, PEAK, steps).at(steps)
    for i, (a, b) in enumerate(pairwise([*rates, after])):
        up = PEAK / warmup if warmup else 0.0
        assert -steepest - 1e-12 <= b - a <= up + 1e-12, f"after step {i}"


@given(curves())
def test_the_end_of_the_curve_is_the_final_share(
    curve: tuple[int, TrainSection, list[float]],
) -> None:
    steps, section, _ = curve
    assume(section.warmup.of(steps) < steps)
    assert LearningRate.of(section, PEAK, steps).at(steps) == pytest.approx(
        PEAK * section.final, abs=1e-15
    )


def test_cosine_by_hand() -> None:
    section = train(steps=110, warmup="10 steps", final=0.1)
    at = [LearningRate.of(section, 1.0, 110).at(i) for i in (0, 4, 9, 10, 60, 109)]
    assert at == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.55, 0.1], abs=3e-4)


def test_wsd_holds_until_the_decay_begins() -> None:
    section = train(steps=100, schedule="wsd", warmup="10 steps", decay="20 steps", final=0.0)
    rates = [LearningRate.of(section, 1.0, 100).at(i) for i in range(100)]
    assert rates[9:81] == [1.0] * 72
    assert rates[80:] == pytest.approx([(20 - i) / 20 for i in range(20)])


def test_no_warm_up_starts_at_the_peak() -> None:
    section = train(steps=10, warmup="0 steps")
    assert LearningRate.of(section, PEAK, 10).at(0) == PEAK


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.RMSNorm(3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.experts = Experts(2, 4, 3, bias=True)
        nn.init.ones_(self.experts.up_bias)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = Net()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    update = build_optimizer(trained, {}, train(steps=1, weight_decay=0.3))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    update.step({name: torch.zeros_like(p) for name, p in trained.items()}, 0.1, 1.0)
    for name, p in model.named_parameters():
        decays = name in ("linear.weight", "experts.gate", "experts.up", "experts.down")
        scale = 1 - 0.1 * 0.3 if decays else 1.0
        torch.testing.assert_close(p.detach(), before[name] * scale)
