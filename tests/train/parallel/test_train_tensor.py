"""Words shared by ranks: the cross-entropy of all of them, in any number of chunks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def loss_of_shared_words(vocab: int, counted: bool) -> dict[str, Any]:
    """On one rank: the loss, and this rank's part of the gradients."""
    import os

    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    from penstock.model import loss
    from penstock.plan.job.layout import Layout
    from penstock.train.parallel import tensor
    from penstock.train.world.world import join

    os.environ["PENSTOCK_ATTEMPT"] = f"words {vocab} {counted}"
    tensor.ROWS = 50
    loss.CHUNK_ELEMENTS = 128 * 13
    ranks = int(os.environ["WORLD_SIZE"])
    world = join(Layout(tensor=ranks), "cpu", 60.0)
    draw = torch.Generator().manual_seed(0)
    x_bsd = torch.randn(4, 90, 8, generator=draw, dtype=torch.float64)
    head_vd = torch.randn(vocab, 8, generator=draw, dtype=torch.float64)
    targets_bs = torch.randint(vocab, (4, 90), generator=draw)
    counted_bs = torch.rand(4, 90, generator=draw) < 0.5 if counted else None
    mesh = world.mesh["tensor"]
    own_bsd = x_bsd.chunk(ranks, 1)[world.index("tensor")].clone().requires_grad_()
    part = distribute_tensor(head_vd, mesh, [Shard(0)], src_data_rank=None).to_local()
    part_vd = part.clone().requires_grad_()
    found = tensor.vocab_parallel_loss(mesh, vocab, own_bsd, part_vd, targets_bs, counted_bs)
    (found / 3).backward()
    assert own_bsd.grad is not None
    assert part_vd.grad is not None
    logits = tensor.gather_logits(mesh, vocab, own_bsd.detach(), part_vd.detach())
    world.gather(None)
    return {
        "loss": found.item(),
        "x": own_bsd.grad.numpy(),
        "head": part_vd.grad.numpy(),
        "logits": logits.numpy(),
    }


@pytest.mark.parametrize(("vocab", "counted"), [(26, False), (25, True)])
def test_shared_words_have_the_loss_and_gradients_of_whole_ones(
    vocab: int, counted: bool, ranks: Callable[..., list[Any]]
) -> None:
    (alone,) = ranks(1, loss_of_shared_words, vocab, counted)
    found = ranks(2, loss_of_shared_words, vocab, counted)
    for answer in found:
        assert answer["loss"] == pytest.approx(alone["loss"], rel=1e-12)
        np.testing.assert_allclose(answer["logits"], alone["logits"], 1e-12, 1e-12)
    x = np.concatenate([answer["x"] for answer in found], 1)
    np.testing.assert_allclose(x, alone["x"], 1e-10, 1e-12)
    head = np.concatenate([answer["head"] for answer in found])
    np.testing.assert_allclose(head, alone["head"], 1e-10, 1e-12)


def test_one_rank_has_what_torch_has(ranks: Callable[..., list[Any]]) -> None:
    import torch

    (alone,) = ranks(1, loss_of_shared_words, 26, False)
    draw = torch.Generator().manual_seed(0)
    x_bsd = torch.randn(4, 90, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    head_vd = torch.randn(26, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    targets_bs = torch.randint(26, (4, 90), generator=draw)
    logits = (x_bsd @ head_vd.T).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets_bs.flatten(), reduction="sum")
    (expected / 3).backward()
    assert alone["loss"] == pytest.approx(expected.item(), rel=1e-12)
    assert x_bsd.grad is not None
    assert head_vd.grad is not None
    np.testing.assert_allclose(alone["x"], x_bsd.grad.numpy(), 1e-10, 1e-12)
    np.testing.assert_allclose(alone["head"], head_vd.grad.numpy(), 1e-10, 1e-12)
