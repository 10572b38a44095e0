"""Text repair: each step by example, and a second repair changes nothing."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean.repair import Repair, repair_texts

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
DENSE = st.text(
    st.sampled_from("Ãâ€™Â©ð\x9f\x98\x80 \t\r\n\x0b\x85\u2028\x00\xad\u0301eé\ud83d"), max_size=40
)


def fixed(text: str, config: Repair | None = None) -> str:
    return repair_texts([text], config or Repair()).texts[0]


@pytest.mark.parametrize(
    ("broken", "whole", "step"),
    [
        ("itâ€™s cafÃ©", "it’s café", "mojibake"),
        ("hi ðŸ˜€ there", "hi 😀 there", "mojibake"),
        ("Â© 2024", "© 2024", "mojibake"),
        ("a\r\nb\rc\u2028d\x0be", "a\nb\nc\nd\ne", "whitespace"),
        ("a\xa0b\u3000c", "a b c", "whitespace"),
        ("\n\n  a  \n\tb\t\n\n\n\n\n\nc \n", "  a\n\tb\n\n\nc", "whitespace"),
        ("a\x00b\x1bc\u200bd\ufeffe\xadf", "abcdef", "controls"),
        ("a\ud800b", "a\ufffdb", "controls"),
        ("e\u0301", "é", "nfc"),
    ],
)
def test_each_repair_works_alone(broken: str, whole: str, step: str) -> None:
    done = repair_texts([broken], Repair())
    assert done.texts == [whole]
    assert done.counts == {k: int(k == step) for k in ("mojibake", "whitespace", "controls", "nfc")}
    off = Repair(**{step: False})  # type: ignore[arg-type]
    assert fixed(broken, off) != whole
    assert step not in repair_texts([broken], off).counts


@pytest.mark.parametrize(
    "text",
    [
        "São Paulo, Ângela, âge, Åse, ÂGE",
        "def f():\n\treturn {  1:  2 }\n\n\nx",
        "नमस्\u200dते 👩\u200d👩\u200d👧 日本語。",
    ],
)
def test_good_text_stays(text: str) -> None:
    assert fixed(text) == text


@given(ANY | DENSE)
@settings(max_examples=300, deadline=None)
def test_repairing_twice_changes_nothing_and_the_result_can_be_encoded(text: str) -> None:
    once = fixed(text)
    assert fixed(once) == once
    once.encode()
    assert unicodedata.is_normalized("NFC", once)
    assert "\r" not in once
    assert "\x00" not in once
    assert all(line == line.rstrip(" \t") for line in once.split("\n"))
