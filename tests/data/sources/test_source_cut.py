"""Cutting: the same parts whatever the block borders, and the limit exact."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.sources.records import RawRecord, split_stream


@settings(max_examples=300, deadline=None)
@given(
    content=st.text("ab\n", max_size=60).map(str.encode),
    separator=st.sampled_from([b"\n", b"\n\n", b"ab", b"aba"]),
    most=st.integers(1, 20),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_parts_do_not_depend_on_blocks(
    content: bytes, separator: bytes, most: int, blocks: list[int]
) -> None:
    pieces, at, turn = [], 0, 0
    while at < len(content):
        size = blocks[turn % len(blocks)]
        pieces.append(content[at : at + size])
        at, turn = at + size, turn + 1
    expected, offset = [], 0
    parts = content.split(separator)
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        if part or not last:
            long = len(part) > most
            expected.append(RawRecord(number, offset, part[:64], long, last))
        offset += len(part) + len(separator)
    assert list(split_stream(pieces, separator, most)) == expected
