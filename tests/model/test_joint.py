"""Projections computed together: the same numbers, and parameters that stay what they were."""

import pytest
import torch
from torch import Tensor

from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.fp8 import E4M3, transpose_padded
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.train.parallel.compile import compile_layers, join_projections

CPU = torch.device("cpu")
SHAPE = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=100)


def made(shape: ModelShape, *, joint: bool, dtype: torch.dtype = torch.float64) -> Decoder:
    decoder = decoder_on_meta(shape)
    initialize(decoder, CPU, 0)
    decoder.to(dtype)
    if joint:
        join_projections(decoder)
    return decoder


def trained(decoder: Decoder, starts: Tensor | None = None) -> tuple[float, dict[str, Tensor]]:
    tokens = torch.randint(100, (3, 33), generator=torch.Generator().manual_seed(1))
    decoder.zero_grad()
    loss = decoder(tokens[:, :-1], starts, tokens[:, 1:])
    loss.backward()
    return loss.item(), {
        n: p.grad.clone() for n, p in decoder.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_loss_and_gradients_are_those_of_matmuls_apart(
    dtype: torch.dtype, bound: float, documents: bool, kv_heads: int
) -> None:
    shape = ModelShape(layers=2, hidden=64, heads=4, kv_heads=kv_heads, ffn=96, vocab=100)
    starts = torch.rand(3, 32, generator=torch.Generator().manual_seed(2)) < 0.1
    apart, joint = (made(shape, joint=how, dtype=dtype) for how in (False, True))
    for layer in joint.layers.values():
        assert layer.attention.joint is not None
        assert layer.ffn.joint is not None
    given = starts if documents else None
    (loss, grads), (found_loss, found) = trained(apart, given), trained(joint, given)
    assert found_loss == pytest.approx(loss, rel=bound)
    assert found.keys() == grads.keys()
    for name, grad in grads.items():
        assert (found[name] - grad).norm() <= bound * grad.norm(), name


def test_what_is_compiled_is_the_same_and_one_graph() -> None:
    from torch._dynamo.utils import counters

    apart, joint = made(SHAPE, joint=False), made(SHAPE, joint=False)
    with pytest.MonkeyPatch.context() as patch:
        real = torch.compile
        patch.setattr(torch, "compile", lambda f: real(f, backend="aot_eager", fullgraph=True))
        torch._dynamo.reset()
        counters.clear()
        compile_layers(joint)
        join_projections(joint)
        loss, grads = trained(apart)
        found_loss, found = trained(joint)
    assert counters["stats"]["unique_graphs"] == 1
    assert found_loss == pytest.approx(loss, rel=1e-13)
    for name, grad in grads.items():
        assert (found[name] - grad).norm() <= 1e-13 * grad.norm(), name


def test_an_update_of_the_parameters_is_seen_by_the_joint_weights() -> None:
    apart, joint = (made(SHAPE, joint=how) for how in (False, True))
    for decoder in (apart, joint):
        with torch.no_grad():
            for param in decoder.parameters():
                param.add_(0.01)
    assert trained(joint)[0] == pytest.approx(trained(apart)[0], rel=1e-13)


@pytest.mark.parametrize("part", ["attention.k", "ffn.gate"])
def test_a_parameter_with_other_memory_is_noticed(part: str) -> None:
    """The joint tensor would keep its first values."""
    decoder = made(SHAPE, joint=True)
    trained(decoder)
    weight = decoder.layers["1"].get_submodule(part).weight
    assert isinstance(weight, torch.nn.Parameter)
    weight.data = weight.data.clone()
    with pytest.raises(AssertionError, match="other memory"):
        trained(decoder)


@pytest.mark.parametrize(
    "other",
    [{"qk_norm": True}, {"attention_bias": True}, {"rotary_width": 8}, {"activation": "gelu_tanh"}],
    ids=lambda one: next(iter(one)),
)
def test_other_shapes_are_left_as_they_are(other: dict[str, object]) -> None:
    shape = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=100, **other)  # type: ignore[arg-type]
    (loss, grads), (found_loss, found) = (trained(made(shape, joint=how)) for how in (False, True))
    assert found_loss == pytest.approx(loss, rel=1e-13)
    for name, grad in grads.items():
        assert (found[name] - grad).norm() <= 1e-13 * grad.norm(), name


@pytest.mark.parametrize("rows", [1, 16, 17, 100])
def test_the_transpose_is_padded_with_zeros(rows: int) -> None:
    x8_ni = torch.randn(rows, 48).to(E4M3)
    found_in = transpose_padded(x8_ni).float()
    assert found_in.shape[1] % 16 == 0
    assert torch.equal(found_in[:, :rows], x8_ni.float().T)
    assert not found_in[:, rows:].any()
