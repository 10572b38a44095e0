"""A mixture read through the stream: weights, epochs of its parts, held-out samples, refusals."""

import json

import numpy as np
import pytest

from penstock.data.read.stream import Stream
from penstock.errors import PenstockError

S = 4


@pytest.fixture
def parts(dataset):
    """Samples that show their part and their number: part k holds tokens from 10,000 k on."""
    sizes = [41, 90, 23]
    return [
        dataset([10_000 * k + np.arange(n * S + 1)], name=f"part{k}", shard_bytes=98)
        for k, n in enumerate(sizes)
    ]


@pytest.fixture
def stream(parts) -> Stream:
    return Stream(list(zip(parts, [5, 3, 2], strict=True)), S, seed=5, holdout=0.2)


def seen(batch) -> list[tuple[int, int]]:
    """(part, sample) of each row."""
    assert np.array_equal(batch.tokens, batch.tokens[:, :1] + np.arange(S + 1))
    first = batch.tokens[:, 0]
    return list(zip((first // 10_000).tolist(), (first % 10_000 // S).tolist(), strict=True))


def test_each_part_goes_through_epochs_of_its_own(stream):
    assert [part.samples for part in stream.parts] == [33, 72, 19]
    rows = seen(stream.read(0, 1000))
    for k, part in enumerate(stream.parts):
        own = [sample for which, sample in rows if which == k]
        assert len(own) == [500, 300, 200][k]
        for epoch in range(len(own) // part.samples):
            once = own[epoch * part.samples : (epoch + 1) * part.samples]
            assert sorted(once) == list(range(part.samples))
        alone = Stream(part.dataset, S, seed=5, holdout=0.2)
        assert own[:20] == [sample for _, sample in seen(alone.read(0, 20))]


def test_a_position_means_the_same_alone_and_in_any_range(stream):
    whole = seen(stream.read(1000, 1100))
    assert [seen(stream.read(1000 + i, 1001 + i))[0] for i in range(100)] == whole
    assert seen(stream.read(1003, 1003)) == []


def test_the_held_out_samples_come_by_weight_and_spread(stream):
    held = [part.held_out for part in stream.parts]
    assert held == [8, 18, 4]
    assert stream.held_out == stream.cycle.reach(held)
    rows = seen(stream.read_held_out(0, 10, of=10))
    counts = np.bincount([part for part, _ in rows], minlength=3)
    assert counts.tolist() == [5, 3, 2]
    for k, part in enumerate(stream.parts):
        own = [sample - part.samples for which, sample in rows if which == k]
        expected = [number * part.held_out // counts[k] for number in range(counts[k])]
        assert own == expected
    assert seen(stream.read_held_out(3, 10, of=10)) == rows[3:]
    assert len(set(seen(stream.read_held_out(0, stream.held_out)))) == stream.held_out


def test_the_state_names_every_part_and_refuses_others(stream, parts):
    state = json.loads(json.dumps(stream.state(77)))
    stream.check(state)
    assert len(json.dumps(state)) < 1000
    for part in parts:
        assert part.id in state["dataset"]
    for pairs, what in [
        ([(parts[0], 5), (parts[1], 3), (parts[2], 3)], "mix: saved 'cycle-1 5:3:2'"),
        ([(parts[1], 5), (parts[0], 3), (parts[2], 2)], "dataset: saved"),
        ([(parts[0], 1)], "mix: saved 'cycle-1 5:3:2', here None"),
    ]:
        with pytest.raises(PenstockError, match=what):
            Stream(pairs, S, seed=5, holdout=0.2).check(state)
    with pytest.raises(PenstockError, match=r"held_out: saved '8 \+ 18 \+ 4'"):
        Stream(list(zip(parts, [5, 3, 2], strict=True)), S, seed=5, holdout=0.3).check(state)


def test_a_mixture_of_one_is_that_dataset(parts):
    one = Stream([(parts[0], 7.0)], S, seed=5, holdout=0.2)
    alone = Stream(parts[0], S, seed=5, holdout=0.2)
    assert one.state(3) == alone.state(3)
    assert seen(one.read(5, 90)) == seen(alone.read(5, 90))


def test_parts_must_share_a_tokenizer_and_differ(parts, tmp_path):
    from made_sets import made_set

    other = made_set(tmp_path, np.arange(200), [0], name="other", tokenizer=b"{ }")
    with pytest.raises(PenstockError, match=f"{other.id} and {parts[0].id} have different tok"):
        Stream([(parts[0], 1), (other, 1)], S, seed=0, holdout=0)
    with pytest.raises(PenstockError, match="stands there twice"):
        Stream([(parts[0], 1), (parts[0], 1)], S, seed=0, holdout=0)


def test_each_part_gets_its_coming_reads(stream, monkeypatch):
    told = {}
    for k, part in enumerate(stream.parts):
        monkeypatch.setattr(
            part.dataset,
            "plan_ahead",
            lambda starts, length, k=k: told.update({k: (starts, length)}),
        )
    taken = []
    ranges = ((at, at + 7) for at in range(0, 70, 7) if taken.append(at) is None)
    stream.plan_ahead(ranges)
    assert taken == []  # nothing is computed before it is asked for
    for k, (starts, length) in told.items():
        assert length == S + 1
        first = [start // S for batch in starts for start in batch.tolist()]
        assert first == [sample for part, sample in seen(stream.read(0, 70)) if part == k]
