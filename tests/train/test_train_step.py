"""A step that is not taken leaves no trace: not in weights, gradients or running statistics."""

from math import nan

import pytest
import torch
from torch import Tensor, nn

from penstock.meter.clock import StepClock
from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW
from penstock.train.parallel.expert import ExpertBalancer
from penstock.train.parallel.parts import Gradients
from penstock.train.replicas.reduce import REQUESTS, Vote
from penstock.train.step import Stepper


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))


class Runner:
    def __init__(self, model: Counting) -> None:
        self.model = model

    def backward(self, batch: list[float], tokens: int) -> Tensor:
        self.model.seen += batch[0]
        loss = (self.model.weight * batch[0]).sum() / tokens
        loss.backward()
        return loss.detach()

    def add_shared_gradients(self, grads: dict[str, Tensor]) -> None:
        pass

    def wait_for_stages(self, clock: StepClock) -> None:
        pass

    def figures(self) -> Tensor:
        return torch.empty(0)


class Alone:
    """The replicas of a run that has one."""

    def reduce(self, grads: dict[str, Tensor]) -> dict[str, Tensor]:
        return grads

    def vote(
        self, loss: Tensor, squares: Tensor, requests: dict[str, bool], figures: Tensor
    ) -> Vote:
        return Vote(loss.item(), squares.item() ** 0.5, dict.fromkeys(REQUESTS, False))

    def commit(self) -> None:
        pass


def made() -> tuple[Counting, Stepper]:
    model = Counting()
    params = dict(model.named_parameters())
    stepper = Stepper(
        Runner(model),
        Gradients(params),
        AdamW(params, {}, TrainSection(steps=1)),
        Alone(),
        1.0,
        {"weight": 1.0},
        ExpertBalancer([], lambda values: values, 0.0),
        buffers=lambda: list(model.buffers()),
    )
    return model, stepper


@pytest.mark.parametrize("value", [nan, 2.0])
def test_a_refused_step_leaves_no_trace(value: float) -> None:
    model, stepper = made()
    for accepted in (True, False, True):
        before = [t.clone() for t in (model.weight, model.seen)]
        batch = [2.0 if accepted else value]
        clock = StepClock(False)
        loss, grads = stepper.forward_backward(batch, 1, clock)
        vote = stepper.vote(loss, stepper.reduce(grads, clock), {}, clock)
        if accepted:
            stepper.update(grads, vote.grad_norm, 0.1, clock)
        else:
            stepper.discard()
        same = [torch.equal(a, b) for a, b in zip(before, (model.weight, model.seen), strict=True)]
        assert same == [not accepted] * 2
        assert model.weight.grad is None
    assert model.seen == 4.0


def test_a_warm_up_leaves_none_either() -> None:
    model, stepper = made()
    stepper.warm_up([5.0])
    assert model.seen == 0
    assert torch.equal(model.weight, torch.ones(3))
