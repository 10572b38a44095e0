"""A mixture of experts computes what a loop over tokens would, drops nothing, and counts right."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from penstock.catalog import models
from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.experts import ZeroEmptyExpertGradients, grouped_matmul
from penstock.model.initialize import decoder_on_meta, init_std, initialize
from penstock.model.moe import MoE

CPU = torch.device("cpu")
SMALL = ModelShape(
    layers=3,
    hidden=16,
    heads=4,
    kv_heads=2,
    ffn=24,
    vocab=50,
    experts=6,
    experts_active=2,
    expert_ffn=8,
    shared_experts=1,
    dense_layers=1,
)


def mixture(shape: ModelShape, seed: int = 0) -> MoE:
    """In float64, with a router that tells tokens apart and a balance that is not zero."""
    moe = MoE(shape).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in moe.parameters():
            param.normal_(0.0, 0.5, generator=draw)
        moe.balance.normal_(0.0, 0.1, generator=draw)
    return moe


def states(batch: int, sequence: int, hidden: int, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x_bsd = torch.randn(batch, sequence, hidden, dtype=torch.float64, generator=draw)
    return x_bsd.requires_grad_()


def token_by_token(moe: MoE, shape: ModelShape, x_d: Tensor) -> tuple[Tensor, list[int]]:
    """The definition, for one token; and the experts that it visits."""
    logit_e = moe.router.weight @ x_d
    score_e = logit_e.sigmoid() if shape.router == "sigmoid" else logit_e.softmax(0)
    better = sorted(
        range(shape.experts), key=lambda e: -float(score_e[e].detach() + moe.balance[e])
    )
    chosen = better[: shape.experts_active]
    total = sum(score_e[e] for e in chosen) if shape.router_normalised else 1.0
    y_d = torch.zeros_like(x_d)
    for e in chosen:
        gate, up, down = moe.experts.gate[e], moe.experts.up[e], moe.experts.down[e]
        out = down @ (F.silu(gate @ x_d) * (up @ x_d))
        y_d = y_d + shape.routed_scale * score_e[e] / total * out
    if moe.shared is not None:
        gate, up, down = (getattr(moe.shared, n).weight for n in ("gate", "up", "down"))
        y_d = y_d + down @ (F.silu(gate @ x_d) * (up @ x_d))
    return y_d, chosen


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    experts = draw(st.integers(1, 9))
    return replace(
        SMALL,
        hidden=draw(st.integers(1, 12)),
        experts=experts,
        experts_active=draw(st.integers(1, experts)),
        expert_ffn=draw(st.integers(1, 9)),
        shared_experts=draw(st.integers(0, 2)),
        router=draw(st.sampled_from(["softmax", "sigmoid"])),
        router_normalised=draw(st.booleans()),
        routed_scale=draw(st.sampled_from([1.0, 2.5])),
    )


@given(shapes(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_it_is_the_loop_over_tokens_forward_and_backward(
    shape: ModelShape, batch: int, sequence: int, seed: int
) -> None:
    moe, x_bsd = mixture(shape, seed), states(batch, sequence, shape.hidden)
    weigh_bsd = torch.randn_like(x_bsd.detach())
    wanted = [x_bsd, *moe.parameters()]
    y_bsd = moe(x_bsd)
    grads = torch.autograd.grad((y_bsd * weigh_bsd).sum(), wanted)
    rows = [token_by_token(moe, shape, x_d) for x_d in x_bsd.flatten(0, 1)]
    expected = torch.stack([y_d for y_d, _ in rows]).view_as(x_bsd)
    expected_grads = torch.autograd.grad(
        (expected * weigh_bsd).sum(), wanted, allow_unused=True, materialize_grads=True
    )
    torch.testing.assert_close(y_bsd, expected, rtol=1e-10, atol=1e-12)
    for found, right in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)
    counts = torch.zeros(shape.experts, dtype=torch.int64)
    for _, chosen in rows:
        counts[chosen] += 1
    assert moe.load.tolist() == counts.tolist()
    assert int(counts.sum()) == batch * sequence * shape.experts_active  # dropless


def test_all_tokens_may_choose_one_expert_and_the_others_get_zero_gradients() -> None:
    moe = mixture(replace(SMALL, experts_active=1))
    moe.balance.copy_(torch.tensor([0.0, 0, 0, 100, 0, 0]))
    moe(states(4, 8, SMALL.hidden)).sum().backward()
    assert moe.load.tolist() == [0, 0, 0, 32, 0, 0]
    for stack in (moe.experts.gate, moe.experts.up, moe.experts.down):
        assert stack.grad is not None
        assert [bool(g.any()) for g in stack.grad] == [False, False, False, True, False, False]


def test_the_balance_chooses_and_does_not_weigh() -> None:
    """Moved by the same for all experts it changes nothing; weights are those of the scores."""
    moe, x_bsd = mixture(SMALL), states(2, 5, SMALL.hidden)
    before = moe(x_bsd)
    moe.balance += 7.0
    torch.testing.assert_close(moe(x_bsd), before, rtol=1e-12, atol=1e-12)
    everybody = mixture(replace(SMALL, experts_active=SMALL.experts))
    before = everybody(x_bsd)
    everybody.balance.normal_()
    torch.testing.assert_close(everybody(x_bsd), before, rtol=1e-12, atol=1e-12)


def test_what_does_not_reach_the_loss_is_not_counted() -> None:
    moe, x_bsd = mixture(SMALL), states(3, 4, SMALL.hidden)
    (moe(x_bsd) * 0.0).sum().backward()  # a filler
    assert not moe.load.any()
    moe(x_bsd)[:, :2].sum().backward()  # the targets of half the tokens count
    assert int(moe.load.sum()) == 3 * 2 * SMALL.experts_active
    moe(x_bsd).sum().backward()  # more microbatches add up
    assert int(moe.load.sum()) == 3 * 6 * SMALL.experts_active


def test_evaluation_is_not_counted() -> None:
    moe = mixture(SMALL).eval()
    moe(states(2, 4, SMALL.hidden)).sum().backward()
    with torch.no_grad():
        moe.train()(states(2, 4, SMALL.hidden))
    assert not moe.load.any()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_is_computed_again_counts_once(reentrant: bool) -> None:
    moe = mixture(SMALL)
    checkpoint(moe, states(2, 4, SMALL.hidden), use_reentrant=reentrant).sum().backward()
    assert int(moe.load.sum()) == 8 * SMALL.experts_active


def test_the_balance_stays_in_float32_and_in_the_state_and_the_load_in_neither() -> None:
    moe = mixture(SMALL)
    before = moe.balance.clone()
    moe.to(torch.bfloat16)
    assert moe.experts.gate.dtype == torch.bfloat16
    assert moe.balance.dtype == torch.float32
    assert torch.equal(moe.balance, before)
    assert moe.load.dtype == torch.int64
    assert "balance" in moe.state_dict()
    assert "load" not in moe.state_dict()


def test_the_router_does_not_work_in_bf16() -> None:
    """Two experts whose scores differ by less than bf16 can tell."""
    moe = MoE(replace(SMALL, hidden=8, experts=2, experts_active=1, shared_experts=0)).bfloat16()
    x_bsd = torch.zeros(1, 1, 8, dtype=torch.bfloat16)
    x_bsd[..., 0], x_bsd[..., 1] = 256.0, 1.0
    with torch.no_grad():
        moe.router.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.25]]).repeat(1, 4))
    assert moe.route(x_bsd[0])[1].item() == 1


def test_gradients_of_experts_without_rows_are_zeroed() -> None:
    weight_eoi = torch.randn(3, 2, 2, requires_grad=True)
    ZeroEmptyExpertGradients.apply(weight_eoi, torch.tensor([2, 2, 5])).sum().backward()
    assert weight_eoi.grad is not None
    assert weight_eoi.grad[:, 0, 0].tolist() == [1.0, 0.0, 1.0]


def decoder(shape: ModelShape) -> Decoder:
    model = decoder_on_meta(shape).double()
    initialize(model, CPU, seed=0)
    return model


def test_the_decoder_has_experts_after_its_dense_layers() -> None:
    model = decoder(SMALL)
    kinds = [isinstance(layer.ffn, MoE) for layer in model.layers.values()]
    assert kinds == [False, True, True]
    names = {name for name, _ in model.named_parameters() if name.startswith("layers.1.ffn.")}
    parts = ["router.weight", "experts.gate", "experts.up", "experts.down"]
    parts += [f"shared.{part}.weight" for part in ("gate", "up", "down")]
    assert names == {f"layers.1.ffn.{part}" for part in parts}
    for name, buffer in model.named_buffers():
        assert not buffer.any(), name
    tokens = torch.arange(12).view(2, 6)
    model(tokens).sum().backward()
    assert all(param.grad is not None for param in model.parameters())


@given(shapes(), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_any_shape_with_experts_has_the_parameters_it_counts(shape: ModelShape, dense: int) -> None:
    shape = replace(shape, hidden=2 * shape.hidden, heads=1, kv_heads=1, dense_layers=dense)
    model = decoder_on_meta(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.params()


@pytest.mark.parametrize(
    "name", [p.name for p in models.all() if p.shape.moe and not p.shape.kv_rank]
)
def test_a_preset_with_experts_has_the_parameters_its_shape_counts(name: str) -> None:
    shape = models.preset(name)
    few = replace(shape, layers=min(shape.layers, shape.dense_layers + 1))
    assert sum(p.numel() for p in decoder_on_meta(few).parameters()) == few.params()


def test_what_writes_into_the_stream_starts_smaller() -> None:
    usual = init_std("layers.1.ffn.experts.gate", SMALL)
    less = usual / (2 * SMALL.layers) ** 0.5
    assert init_std("layers.1.ffn.router.weight", SMALL) == usual
    assert init_std("layers.1.ffn.experts.down", SMALL) == pytest.approx(less)
    assert init_std("layers.1.ffn.shared.down.weight", SMALL) == pytest.approx(less)


@pytest.mark.gpu
def test_the_grouped_matmul_of_the_device_is_the_loop_over_experts() -> None:
    """In bf16, with experts that have no rows; then without any rows at all."""
    draw = torch.Generator("cuda").manual_seed(0)

    def drawn(*size: int) -> Tensor:
        x = torch.randn(*size, device="cuda", generator=draw) / size[-1] ** 0.5
        return x.bfloat16().requires_grad_()

    counts = [0, 37, 1, 0, 200, 18, 0, 64]
    end_e = torch.tensor(counts, device="cuda").cumsum(0, dtype=torch.int32)
    x_ni, weight_eoi, weigh_no = drawn(sum(counts), 64), drawn(8, 128, 64), drawn(sum(counts), 128)
    found = grouped_matmul(x_ni, weight_eoi, end_e)
    found_grads = torch.autograd.grad((found * weigh_no).sum(), (x_ni, weight_eoi))
    exact = grouped_matmul(x_ni.float(), weight_eoi.float(), end_e)
    exact_grads = torch.autograd.grad((exact * weigh_no).sum(), (x_ni, weight_eoi))
    torch.testing.assert_close(found.float(), exact, rtol=1e-2, atol=1e-2)
    for given_, right in zip(found_grads, exact_grads, strict=True):
        torch.testing.assert_close(given_, right, rtol=2e-2, atol=2e-3)
    for expert, count in enumerate(counts):
        assert bool(found_grads[1][expert].any()) == (count > 0)
    none = grouped_matmul(x_ni[:0], weight_eoi, torch.zeros_like(end_e))
    (grad,) = torch.autograd.grad(none.sum(), (weight_eoi,))
    assert none.shape == (0, 128)
    assert not grad.any()


@pytest.mark.gpu
def test_a_mixture_on_the_device_is_that_of_the_host_and_does_not_wait() -> None:
    shape = replace(SMALL, hidden=64, expert_ffn=32, experts=8)
    host = mixture(shape)
    with torch.no_grad():
        for param in host.parameters():
            param.copy_(param / 4).copy_(param.bfloat16())
    x_bsd = (states(2, 64, 64).detach() / 2).bfloat16().double().requires_grad_()
    device = MoE(shape)
    device.load_state_dict(host.state_dict())
    device = device.to("cuda", torch.bfloat16)
    x_dev = x_bsd.detach().to("cuda", torch.bfloat16).requires_grad_()
    device(x_dev).sum().backward()  # kernels are loaded
    device.zero_grad()
    device.load.zero_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y_dev = device(x_dev)
        y_dev.sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    y_bsd = host(x_bsd)
    y_bsd.sum().backward()
    assert device.load.tolist() == host.load.tolist()
    torch.testing.assert_close(y_dev.double().cpu(), y_bsd, rtol=3e-2, atol=3e-2)
    for ours, right in zip(device.parameters(), host.parameters(), strict=True):
        assert ours.grad is not None
        assert right.grad is not None
        error = (ours.grad.double().cpu() - right.grad).norm() / right.grad.norm()
        assert error < 2e-2
