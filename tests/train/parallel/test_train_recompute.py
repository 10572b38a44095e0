"""Activations computed again: the same loss and gradients, bit for bit."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.catalog.shapes import ModelShape
from penstock.model.adapter.lora import add_adapters
from penstock.model.decoder import Decoder
from penstock.model.initialize import decoder_on_meta, initialize
from penstock.run.schema.adapter import AdapterSection
from penstock.train.parallel.recompute import apply_recompute

DENSE = ModelShape(layers=3, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50)
MIXED = ModelShape(
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    ffn=48,
    vocab=50,
    experts=4,
    experts_active=2,
    expert_ffn=16,
    shared_experts=1,
)


class Matmuls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def made(shape: ModelShape, how: str) -> Decoder:
    decoder = decoder_on_meta(shape).double()
    initialize(decoder, torch.device("cpu"), 0)
    if how != "none":
        apply_recompute(decoder, how)
    return decoder


def trained(decoder: Decoder, documents: bool) -> tuple[float, dict[str, torch.Tensor], int]:
    """Loss, gradients, matmuls of both passes."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(decoder.shape.vocab, (2, 41), generator=draw)
    starts = torch.rand(2, 40, generator=draw) < 0.1 if documents else None
    with Matmuls() as matmuls:
        loss = decoder(tokens[:, :-1], starts, tokens[:, 1:])
        loss.backward()
    grads = {n: p.grad for n, p in decoder.named_parameters() if p.grad is not None}
    return loss.item(), grads, matmuls.count


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", [DENSE, MIXED])
@pytest.mark.parametrize("how", ["selective", "full"])
def test_gradients_are_the_same(shape: ModelShape, how: str, documents: bool) -> None:
    loss, grads, _ = trained(made(shape, "none"), documents)
    again, grads_again, _ = trained(made(shape, how), documents)
    assert again == loss
    assert grads.keys() == grads_again.keys()
    for name, grad in grads.items():
        assert grads_again[name].equal(grad), name


def test_dropout_throws_the_same_dice_again() -> None:
    def adapted(how: str) -> Decoder:
        decoder = decoder_on_meta(DENSE).double()
        add_adapters(decoder, AdapterSection(kind="lora", rank=2, dropout=0.5))
        initialize(decoder, torch.device("cpu"), 0)
        if how != "none":
            apply_recompute(decoder, how)
        return decoder

    answers = []
    for how in ("none", "full", "selective"):
        torch.manual_seed(3)
        answers.append(trained(adapted(how), False))
    for loss, grads, _ in answers[1:]:
        assert loss == answers[0][0]
        assert grads
        for name, grad in grads.items():
            assert grad.equal(answers[0][1][name]), name


def test_full_does_all_matmuls_again_and_selective_half() -> None:
    counts = {how: trained(made(DENSE, how), False)[2] for how in ("none", "selective", "full")}
    forward = 3 * 7
    # The last matmul of a layer is not done again: nothing waits for what it gives.
    assert counts["full"] - counts["none"] in (forward, forward - 3)
    assert 0 < counts["selective"] - counts["none"] < 0.6 * forward


def test_evaluation_does_nothing_twice() -> None:
    with torch.no_grad(), Matmuls() as matmuls:
        made(DENSE, "full")(torch.zeros(1, 8, dtype=torch.long))
    assert matmuls.count == 3 * 7 + 1
