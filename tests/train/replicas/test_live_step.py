"""A step that is lost leaves no trace, and one that was taken is not taken back."""

from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.train.parallel.expert import ExpertBalancer
from penstock.train.parallel.parts import Gradients
from penstock.train.replicas.live_world import PeerLost
from penstock.train.replicas.reduce import Vote
from penstock.train.step import Stepper, unguarded_step


class Counting:
    """A forward pass that counts in a buffer, as experts and norms do."""

    def __init__(self, weight: nn.Parameter, seen: Tensor) -> None:
        self.weight, self.seen = weight, seen

    def backward(self, batch: list, tokens: int) -> Tensor:
        self.seen += 1
        loss = (self.weight * 2.0).sum()
        loss.backward()
        return loss.detach()

    def add_shared_gradients(self, grads: dict[str, Tensor]) -> None:
        pass

    def wait_for_stages(self, clock: StepClock) -> None:
        pass

    def figures(self) -> Tensor:
        return torch.empty(0)


def stepper(vote: object) -> tuple[Stepper, nn.Parameter, Tensor]:
    weight, seen = nn.Parameter(torch.ones(3)), torch.zeros(1)
    replicas = MagicMock(reduce=lambda grads: dict(grads))
    replicas.vote.side_effect = vote
    made = Stepper(
        runner=Counting(weight, seen),
        gradients=Gradients({"w": weight}),
        optimizer=MagicMock(),
        replicas=replicas,
        clip=0.0,
        shares={"w": 1.0},
        balancer=ExpertBalancer([], lambda values: values, 0.0),
        buffers=lambda: [seen],
    )
    return made, weight, seen


def step(made: Stepper) -> None:
    unguarded_step(made, [], 1, 0.1, StepClock(False))


def test_a_step_that_is_lost_at_the_vote_leaves_no_trace() -> None:
    made, weight, seen = stepper(PeerLost())
    with pytest.raises(PeerLost):
        step(made)
    assert seen.item() == 1
    made.discard()
    assert seen.item() == 0
    assert weight.grad is None


def test_a_peer_that_is_lost_after_the_step_does_not_undo_it() -> None:
    made, _, seen = stepper([Vote(1.0, 1.0, {})])
    step(made)
    made.discard()  # as when a replica is lost in the evaluation that follows
    assert seen.item() == 1
