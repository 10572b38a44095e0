"""Personal data: what goes, what stays, and that no text makes it slow or wrong."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean_personal import Personal, scrub

BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIE+abc/=\nxyz\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        ("jane.doe+x@mail.example.org", "email"),
        ("a@b-c.example", "email"),
        ("81.2.69.142", "ip"),
        ("2001:4860:4860::8888", "ip"),
        ("2a00:1450:4001:81b:0:0:0:200e", "ip"),
        ("+49 30 1234567", "phone"),
        ("+44 (20) 7946 0958", "phone"),
        ("(415) 555-2671", "phone"),
        ("415.555.2671", "phone"),
        ("1-415-555-2671", "phone"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),
        ("ghp_" + "a1B2" * 9, "key"),
        ("sk-" + "a1B2c3" * 6, "key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "key"),
        (BLOCK, "key"),
    ],
)
def test_what_goes(secret: str, kind: str) -> None:
    done = scrub([f"Before ({secret}), after.", f"{secret} {secret}"], Personal())
    token = f"<{kind.upper()}>"
    assert done.texts == [f"Before ({token}), after.", f"{token} {token}"]
    assert done.counts == [{kind: 1}, {kind: 2}]
    off = scrub([secret], Personal(**{kind: None}))  # type: ignore[arg-type]
    assert kind not in off.counts[0]


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1 127.0.0.1 192.168.1.1 172.16.0.1 ::1 fe80::1",
        "version 1.2.3.4.5 and v8.8.8.8 and 999.8.8.8",
        "2024-01-02 12:30:45, 3.14159, 1234567890, 555-2671, 1,000,000",
        "ISBN 978-3-16-148410-0 and 0x1234 std::vector a::b",
        "user@localhost @handle a@b sk-learn task-force hf_hub",
        "100 200 3000 400-500-600, +1 2 3, +10 to +20",
        "Fixes since 1.6.0.5; layers of 96 192 384 768 1536 3072",
    ],
)
def test_what_stays(text: str) -> None:
    done = scrub([text], Personal())
    assert done.texts == [text]
    assert done.counts == [{}]


@given(
    st.text(st.characters(exclude_categories=()), max_size=80)
    | st.text("ab1.@:+-() 8", max_size=80)
)
@settings(max_examples=200, deadline=None)
def test_twice_is_once(text: str) -> None:
    once = scrub([text], Personal()).texts
    assert scrub(once, Personal()).texts == once


@pytest.mark.parametrize(
    "part", ["a", "1.", "+1 ", ":", "a@", "a.", "-----BEGIN PRIVATE KEY-----", "eyJ", "1-", "(2"]
)
def test_no_text_is_slow(part: str) -> None:
    text = part * (400_000 // len(part)) + "@"
    start = time.process_time()
    scrub([text], Personal())
    assert time.process_time() - start < 5  # quadratic would be minutes
