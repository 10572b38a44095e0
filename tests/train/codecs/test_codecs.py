"""Codecs: their bytes, how far off they are, and that what they leave out is never lost."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.errors import PenstockError
from penstock.train.codecs import int2, scales
from penstock.train.codecs.codec import (
    BLOCK,
    Codec,
    block_ranges,
    build_codec,
    check_content,
    check_finite,
    encoded_bytes,
)
from penstock.train.codecs.feedback import encode_owed

NAMES = ["none", "bf16", "int8", "int4", "int2", "topk:3%", "topk:0.05%", "topk:50%"]
LOSSY = NAMES[1:]
UNIT = 4096  # whole blocks of every codec


@st.composite
def values(draw: st.DrawFn) -> Tensor:
    """Draw values as weights move: of several sizes, with zeros, ties, outliers and whole blocks
    of nothing."""
    seed, blocks = draw(st.integers(0, 2**32)), draw(st.integers(1, 2))
    made = torch.Generator().manual_seed(seed)
    found = torch.randn(blocks * UNIT, generator=made)
    found *= 10.0 ** draw(st.integers(-30, 15))
    kind = draw(st.sampled_from(["normal", "tied", "sparse", "outlier", "spread", "zero"]))
    if kind == "tied":
        found = found.sign() * found.abs().mean()
    elif kind == "sparse":
        found[torch.rand(len(found), generator=made) < 0.99] = 0.0
    elif kind == "outlier":
        found[seed % len(found)] *= 1e4
    elif kind == "spread":
        found *= 10.0 ** torch.randint(-4, 5, (len(found),), generator=made)
    elif kind == "zero":
        found.zero_()
    return found


def decoded(codec: Codec, given_: Tensor) -> Tensor:
    return codec.decode(codec.encode(given_), len(given_))


@given(values(), st.sampled_from(NAMES))
def test_bytes_are_counted_exactly_and_equal_values_have_equal_bytes(x: Tensor, name: str) -> None:
    codec = build_codec(name)
    content = codec.encode(x)
    assert content.dtype == torch.uint8
    assert content.dim() == 1
    assert len(content) == encoded_bytes(codec, len(x))
    assert torch.equal(content, codec.encode(x.clone()))
    check_content(content, codec, len(x), "replica 1")


@given(values(), st.sampled_from(NAMES), st.integers(0, 3))
def test_some_blocks_at_a_time_give_the_bytes_of_the_whole(x: Tensor, name: str, cut: int) -> None:
    """A site whose ranks hold parts of the model encodes and decodes it so."""
    codec, x = build_codec(name), torch.cat((x, x.flip(0), x * 3))
    ends = [0, UNIT * (1 + cut % 2), len(x)]
    whole = codec.encode(x)
    joined = torch.zeros_like(whole)
    for start, stop in pairwise(ends):
        ranges = block_ranges(codec, len(x), start, stop - start)
        sizes = list(codec.sections(stop - start))
        for at, part in zip(ranges, codec.encode(x[start:stop]).split(sizes), strict=True):
            joined[at] = part
        content = torch.cat([whole[at] for at in ranges])
        found = codec.decode(content, stop - start)
        assert torch.equal(found, codec.decode(whole, len(x))[start:stop])
    assert torch.equal(joined, whole)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("none", 32), ("bf16", 16), ("int8", 8.125), ("int4", 4.125), ("int2", 2.125)],
)
def test_bits_of_a_value(name: str, bits: float) -> None:
    assert encoded_bytes(build_codec(name), UNIT) * 8 / UNIT == bits


def test_bits_of_top_k() -> None:
    assert encoded_bytes(build_codec("topk:3%"), UNIT) == 124 * 14 // 8 + 2


@given(values())
def test_without_a_codec_nothing_changes(x: Tensor) -> None:
    assert torch.equal(decoded(build_codec("none"), x), x)
    wide = x.double() / 3
    assert torch.equal(decoded(build_codec("none", torch.float64), wide), wide)


@given(values(), st.sampled_from([("int8", 127), ("int4", 7)]))
def test_no_value_is_off_by_more_than_half_a_step(x: Tensor, which: tuple[str, int]) -> None:
    name, levels = which
    largest = x.view(-1, BLOCK).abs().amax(1, keepdim=True)
    # A scale has 8 significant bits and is never rounded down.
    half = largest / levels * (1 + 2**-7) / 2
    off = (decoded(build_codec(name), x) - x).view(-1, BLOCK).abs()
    assert (off <= half * (1 + 1e-5) + levels * scales.LEAST).all()


@given(values())
def test_bf16_is_off_by_a_part_of_the_value(x: Tensor) -> None:
    assert ((decoded(build_codec("bf16"), x) - x).abs() <= x.abs() * 2**-8).all()


@given(values(), st.sampled_from(LOSSY))
def test_the_error_is_smaller_than_the_values(x: Tensor, name: str) -> None:
    """Without this, error feedback would grow for ever."""
    codec = build_codec(name)
    blocks = x.double().view(-1, codec.block)
    off = (decoded(codec, x).double() - x.double()).view(-1, codec.block)
    less = off.norm(dim=1) < blocks.norm(dim=1)
    assert (less | (blocks.norm(dim=1) <= codec.block * 127 * scales.LEAST)).all()


def test_the_scale_of_int2_suits_normal_values() -> None:
    """Four even levels cannot do better than 0.1188 of the variance (Max, 1960)."""
    x = torch.randn(64 * UNIT, generator=torch.Generator().manual_seed(0))
    error = (decoded(build_codec("int2"), x) - x).square().mean()
    assert 0.11 < error < 0.121


@given(st.lists(values().map(lambda x: x[:UNIT]), min_size=1, max_size=4), st.sampled_from(LOSSY))
def test_what_is_sent_and_what_is_owed_is_all_there_was(xs: list[Tensor], name: str) -> None:
    codec = build_codec(name)
    owed, sent = torch.zeros(UNIT, dtype=torch.float64), torch.zeros(UNIT, dtype=torch.float64)
    for x in xs:
        content, owed = encode_owed(codec, x.double(), owed)
        sent += codec.decode(content, UNIT).double()
    total = torch.stack(xs).double().sum(0)
    largest = torch.stack(xs).double().abs().amax() * len(xs)
    assert ((sent + owed - total).abs() <= 1e-12 * largest * len(xs)).all()


@pytest.mark.parametrize("name", [name for name in LOSSY if name != "topk:0.05%"])
def test_what_is_left_out_comes_later(name: str) -> None:
    """The mean of what is decoded of the same values, again and again, becomes the values."""
    codec = build_codec(name)
    x = torch.randn(UNIT, generator=torch.Generator().manual_seed(1))
    owed, total, rounds = None, torch.zeros(UNIT), 400
    for _ in range(rounds):
        content, owed = encode_owed(codec, x, owed)
        total += codec.decode(content, UNIT)
    assert (total / rounds - x).norm() < 0.2 * x.norm()
    once = (decoded(codec, x) - x).norm()
    assert (total / rounds - x).norm() < once / 3 + 1e-6


@given(
    values(), st.sampled_from(LOSSY), st.sampled_from([float("nan"), float("inf"), -float("inf")])
)
def test_bad_values_never_become_good_ones(x: Tensor, name: str, bad: float) -> None:
    x[17] = bad
    assert not decoded(build_codec(name), x)[: build_codec(name).block + 17].isfinite().all()


def test_bad_values_are_refused_by_name() -> None:
    x = torch.ones(8)
    check_finite(x, "layers.0.q")
    x[2], x[5] = float("nan"), float("inf")
    with pytest.raises(PenstockError, match=r"layers\.0\.q: 2 of 8 values are NaN or infinite"):
        check_finite(x, "layers.0.q")


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_another_size_are_refused(name: str) -> None:
    codec = build_codec(name)
    content = codec.encode(torch.ones(UNIT))
    with pytest.raises(PenstockError, match=f"replica 3: sent {len(content) - 1} bytes"):
        check_content(content[:-1], codec, UNIT, "replica 3")
    with pytest.raises(PenstockError, match="were expected"):
        check_content(content.float(), codec, UNIT, "replica 3")


@given(st.lists(st.integers(0, 3), min_size=4, max_size=64).filter(lambda x: len(x) % 4 == 0))
def test_two_bits_are_packed_and_unpacked(codes: list[int]) -> None:
    given_ = torch.tensor(codes, dtype=torch.uint8)
    assert torch.equal(int2.unpack(int2.pack(given_)), given_)


def test_top_k_keeps_the_largest_and_the_first_of_equals() -> None:
    x = torch.zeros(UNIT)
    x[[5, 4000, 77, 1234, 90]] = torch.tensor([3.0, -3.0, 3.0, 3.0, 3.0])
    codec = build_codec("topk:0.05%")  # four values
    assert decoded(codec, x).nonzero().flatten().tolist() == [5, 77, 90, 1234]


@given(st.floats(scales.LEAST, 2.0**100, width=32))
def test_scales_are_never_rounded_down(scale: float) -> None:
    rounded = scales.round_up(torch.tensor([scale])).float().item()
    assert scale <= rounded <= scale * (1 + 2**-7)
