"""The loader in torch's clothes: the same batches for any number of workers, ranks and resumes."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from made_sets import made_set
from penstock.data.read.stream import Stream
from penstock.data.read.torch_dataset import TokenBatches
from penstock.errors import PenstockError

S = 4


@pytest.fixture
def stream(tmp_path) -> Stream:
    return Stream(made_set(tmp_path, np.arange(50 * S + 1), [0, 9]), S, seed=2, holdout=0.0)


def take(loader, count):
    return list(itertools.islice(loader, count))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_are_the_streams_for_any_number_of_workers(stream, workers):
    loader = DataLoader(TokenBatches(stream, 6), batch_size=None, num_workers=workers)
    for step, batch in enumerate(take(loader, 12)):  # more than one epoch
        expected = torch.from_numpy(stream.read(step * 6, step * 6 + 6).tokens)
        assert torch.equal(batch["inputs"], expected[:, :-1])
        assert torch.equal(batch["targets"], expected[:, 1:])
        assert batch["position"] == step * 6 + 6
        assert set(batch) == {"inputs", "targets", "position"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_position_goes_on_with_other_ranks(stream, workers):
    whole = stream.read(0, 60).tokens[:, :-1]
    first = [TokenBatches(stream, 6, rank, 2) for rank in range(2)]
    loaders = [DataLoader(one, batch_size=None, num_workers=workers) for one in first]
    seen = [take(loader, 5) for loader in loaders]
    rows = [batch["inputs"] for pair in zip(*seen, strict=True) for batch in pair]
    state = json.loads(json.dumps(first[0].state_dict(seen[0][-1]["position"])))
    if not workers:
        assert first[0].state_dict() == state
    for rank_batches in zip(*(resumed(stream, state, rank, 3) for rank in range(3)), strict=True):
        rows += [batch["inputs"] for batch in rank_batches]
    assert np.array_equal(torch.cat(rows).numpy(), whole)


def resumed(stream, state, rank, ranks):
    batches = TokenBatches(stream, 6, rank, ranks)
    batches.load_state_dict(state)
    return take(batches, 5)


def test_batches_have_masks_and_marks_if_the_dataset_has_them(tmp_path):
    made = made_set(tmp_path, np.arange(41), [0, 9], np.arange(41) % 2 > 0)
    batches = TokenBatches(Stream(made, S, 0, 0.0, marks=True), 10)
    (batch,) = take(batches, 1)
    assert torch.equal(batch["counted"], batch["targets"] % 2 > 0)
    assert torch.equal(batch["starts"], (batch["inputs"] == 0) | (batch["inputs"] == 9))


def test_nonsense_is_refused(stream):
    with pytest.raises(ValueError, match="not one of"):
        TokenBatches(stream, 6, rank=2, ranks=2)
    with pytest.raises(ValueError, match="at least 1"):
        TokenBatches(stream, 0)
    with pytest.raises(PenstockError, match="seed: saved 3"):
        TokenBatches(stream, 6).load_state_dict({**stream.state(0), "seed": 3})
