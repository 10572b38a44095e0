"""Resumes at random places, from any number of ranks to any other: every sample exactly once."""

import json
import random

import numpy as np
import pytest

from penstock.data.read.stream import Stream
from penstock.train.parallel.microbatch import RankShare

S = 4
KINDS = ["shuffle", "window", "mix"]


@pytest.fixture(params=KINDS)
def stream(request, dataset, monkeypatch) -> Stream:
    # Blocks of five samples, so that a small set has many windows.
    monkeypatch.setattr("penstock.data.read.samples.ORDER_BLOCK_BYTES", 5 * S * 2)
    one = dataset([np.arange(1203 * S)], name="one", shard_bytes=998)
    if request.param != "mix":
        return Stream(one, S, seed=3, holdout=0.05, order=request.param)
    two = dataset([30_000 + np.arange(777 * S)], name="two")
    return Stream([(one, 0.7), (two, 0.3)], S, seed=3, holdout=0.05, order="window")


def test_200_resumes(stream):
    draw = random.Random(0)
    for _ in range(200):
        batch, microbatch = draw.randint(1, 40), draw.randint(1, 8)
        start, first_steps, then_steps = draw.randrange(10**12), draw.randint(0, 2), 2
        expected = stream.read(start, start + (first_steps + then_steps) * batch)
        seen, consumed = [], start
        for world, steps in ((draw.randint(1, 24), first_steps), (draw.randint(1, 24), then_steps)):
            state = json.loads(json.dumps(stream.state(consumed)))
            stream.check(state)
            consumed = int(state["consumed"])
            for _ in range(steps):
                for rank in range(world):
                    share = RankShare.of(consumed, consumed + batch, rank, world, microbatch)
                    seen.append(stream.read(share.start, share.stop).tokens)
                consumed += batch
        assert np.array_equal(np.concatenate(seen), expected.tokens)


def test_an_epoch_of_any_part_has_every_sample_once(stream):
    """The same, counted: what was read in order is each part's samples, epoch after epoch."""
    count = 3 * stream.samples
    rows = np.concatenate([stream.read(at, at + 100).tokens[:, 0] for at in range(0, count, 100)])
    for i, part in enumerate(stream.parts):
        low = 30_000 if i else 0
        own = rows[(rows >= low) & (rows < low + 30_000)] - low
        for epoch in range(len(own) // part.samples):
            once = own[epoch * part.samples : (epoch + 1) * part.samples] // S
            assert np.array_equal(np.sort(once), np.arange(part.samples))
        assert len(own) >= part.samples
