"""What is secret by its shape, and what is not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import secret
from penstock.errors import PenstockError, RunFailed

S = "s3cr3tValue99"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://user:{S}@host/x", "https://…@host/x"),
        (f"https://{S}@host/x@v1", "https://…@host/x@v1"),
        (f"https://user:{S}/a?b#c@host/x", "https://…@host/x"),  # not escaped, as people write it
        (f"https:/user:{S}@host/x", "https:/…@host/x"),  # a URL that was a `Path`
        (f"https://user:{S}", "https://…"),  # cut off before the host
        (f"https://h/x?X-Amz-Signature={S}&n=1", "https://h/x?X-Amz-Signature=…&n=…"),
        (f"az://c/x?sv=1&sas={S}", "az://c/x?sv=…&sas=…"),
        (f"https://h/x?{S}", "https://h/x?…"),
        (f"https://h/x#access_token={S}", "https://h/x#access_token=…"),
        (f"https://hooks.slack.com/services/T/{S}", "https://hooks.slack.com/…"),
        (f"https://discord.com/api/webhooks/1/{S}", "https://discord.com/…"),
        (f"(see s3://k:{S}@bucket/x)", "(see s3://…@bucket/x)"),
        (f"AccountName=a;AccountKey={S};x", "AccountName=a;AccountKey=…;x"),
        (f"Authorization: Bearer {S}", "Authorization: …"),
        (f"key hf_{S * 3}.", "key …."),
        ("key AKIA0123456789ABCDEF", "key …"),
    ],
)
def test_a_secret_is_hidden_and_the_rest_stays(text, shown):
    assert secret.redact(text) == shown
    assert secret.redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/sets/web@0123456789ab",
        "at http://localhost:8000, or http://localhost:8001.",
        "s3://bucket/part-????.jsonl",
        "abfss://container@account.dfs.core.windows.net/x",
        "https://[::1]:80/x",
        "hf://datasets/org/name@commit/path",
        "hf:org/name",
        "tokens=3 tokenizer=train signal=9",
        "/data/sk-1/hf_x",
    ],
)
def test_what_is_no_secret_stays(text):
    assert secret.redact(text) == text


def test_the_value_of_a_secret_variable_is_hidden(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S)
    monkeypatch.setenv("HF_TOKEN", "short")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "notasecret")
    text = f"refused {S}; short; /home/me/key.json; notasecret"
    assert secret.redact(text) == "refused …; short; /home/me/key.json; notasecret"


def test_errors_hide_secrets_whoever_prints_them():
    for kind in (PenstockError, RunFailed):
        assert str(kind(f"https://u:{S}@h/x: refused")) == "https://…@h/x: refused"


def test_every_text_of_a_table_is_redacted():
    held = {"a": [f"https://u:{S}@h", 3, {"b": (f"s3://k:{S}@b", None)}]}
    assert S not in json.dumps(secret.redact_all(held))
    assert secret.redact_all({"n": [1, 2.5, True]}) == {"n": [1, 2.5, True]}


@given(
    st.sampled_from(["https", "s3", "az"]),
    st.text("abc:/?#&=%é ", max_size=8),
    st.sampled_from(["", "/x", "/x@v1", "?a=1"]),
)
def test_no_password_is_shown_whatever_it_holds(scheme, around, rest):
    """But "@", after which nobody can tell where the host begins."""
    around = around.replace(" ", "%20")
    assert S not in secret.redact(f"{scheme}://user:{around}{S}{around}@host{rest}")


@given(st.text(max_size=40))
def test_redacting_twice_changes_nothing(text):
    once = secret.redact(text)
    assert secret.redact(once) == once
