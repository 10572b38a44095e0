"""Between replicas: sums out of place, one vote, and compression that loses nothing for good."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import real_ranks
from penstock.train.parallel.parts import Grads
from penstock.train.replicas import reduce as module
from penstock.train.replicas.reduce import REQUESTS, Vote, buckets

RANKS = 4
SHAPES = [(5, 3), (7,), (1,), (4, 2, 2)]
STEPS = 64


def gradients(rank: int) -> Grads:
    """A rank's own, from tiny to large: what a common exponent would lose."""
    draw = torch.Generator().manual_seed(rank)
    made = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in SHAPES]
    return {str(i): (g * 10.0 ** (-rank)).float() for i, g in enumerate(made)}


def flat(tensors: Grads) -> Tensor:
    return torch.cat([t.detach().flatten().double() for t in tensors.values()])


def packed(value: Any) -> Any:
    """Tensors as arrays: a tensor in a queue dies with the process that made it."""
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value


def unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unpacked(item) for key, item in value.items()}
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def four_replicas() -> dict[str, Any]:
    """On one of four ranks: everything these tests look at, in one launch."""

    from penstock.plan.job.layout import Layout
    from penstock.train.replicas.reduce import ReplicaReducer, squared_norm
    from penstock.train.world.world import join

    world = join(Layout(RANKS, 1, 1), "cpu", 60.0)
    answer: dict[str, Any] = {}
    own = gradients(world.rank)
    equal = dict.fromkeys(own, 1 / RANKS)  # replicas hold equal sums: each brings its share

    plain = ReplicaReducer(world)
    summed = plain.reduce(own)
    answer["sum"] = flat(summed)
    answer["after reduce"] = flat(own)
    answer["shapes"] = [tuple(t.shape) for t in summed.values()]
    asked = [{"save": True}, {}, {"stop": True, "evaluate": False}, {}][world.rank]
    squares = squared_norm(summed, equal)
    answer["vote"] = plain.vote(torch.tensor(float(world.rank)), squares, asked)
    answer["nobody asked"] = plain.vote(torch.tensor(0.0), squares, {}).requests
    plain.commit()
    answer["plain local state"] = plain.local_state()

    bad = {}
    for name, rank, value in [("nan", 2, float("nan")), ("inf", 3, float("inf"))]:
        grads = gradients(world.rank)
        if world.rank == rank:
            grads["0"][1, 1] = value
        bad[f"{name} gradient"] = plain.vote(
            torch.tensor(1.0), squared_norm(plain.reduce(grads), equal), {"save": True}
        )
        loss = torch.tensor(value if world.rank == rank else 1.0)
        bad[f"{name} loss"] = plain.vote(loss, squares, {"save": True})
    answer["bad"] = bad

    module.BUCKET_BYTES = 64  # every tensor here becomes a bucket or two
    answer["sum in small buckets"] = flat(plain.reduce(own))
    answer["after reduce in small buckets"] = flat(own)
    answer["bf16 in small buckets"] = _mean_of_bf16(ReplicaReducer(world, "bf16"), own)
    module.BUCKET_BYTES = 64 << 20

    answer["int8"] = _mean_of_bf16(ReplicaReducer(world, "int8"), own)
    eight = ReplicaReducer(world, "int8")
    answer["int8 once"] = flat(eight.reduce(own))
    eight.commit()
    saved_eight = {name: value.clone() for name, value in eight.local_state().items()}
    answer["int8 next"] = flat(eight.reduce(own))
    resumed_eight = ReplicaReducer(world, "int8")
    resumed_eight.load_local_state(saved_eight)
    answer["int8 resumed"] = flat(resumed_eight.reduce(own))
    for name, value in (("nan", float("nan")), ("inf", float("inf"))):
        grads = gradients(world.rank)
        if world.rank == 2:
            grads["1"][3] = value
        spoiled = ReplicaReducer(world, "int8").reduce(grads)
        bad[f"{name} gradient by int8"] = plain.vote(
            torch.tensor(1.0), squared_norm(spoiled, equal), {"save": True}
        )

    answer["bf16"] = _mean_of_bf16(ReplicaReducer(world, "bf16"), own)
    once = ReplicaReducer(world, "bf16")
    answer["bf16 once"] = flat(once.reduce(own))
    answer["bf16 after reduce"] = flat(own)
    answer["bf16 refused, again"] = flat(once.reduce(own))
    once.commit()
    saved = {name: value.clone() for name, value in once.local_state().items()}
    answer["bf16 next"] = flat(once.reduce(own))
    resumed, fresh = ReplicaReducer(world, "bf16"), ReplicaReducer(world, "bf16")
    resumed.load_local_state(saved)
    answer["bf16 resumed"] = flat(resumed.reduce(own))
    answer["bf16 fresh"] = flat(fresh.reduce(own))
    answer["saved"] = saved
    real_ranks.leave()
    return packed(answer)


def _mean_of_bf16(replicas: Any, own: Grads) -> Tensor:
    """What the updates saw on the average of many steps with the same gradients."""
    total = torch.zeros(sum(g.numel() for g in own.values()), dtype=torch.float64)
    for _ in range(STEPS):
        total += flat(replicas.reduce(own))
        replicas.commit()
    return total / STEPS


def two_by_two() -> dict[int, Any]:
    """On a 2 × 2 mesh each rank holds a shard, and replicas of the same shard are summed."""
    import os

    from penstock.plan.job.layout import Layout
    from penstock.train.replicas.reduce import ReplicaReducer, squared_norm
    from penstock.train.world.world import join

    answers = {}
    for replicate, shard in [(2, 2), (1, 4)]:
        os.environ["PENSTOCK_ATTEMPT"] = f"mesh {replicate}"
        world = join(Layout(replicate, shard, 1), "cpu", 60.0)
        own = gradients(world.rank)
        replicas = ReplicaReducer(world, "bf16" if replicate == 1 else "none")
        summed = replicas.reduce(own)
        squares = squared_norm(summed, dict.fromkeys(own, 1 / replicate))
        vote = replicas.vote(torch.tensor(0.25), squares, {})
        answers[replicate] = {"shard": world.index("shard"), "sum": flat(summed), "vote": vote}
        real_ranks.leave()
    return packed(answers)


@pytest.fixture(scope="module")
def four(ranks: Callable[..., list[Any]]) -> list[dict[str, Any]]:
    return [unpacked(answer) for answer in ranks(RANKS, four_replicas)]


@pytest.fixture(scope="module")
def meshes(ranks: Callable[..., list[Any]]) -> list[dict[int, Any]]:
    return [unpacked(answer) for answer in ranks(RANKS, two_by_two)]


TOTAL = torch.stack([flat(gradients(rank)) for rank in range(RANKS)]).sum(0)


def test_the_sum_is_the_sum_and_the_same_on_every_replica(four: list[dict[str, Any]]) -> None:
    for answer in four:
        torch.testing.assert_close(answer["sum"], TOTAL, rtol=1e-6, atol=1e-6)
        assert torch.equal(answer["sum"], four[0]["sum"])
        assert answer["shapes"] == SHAPES


@pytest.mark.parametrize(
    "when", ["after reduce", "after reduce in small buckets", "bf16 after reduce"]
)
def test_a_replicas_gradients_are_its_own_until_it_commits(
    four: list[dict[str, Any]], when: str
) -> None:
    for rank, answer in enumerate(four):
        assert torch.equal(answer[when], flat(gradients(rank)))


def test_the_vote_carries_the_loss_the_norm_and_any_ranks_wishes(
    four: list[dict[str, Any]],
) -> None:
    vote = four[0]["vote"]
    assert vote.loss == 0 + 1 + 2 + 3
    assert vote.grad_norm == pytest.approx(float(TOTAL.norm()), rel=1e-6)
    assert vote.requests == dict.fromkeys(REQUESTS, False) | {"save": True, "stop": True}
    assert vote.good
    assert all(answer["vote"] == vote for answer in four)
    assert not any(four[0]["nobody asked"].values())


@pytest.mark.parametrize(
    "what",
    [
        *("nan gradient", "nan loss", "inf gradient", "inf loss"),
        *("nan gradient by int8", "inf gradient by int8"),
    ],
)
def test_a_bad_number_on_one_rank_is_refused_by_all(four: list[dict[str, Any]], what: str) -> None:
    for answer in four:
        assert not answer["bad"][what].good
        assert answer["bad"][what].requests["save"]  # still heard


@pytest.mark.parametrize(
    ("loss", "norm", "good"),
    [(1.0, 1e200, True), (float("nan"), 1.0, False), (1.0, float("inf"), False)],
)
def test_good_is_finite(loss: float, norm: float, good: bool) -> None:
    assert Vote(loss, norm, {}).good == good


@pytest.mark.parametrize("how", ["bf16", "bf16 in small buckets"])
def test_what_bf16_leaves_out_comes_later(four: list[dict[str, Any]], how: str) -> None:
    """The mean over many steps is the true sum; rounding alone would stay where it is."""
    rounded = torch.stack([flat(gradients(r)).bfloat16().double() for r in range(RANKS)]).sum(0)
    off = (rounded.bfloat16().double() - TOTAL).abs().mean()
    for answer in four:
        assert torch.equal(answer[how], four[0][how])
        error = (answer[how] - TOTAL).abs().mean()
        assert error < off / 20
        assert error < 4 * off / STEPS


def test_what_int8_leaves_out_comes_later(four: list[dict[str, Any]]) -> None:
    """One gradient in a block of 128 is far larger than the others, which int8 leaves out once."""
    off = (four[0]["int8 once"] - TOTAL).abs().mean()
    assert 0 < off < 0.02 * TOTAL.abs().max()
    for answer in four:
        assert torch.equal(answer["int8"], four[0]["int8"])
        assert (answer["int8"] - TOTAL).abs().mean() < off / 10
        assert torch.equal(answer["int8 resumed"], answer["int8 next"])
        assert not torch.equal(answer["int8 next"], answer["int8 once"])


def test_bf16_is_bf16(four: list[dict[str, Any]]) -> None:
    once = four[0]["bf16 once"]
    assert torch.equal(once, once.bfloat16().double())
    torch.testing.assert_close(once, TOTAL, rtol=2**-7, atol=0.02)
    assert not torch.equal(once, TOTAL)


def test_a_refused_step_owes_nothing(four: list[dict[str, Any]]) -> None:
    for answer in four:
        assert torch.equal(answer["bf16 refused, again"], answer["bf16 once"])


def test_what_is_owed_survives_in_the_local_state(four: list[dict[str, Any]]) -> None:
    for answer in four:
        assert answer["plain local state"] == {}
        assert answer["saved"]
        assert any(value.any() for value in answer["saved"].values())
        assert torch.equal(answer["bf16 resumed"], answer["bf16 next"])
        assert torch.equal(answer["bf16 fresh"], answer["bf16 once"])
    assert not torch.equal(four[0]["bf16 next"], four[0]["bf16 once"])
    first, second = (flat(answer["saved"]) for answer in four[:2])
    assert not torch.equal(first, second)  # every replica has its own


def test_small_buckets_give_the_same_sum(four: list[dict[str, Any]]) -> None:
    torch.testing.assert_close(four[0]["sum in small buckets"], four[0]["sum"])


def test_shards_are_summed_with_their_own_replicas_only(meshes: list[dict[int, Any]]) -> None:
    own = [flat(gradients(rank)) for rank in range(RANKS)]
    shards = [own[0] + own[2], own[1] + own[3]]
    whole_norm = float(torch.cat(shards).norm())
    for answers in meshes:
        answer = answers[2]
        torch.testing.assert_close(answer["sum"], shards[answer["shard"]], rtol=1e-6, atol=1e-6)
        assert answer["vote"].grad_norm == pytest.approx(whole_norm, rel=1e-6)
        assert answer["vote"].loss == 1.0


def test_a_replica_alone_exchanges_and_compresses_nothing(meshes: list[dict[int, Any]]) -> None:
    norm = float(torch.cat([flat(gradients(rank)) for rank in range(RANKS)]).norm())
    for rank, answers in enumerate(meshes):
        answer = answers[1]
        assert torch.equal(answer["sum"], flat(gradients(rank)))
        assert answer["vote"].grad_norm == pytest.approx(norm, rel=1e-6)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 100))
def test_buckets_keep_order_and_size(sizes: list[int], limit: int) -> None:
    grads = {str(i): torch.empty(size) for i, size in enumerate(sizes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUCKET_BYTES", limit)
        made = buckets(grads)
    assert [name for bucket in made for name in bucket] == list(grads)
    size = {name: grad.numel() * 4 for name, grad in grads.items()}
    for bucket in made:
        assert len(bucket) == 1 or sum(size[name] for name in bucket) <= limit
    for one, other in pairwise(made):  # no bucket is cut short
        assert sum(size[name] for name in one) + size[other[0]] > limit


def test_gradients_of_two_types_never_share_a_bucket() -> None:
    narrow, wide = torch.empty(2, dtype=torch.bfloat16), torch.empty(2)
    assert buckets({"a": narrow, "b": wide, "c": wide, "d": narrow}) == [["a"], ["b", "c"], ["d"]]
