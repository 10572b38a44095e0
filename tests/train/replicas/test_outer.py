"""The outer step: replicas in one process, against torch's own optimizer and plain means."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.errors import RunFailed
from penstock.policy.rounds import Rounds
from penstock.train.codecs.codec import build_codec, encoded_bytes
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.flat import FlatLayout
from penstock.train.replicas.outer import HEADER, OuterStep
from penstock.train.replicas.rounds import RoundExchange

SHAPES = {"embed": (9, 8), "layers.0.q": (130,), "layers.0.norm": (3,), "head": (40, 10)}


@dataclass
class Meeting:
    """What replicas of one process have sent, by exchange and replica."""

    replicas: int
    sent: dict[int, list[Tensor]] = field(default_factory=dict)


class Link:
    """A transport to the other replicas of a meeting, which must all send before one receives."""

    def __init__(self, meeting: Meeting, replica: int) -> None:
        self.meeting, self.replica, self.replicas = meeting, replica, meeting.replicas
        self.exchanges = 0

    def begin(self, content: Tensor) -> "Received":
        every = self.meeting.sent.setdefault(self.exchanges, [])
        every.append(content)
        self.exchanges += 1
        return Received(every)


@dataclass
class Received:
    every: list[Tensor]

    def wait(self) -> list[Tensor]:
        return self.every


def draw(seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def replicas(
    count: int, codec: str = "none", outer: Nesterov | None = None, parts: int = 1
) -> list[OuterStep]:
    """Replicas with equal weights."""
    meeting, nesterov = Meeting(count), outer or Nesterov()
    return [
        OuterStep(draw(0), build_codec(codec), nesterov, Link(meeting, k), parts)
        for k in range(count)
    ]


def move(one: OuterStep, seed: int, by: float = 0.01) -> None:
    for name, step in draw(seed).items():
        one.weights[name].add_(step, alpha=by)


def agree(every: list[OuterStep], tokens: list[int] | None = None, part: int = 0) -> None:
    for one, count in zip(every, tokens or [1] * len(every), strict=True):
        one.begin(part, count)
    for one in every:
        one.finish(part)


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_with_rate_1_and_no_momentum_the_weights_become_their_mean() -> None:
    every = replicas(2, outer=Nesterov(1.0, 0.0))
    for k, one in enumerate(every):
        move(one, 10 + k)
    mean = {n: (every[0].weights[n] + every[1].weights[n]) / 2 for n in SHAPES}
    agree(every)
    for one in every:
        for name in SHAPES:
            torch.testing.assert_close(one.weights[name], mean[name], rtol=1e-6, atol=1e-6)
    assert equal(every[0].weights, every[1].weights)


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.3), (0.7, 0.9), (0.5, 0.0)])
def test_it_is_torchs_nesterov_on_the_mean_difference(rate: float, momentum: float) -> None:
    every = replicas(3, outer=Nesterov(rate, momentum))
    anchor = {name: torch.nn.Parameter(weight.clone()) for name, weight in draw(0).items()}
    peer = torch.optim.SGD(anchor.values(), lr=rate, momentum=momentum, nesterov=momentum > 0)
    for turn in range(4):
        for k, one in enumerate(every):
            move(one, 100 * turn + k)
        for name, param in anchor.items():
            param.grad = param.detach() - torch.stack([o.weights[name] for o in every]).mean(0)
        peer.step()
        agree(every)
        for name, param in anchor.items():
            torch.testing.assert_close(every[2].weights[name], param.detach(), rtol=1e-5, atol=1e-6)


def test_the_mean_is_weighted_by_tokens() -> None:
    every = replicas(3, outer=Nesterov(1.0, 0.0))
    for k, one in enumerate(every):
        move(one, 10 + k)
    before = [{n: w.clone() for n, w in one.weights.items()} for one in every]
    agree(every, [1, 3, 0])
    for name in SHAPES:
        mean = before[0][name] * 0.25 + before[1][name] * 0.75
        torch.testing.assert_close(every[2].weights[name], mean, rtol=1e-5, atol=1e-6)


def test_if_nobody_has_trained_nothing_moves() -> None:
    every = replicas(2, "int4")
    agree(every, [0, 0])
    assert equal(every[0].weights, draw(0))


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4", "int2", "topk:3%"])
@pytest.mark.parametrize("parts", [1, 3])
def test_replicas_stay_equal_bit_for_bit(codec: str, parts: int) -> None:
    every = replicas(3, codec, parts=parts)
    for turn in range(3):
        for k, one in enumerate(every):
            move(one, 100 * turn + k)
        for part in range(parts):
            agree(every, [5, 4, 5], part)
        for one in every[1:]:
            assert equal(one.weights, every[0].weights)
            assert torch.equal(one.anchor, every[0].anchor)
            assert torch.equal(one.velocity, every[0].velocity)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "int2", "topk:3%"])
def test_what_a_codec_leaves_out_reaches_the_weights_later(codec: str) -> None:
    """With rate 1 and no momentum, what the anchor lacks of the mean is what is owed."""
    every = replicas(2, codec, Nesterov(1.0, 0.0))
    whole = {name: weight.double() for name, weight in draw(0).items()}
    for turn in range(5):
        for k, one in enumerate(every):
            before = {n: w.clone() for n, w in one.weights.items()}
            move(one, 100 * turn + k)
            for name in SHAPES:
                whole[name] += (one.weights[name] - before[name]).double() / 2
        agree(every)
    owed = [one.views(one.owed) for one in every if one.owed is not None]
    for name in SHAPES:
        later = sum(part[name].double() for part in owed) / 2
        torch.testing.assert_close(
            every[0].weights[name].double() - later, whole[name], rtol=0, atol=1e-5
        )


def test_a_replica_that_does_not_count_keeps_what_it_owes() -> None:
    every = replicas(2, "int2")
    for k, one in enumerate(every):
        move(one, k)
    agree(every)
    assert every[1].owed is not None
    owed = every[1].owed.clone()
    assert owed.any()
    move(every[0], 5)
    agree(every, [1, 0])
    assert torch.equal(every[1].owed, owed)


def test_steps_that_are_taken_while_a_part_travels_are_kept() -> None:
    late, prompt = replicas(2), replicas(2)
    for k in range(2):
        move(late[k], k)
        move(prompt[k], k)
        late[k].begin(0, 1, late=True)
    agree(prompt)
    for k in range(2):
        move(late[k], 50 + k)
        move(prompt[k], 50 + k)
        late[k].finish(0)
        for name in SHAPES:
            torch.testing.assert_close(
                late[k].weights[name], prompt[k].weights[name], rtol=1e-5, atol=1e-6
            )


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 20))
def test_streamed_replicas_are_equal_when_the_run_ends(length: int, parts: int, steps: int) -> None:
    rounds = Rounds(steps, length, min(parts, length))
    every = [RoundExchange(rounds, one) for one in replicas(2, "int4", parts=rounds.parts)]
    for step in range(1, steps + 1):
        for k, one in enumerate(every):
            move(one.outer, 10 * step + k)
            one.count(3 + k)
            one.arrive(step)
        for one in every:
            one.leave(step)
        for one in every:
            one.settle(step)
    assert equal(every[0].outer.weights, every[1].outer.weights)
    assert not every[0].outer.flights
    assert not equal(every[0].outer.weights, draw(0))
    assert every[0].tokens == [0] * rounds.parts


def test_what_travels_can_be_saved_and_loaded() -> None:
    rounds = Rounds(20, 4, 2)

    def begun() -> list[RoundExchange]:
        made = [RoundExchange(rounds, one) for one in replicas(2, "int2", parts=2)]
        for k, one in enumerate(made):
            move(one.outer, k)
            one.count(1)
            one.leave(2)
            move(one.outer, 7 + k)
        return made

    undisturbed, saved, loaded = begun(), begun(), begun()
    for one, other in zip(saved, loaded, strict=True):
        state = {name: tensor.clone() for name, tensor in one.local_state().items()}
        assert sorted(state) == ["flight.0.mean", "flight.0.sent"]
        other.resume({"tokens": one.tokens})
        assert not other.outer.flights
        other.load_local_state(state)
    for one, other in zip(undisturbed, loaded, strict=True):
        one.arrive(4)
        other.arrive(4)
        assert equal(one.outer.weights, other.outer.weights)
        assert torch.equal(one.outer.anchor, other.outer.anchor)


def test_bad_weights_are_refused_by_their_name() -> None:
    one, _ = replicas(2)
    one.weights["layers.0.q"][4] = float("nan")
    with pytest.raises(RunFailed, match=r"weights layers\.0\.q after local steps: 1 of 130"):
        one.begin(0, 1)


def test_bad_messages_are_refused_by_their_sender() -> None:
    def sent(change: object) -> OuterStep:
        one, other = replicas(2, "int8")
        one.begin(0, 1)
        other.begin(0, 1)
        messages = one.flights[0].exchange.wait()  # type: ignore[union-attr]
        messages[1] = change(messages[1])  # type: ignore[operator]
        return one

    def scaled(message: Tensor) -> Tensor:
        bad = message.clone()
        bad[-1] = 0x7F  # the last scale becomes NaN
        bad[-2] = 0xFF
        return bad

    def negative(message: Tensor) -> Tensor:
        bad = message.clone()
        bad[: HEADER.size] = 0xFF
        return bad

    with pytest.raises(RunFailed, match="from replica 1: 128 of 1024 values are NaN"):
        sent(scaled).finish(0)
    with pytest.raises(Exception, match="replica 1: sent 1039 bytes of int8; 1040 were expected"):
        sent(lambda message: message[:-1]).finish(0)
    with pytest.raises(RunFailed, match="replica 1: sent a difference of -1 tokens"):
        sent(negative).finish(0)


def test_bytes_that_are_sent_are_counted() -> None:
    (one, other), codec = replicas(2, "int4"), build_codec("int4")
    agree([one, other])
    assert one.sent_bytes == HEADER.size + encoded_bytes(codec, one.layout.length)


@given(
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 700), min_size=1, max_size=8),
    st.sampled_from([1, 128, 4096]),
    st.integers(1, 5),
)
def test_no_block_has_values_of_two_tensors(sizes: dict[str, int], block: int, parts: int) -> None:
    layout = FlatLayout({name: (size,) for name, size in sizes.items()}, block, parts)
    tensors = {name: torch.full((size,), 1.0 + i) for i, (name, size) in enumerate(sizes.items())}
    flat = torch.cat([layout.pack(tensors, part, torch.float32) for part in range(parts)])
    assert len(flat) == layout.length
    assert layout.length % block == 0
    for row in flat.view(-1, block):
        assert len({value for value in row.tolist() if value}) <= 1
    for place in layout.places:
        assert torch.equal(layout.view(flat, place), tensors[place.name])
    for part in range(parts):
        noise = torch.full_like(flat[layout.parts[part]], -1.0)
        layout.clear_gaps(noise, part)
        assert int((noise != 0).sum()) == sum(p.stop - p.start for p in layout.of(part))
