"""Five optimizer steps of every family, beside transformers doing the same; and exact counts."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from open_families import ALL, VOCAB, in_double, made, saved
from penstock.catalog.shapes import ModelShape
from penstock.model.decoder import Decoder
from penstock.model.open.names import is_buffer, tensor_locations
from penstock.model.open.weights import OpenWeights, copy_open_tensors
from penstock.plan.job.layout import Layout
from penstock.plan.job.partition import rank_params

STEPS, CPU = 5, torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore")


def their_tensor(name: str, theirs: dict[str, Tensor], shape: ModelShape, family: str) -> Tensor:
    """One of ours as they hold it in memory: experts in one tensor, Mixtral's block as `mlp`."""
    place = tensor_locations(name, shape, family)[-1]
    found = theirs[place.names[0].replace("block_sparse_moe", "mlp")]
    found = found[place.index((slice(None),))]
    return found.mT if place.transposed else found


@pytest.mark.parametrize("name", ALL)
def test_five_steps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    weights = OpenWeights(tmp_path)
    ours = Decoder(weights.shape)
    kept = {n: b for n, b in ours.named_buffers() if is_buffer(n)}
    copy_open_tensors({**dict(ours.named_parameters()), **kept}, weights, CPU)
    ours, theirs = ours.double(), in_double(made(name)).train()
    draw = torch.Generator().manual_seed(2)
    rules = [torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-4) for m in (ours, theirs)]
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCAB, (2, 41), generator=draw)
        x, targets = tokens[:, :-1], tokens[:, 1:]
        loss = ours(x, targets_bs=targets) / targets.numel()
        expected = nn.functional.cross_entropy(theirs(x).logits.flatten(0, 1), targets.flatten())
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0.0)
        for rule, one in zip(rules, (loss, expected), strict=True):
            rule.zero_grad()
            one.backward()
            rule.step()
    held = dict(theirs.named_parameters())
    first = dict(made(name).named_parameters())
    for our_name, param in ours.named_parameters():
        after = their_tensor(our_name, held, weights.shape, ALL[name][0])
        before = their_tensor(our_name, first, weights.shape, ALL[name][0])
        torch.testing.assert_close(param, after, rtol=0.0, atol=1e-8, msg=our_name)
        assert (param - before).abs().max() > 1e-4, our_name


@pytest.mark.parametrize("name", ALL)
def test_the_planner_counts_what_is_built(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    shape = OpenWeights(tmp_path).shape
    with torch.device("meta"):
        built = sum(p.numel() for p in Decoder(shape).parameters())
    theirs = sum(p.numel() for p in made(name).parameters())
    held = rank_params(shape, Layout(), 0)
    assert shape.params() == held.common + held.routed == built == theirs
