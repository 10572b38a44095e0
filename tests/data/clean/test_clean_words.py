"""The word split: each rule by example, and what holds for any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean import words

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
MARKED = st.text(st.sampled_from("ab AZ09.,'’-–:/()…#\n=+%$\"én t@★"), max_size=60)


def one(text: str) -> list[str]:
    return words.split_words([text]).strings()[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, (big) world!", "Hello | , | ( | big | ) | world | !"),
        ('"It\'s" don\'t we’re.', '" | It | \'s | " | do | n\'t | we | ’re | .'),
        ("she'll I'd we've im", "she | 'll | I | 'd | we | 've | im"),
        ("well-known a--b 10-20 re-3", "well | - | known | a | -- | b | 10 | - | 20 | re-3"),
        ("end... and.. so… x…y", "end | ... | and | .. | so | … | x | … | y"),
        ("e.g. (i.e. e.g., U.S. a. b.c.", "e.g. | ( | i.e. | e.g. | , | U.S. | a. | b.c."),
        ("file.h. NASA. A. 3.14.", "file.h | . | NASA | . | A. | 3.14 | ."),
        ("Mr. Smith (Dr. No) fooMr.", "Mr. | Smith | ( | Dr. | No | ) | fooMr | ."),
        ("one.Two a,b 1,000", "one | . | Two | a | , | b | 1,000"),
        ("a/b x=1 x=y", "a | / | b | x=1 | x | = | y"),
        ("$5 10% 5$ +1 1+ =x", "$ | 5 | 10 | % | 5 | $ | +1 | 1 | + | = | x"),
        ("http://a.example/b-c me-too@a.example", "http://a.example/b-c | me-too@a.example"),
        ("(http://a.b/c-d) x](http://a.b/c)", "( | http://a.b/c-d | ) | x](http://a.b | / | c | )"),
        ("(and/or) band/or and/order", "( | and/or | ) | band | / | or | and | / | order"),
        ("f(x): __init__ a_b ''", "f(x | ): | _ | _ | init | _ | _ | a_b | ''"),
        ("10km 5MB, 3x 10kmx 2m.", "10 | km | 5 | MB | , | 3x | 10kmx | 2 | m | ."),
        ("Cannot (cannot) cannots gonna", "Can | not | ( | can | not | ) | cannots | gon | na"),
        ("★star mid★dle", "★ | star | mid | ★ | dle"),
    ],
)  # fmt: skip
def test_each_splitting_rule_works(text: str, expected: str) -> None:
    assert one(text) == expected.split(" | ")


@given(st.lists(ANY | MARKED, max_size=6))
@settings(max_examples=150, deadline=None)
def test_words_are_the_text_without_white_space_and_independent_of_neighbours(
    texts: list[str],
) -> None:
    found = words.split_words(texts)
    for text, parts in zip(texts, found.strings(), strict=True):
        assert "".join(parts) == "".join(text.split())
        assert all(parts)
        assert parts == one(text)
        # A word never reaches over a blank.
        assert [p for chunk in text.split() for p in one(chunk)] == parts


def test_places_and_chunks_point_into_the_joined_batch() -> None:
    texts = ["  a, b", "", "c"]
    found = words.split_words(texts)
    joined = "\n".join(texts)
    assert [joined[place] for place in found.places] == ["a", ",", "b", "c"]
    assert [joined[place] for place in found.chunks] == ["a", "b", "c"]
    assert found.documents.tolist() == [0, 3, 3, 4]
