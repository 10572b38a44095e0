"""Quantities: what is read, what is refused, and that what is written reads back the same."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.run.schema import quantity
from penstock.run.schema.quantity import BadQuantity, Every, Portion

READERS = [
    quantity.count,
    quantity.size_bytes,
    quantity.duration_s,
    quantity.rate_bytes_per_s,
    quantity.share,
    quantity.every,
    quantity.portion,
]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1M", 10**6),
        ("20B", 20 * 10**9),
        ("64K", 64_000),
        ("64k", 64_000),
        ("64Ki", 65_536),
        ("1.5T", 1_500_000_000_000),
        ("0.1K", 100),
        (" 3 Mi ", 3 * 2**20),
        ("1_000", 1000),
        ("1e6", 10**6),
        (524288, 524288),
        (1e9, 10**9),
        (0, 0),
    ],
)
def test_counts(text, number):
    assert quantity.count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("3.2 TB", 3_200_000_000_000), ("64 MiB", 64 * 2**20), ("1B", 1), (4096, 4096)],
)
def test_bytes(text, number):
    assert quantity.size_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10 min", 600), ("90 s", 90), ("2 h", 7200), ("1 day", 86400), ("3 days", 259200)],
)
def test_durations(text, seconds):
    assert quantity.duration_s(text) == seconds
    assert quantity.every(text) == Every(seconds=seconds)


def test_small_durations_are_exact():
    assert quantity.duration_s("250 ms") == 0.25
    assert quantity.duration_s("0.1 s") == 0.1


@pytest.mark.parametrize(
    ("text", "rate"), [("400 Gbit/s", 50e9), ("3.2 TB/s", 3.2e12), ("1 GiB/s", 2**30)]
)
def test_rates(text, rate):
    assert quantity.rate_bytes_per_s(text) == rate


@pytest.mark.parametrize(
    ("text", "part"), [("0.5%", 0.005), (0.005, 0.005), ("100 %", 1.0), (0, 0)]
)
def test_shares(text, part):
    assert quantity.share(text) == part


def test_parts_of_a_run():
    assert quantity.portion("2%") == Portion(share=0.02)
    assert quantity.portion("100 steps").of(1000) == 100
    assert quantity.portion("25%").of(1000) == 250
    assert quantity.every("1K steps") == Every(steps=1000)
    assert str(quantity.every("1 step")) == "1 step"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "found",
    [
        *[math.nan, math.inf, -1, -0.5, "", " ", True, False, None, [], "nan", "inf", "-1 s"],
        *["-5%", "-3", "12x", "M", "1__0", "1e9999999 s", "٣", "1 000", "0x10", "1,5 s"],
    ],
)
def test_nonsense_is_refused_with_a_fix(read, found):
    with pytest.raises(BadQuantity, match="write") as error:
        read(found)
    assert isinstance(error.value, PenstockError)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (quantity.count, "0.3"),
        (quantity.count, 0.5),
        (quantity.count, 2**63),
        (quantity.size_bytes, "0.3 B"),
        (quantity.duration_s, 10),  # no unit
        (quantity.duration_s, "10"),
        (quantity.duration_s, "1e999 day"),
        (quantity.rate_bytes_per_s, "400 Gb/s"),  # bits or bytes?
        (quantity.share, 5),
        (quantity.share, "101%"),
        (quantity.every, 250),
        (quantity.every, "0 steps"),
        (quantity.every, "0 s"),
        (quantity.every, "1.5 steps"),
        (quantity.portion, "10 min"),
    ],
)
def test_near_misses_are_refused(read, found):
    with pytest.raises(BadQuantity, match="write"):
        read(found)


def test_shown_short():
    assert quantity.show_count(1_000_000) == "1M"
    assert quantity.show_count(524_288) == "512Ki"
    assert quantity.show_count(12_345) == "12345"
    assert quantity.show_bytes(64 * 2**20) == "64 MiB"
    assert quantity.show_duration(120) == "2 min"
    assert quantity.show_duration(90.0) == "90 s"
    assert quantity.show_share(0.005) == "0.5%"


@given(st.integers(0, 2**63 - 1) | st.sampled_from([10**k for k in range(19)]))
def test_count_round_trip(number):
    assert quantity.count(quantity.show_count(number)) == number
    assert len(quantity.show_count(number)) <= len(str(number))


@given(st.integers(0, 2**60) | st.integers(0, 1000).map(lambda n: n * 2**30))
def test_bytes_round_trip(number):
    assert quantity.size_bytes(quantity.show_bytes(number)) == number


@given(st.floats(0, 1e300) | st.integers(0, 10**7).map(float))
def test_duration_round_trip(seconds):
    assert quantity.duration_s(quantity.show_duration(seconds)) == seconds


@given(st.floats(0, 1) | st.integers(0, 1000).map(lambda n: n / 1000))
def test_share_round_trip(part):
    assert quantity.share(quantity.show_share(part)) == part
    assert quantity.portion(str(Portion(share=part))) == Portion(share=part)


@given(
    st.builds(Every, steps=st.integers(1, 10**9)) | st.builds(Every, seconds=st.floats(1e-3, 1e9))
)
def test_every_round_trip(every):
    assert quantity.every(str(every)) == every


@given(st.text(max_size=12) | st.floats() | st.integers() | st.booleans())
def test_readers_never_fail_otherwise(found):
    for read in READERS:
        with contextlib.suppress(BadQuantity):
            read(found)
