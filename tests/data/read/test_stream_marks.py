"""Masks, document marks and packed datasets as the stream gives them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_sets import made_set
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError

S = 5


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), shard_tokens=st.integers(6, 90))
def test_masks_and_marks_stand_beside_their_tokens(tmp_path_factory, seed, shard_tokens):
    """Also where a sample lies across shards."""
    draw = np.random.default_rng(seed)
    tokens, mask = np.arange(83), draw.random(83) < 0.5
    begins = draw.random(83) < 0.2
    home = tmp_path_factory.mktemp("marks")
    made = made_set(home, tokens, np.flatnonzero(begins).tolist(), mask, shard_tokens=shard_tokens)
    batch = Stream(made, S, seed=1, holdout=0.1, marks=True).read(0, 30)
    assert np.array_equal(batch.loss, mask[batch.tokens])
    assert np.array_equal(batch.starts, begins[batch.tokens])
    assert batch.counted == int(mask[batch.tokens[:, 1:]].sum())
    assert Stream(made, S, seed=1, holdout=0.1).read(0, 30).starts is None


def test_a_mixture_of_masked_and_plain_parts(tmp_path):
    masked = made_set(tmp_path, np.arange(60), [0, 9], np.arange(60) % 2 > 0, name="masked")
    plain = made_set(tmp_path, 100 + np.arange(60), [3], name="plain")
    batch = Stream([(masked, 1), (plain, 1)], S, 0, 0.0, marks=True).read(0, 20)
    own = batch.tokens < 100
    assert own.any(1).sum() == 10
    assert np.array_equal(batch.loss[own], batch.tokens[own] % 2 > 0)
    assert batch.loss[~own].all()
    assert set(batch.tokens[batch.starts].tolist()) <= {0, 9, 103}


def test_a_packed_dataset_has_one_sequence(tmp_path):
    packed = made_set(tmp_path, np.arange(81), [0], packed=8)
    assert Stream(packed, 8, seed=0, holdout=0.0).samples == 10
    with pytest.raises(PenstockError, match=f"{packed.id} are packed for sequences of 8 tokens"):
        Stream(packed, 16, seed=0, holdout=0.0)
