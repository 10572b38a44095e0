"""AdamW against torch's own, with and without weights in full precision beside the parameters."""

import pytest
import torch
from torch import nn

from penstock.run.schema.train import TrainSection
from penstock.train.optim.adamw import AdamW

SHAPES = {"matrix": (17, 9), "vector": (30,), "scalar": (1,)}


def firsts() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}


def torchs(first: dict[str, torch.Tensor], train: TrainSection) -> tuple[dict, torch.optim.AdamW]:
    params = {name: nn.Parameter(value.clone()) for name, value in first.items()}
    groups = [
        {"params": [p], "weight_decay": train.weight_decay if p.dim() > 1 else 0.0}
        for p in params.values()
    ]
    return params, torch.optim.AdamW(groups, lr=1e-2, betas=train.betas, eps=train.eps)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("states", ["fp32", "bf16"])
@pytest.mark.parametrize("masters", [False, True])
def test_it_is_torchs(masters: bool, states: str, scale: float) -> None:
    """With bf16 states only as near as bf16 is."""
    train = TrainSection(states=states, weight_decay=0.2)
    kept = torch.float32 if masters or states == "bf16" else torch.float64
    first = {name: value.to(kept) for name, value in firsts().items()}
    kind = torch.bfloat16 if masters else kept
    params = {name: nn.Parameter(value.to(kind)) for name, value in first.items()}
    ours = AdamW(params, {n: v.clone() for n, v in first.items()} if masters else {}, train)
    theirs, reference = torchs(first, train)
    draw = torch.Generator().manual_seed(1)
    for _ in range(6):
        grads = {n: torch.randn(s, generator=draw).to(kind) for n, s in SHAPES.items()}
        ours.step(grads, 1e-2, scale)
        for name, param in theirs.items():
            param.grad = grads[name].to(kept) * scale
        reference.step()
    assert ours.updates == 6
    near = {"rtol": 0.0, "atol": 1e-3} if states == "bf16" else {"rtol": 1e-5, "atol": 1e-7}
    for name, param in theirs.items():
        torch.testing.assert_close(ours.weight(name), param.detach(), **near)
        if masters:
            assert params[name].detach().equal(ours.weight(name).bfloat16())


def test_gradients_may_become_wider() -> None:
    """From one microbatch a step to several: sums of 16 bits are kept in 32."""
    first = {name: value.float() for name, value in firsts().items()}
    params = {name: nn.Parameter(value.bfloat16()) for name, value in first.items()}
    ours = AdamW(params, {n: v.clone() for n, v in first.items()}, TrainSection())
    for dtype in (torch.bfloat16, torch.float32):
        ours.step({n: torch.ones(s, dtype=dtype) for n, s in SHAPES.items()}, 1e-2, 1.0)
    theirs, reference = torchs(first, TrainSection())
    for _ in range(2):
        for param in theirs.values():
            param.grad = torch.ones_like(param)
        reference.step()
    for name, param in theirs.items():
        torch.testing.assert_close(ours.weight(name), param.detach())


def test_bf16_weights_move_by_less_than_they_can_tell_apart() -> None:
    """A step of 1e-4 at 1, where bf16 knows 0.0078: rounded to nearest nothing would ever move."""
    train = TrainSection(weights="bf16", states="bf16", weight_decay=0.0)
    param = nn.Parameter(torch.ones(100_000, dtype=torch.bfloat16))
    ours = AdamW({"a": param}, {}, train)
    for _ in range(20):
        ours.step({"a": torch.ones_like(param)}, 1e-4, 1.0)
    assert ours.moments["a"]["exp_avg"].dtype == torch.bfloat16
    assert param.double().mean().item() == pytest.approx(1 - 20e-4, abs=1e-4)


@pytest.mark.parametrize("masters", [False, True])
def test_warming_up_changes_nothing(masters: bool) -> None:
    first = {name: value.float() for name, value in firsts().items()}
    kind = torch.bfloat16 if masters else torch.float32
    params = {name: nn.Parameter(value.to(kind)) for name, value in first.items()}
    ours = AdamW(
        params, {n: v.clone() for n, v in first.items()} if masters else {}, TrainSection()
    )
    ours.warm_up({name: torch.ones_like(param) for name, param in params.items()})
    assert ours.updates == 0
    for name, value in first.items():
        assert torch.equal(ours.weight(name), value)
        assert torch.equal(params[name], value.to(kind))
        assert not ours.moments[name]["exp_avg"].any()
