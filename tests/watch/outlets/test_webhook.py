"""Webhook messages: their text, their retries, and the secrecy of the address."""

import json
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook_server import Hook, hook
from penstock.errors import PenstockError
from penstock.ledger.journal.records import CURVE
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.webhook import GIVE_UP_S, Webhook, address

CRASH = Alert("crash", 12.5, 40, "rank 1: killed by signal 9; restarts")


@pytest.fixture
def server() -> Iterator[Hook]:
    with hook() as made:
        yield made


class Waits:
    """A clock that only the pauses move."""

    def __init__(self) -> None:
        self.t = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.t

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.t += seconds


def webhook(url: str, said: list[str], waits: Waits | None = None, **options: float) -> Webhook:
    waits = waits or Waits()
    return Webhook(url, "code-1b", 100, said.append, pause=waits.pause, clock=waits, **options)


def test_a_message_is_for_programs_and_for_chats(server: Hook) -> None:
    said: list[str] = []
    made = webhook(server.url, said)
    points = np.zeros(1, CURVE)
    points["loss"] = 3.25
    made.send_points(points)
    made.send_alert(CRASH)
    (got,) = server.wait(1)
    assert (got["run"], got["event"], got["step"], got["steps"]) == ("code-1b", "crash", 40, 100)
    assert (got["loss"], got["words"]) == (3.25, CRASH.words)
    assert got["text"] == got["content"] == f"code-1b: {CRASH.words}, at step 40 of 100"
    assert said == []


def test_a_failing_server_is_retried_with_longer_pauses(server: Hook) -> None:
    said, waits = list[str](), Waits()
    server.answers = [500, 503, 429]
    webhook(server.url, said, waits).send_alert(CRASH)
    assert len(server.wait(1)) == 1
    assert server.asked == 4
    assert waits.pauses == [0.5, 1.0, 2.0]
    assert said == []


def test_it_gives_up_after_a_time_and_says_so(server: Hook) -> None:
    said, waits = list[str](), Waits()
    server.answers = [500] * 1000
    webhook(server.url, said, waits).send_alert(CRASH)
    assert waits.t <= GIVE_UP_S
    assert len(said) == 1
    assert "not delivered" in said[0]
    assert "HTTP 500" in said[0]


def test_a_message_that_the_server_refuses_is_not_retried(server: Hook) -> None:
    said, waits = list[str](), Waits()
    server.answers = [404, 204]
    webhook(server.url, said, waits).send_alert(CRASH)
    assert (server.asked, waits.pauses) == (1, [])
    assert "HTTP 404" in said[0]


def test_retry_after_of_the_server_is_respected(server: Hook) -> None:
    waits = Waits()
    server.answers, server.headers = [429], {"Retry-After": "7"}
    webhook(server.url, [], waits).send_alert(CRASH)
    assert waits.pauses == [7.0]


def test_a_redirect_is_not_followed(server: Hook) -> None:
    said: list[str] = []
    with hook() as other:
        server.answers, server.headers = [307], {"Location": other.url}
        webhook(server.url, said).send_alert(CRASH)
        assert other.asked == 0
    assert "HTTP 307" in said[0]


def test_a_server_that_hangs_costs_a_bounded_time(server: Hook) -> None:
    said: list[str] = []
    server.hang.set()
    began = time.monotonic()
    webhook(server.url, said, answer_s=0.2, give_up_s=2.0).send_alert(CRASH)
    assert time.monotonic() - began < 30
    assert server.asked >= 2
    assert "no answer in time" in said[0]


def test_no_server_is_a_bounded_wait() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said: list[str] = []
    webhook(f"http://127.0.0.1:{port}/s3cr3t", said).send_alert(CRASH)
    assert "Connection refused" in said[0]


URLS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(URLS, st.sampled_from(["http://127.0.0.1:1/", "http://[::1/", "http://no such host/", "x:"]))
def test_the_address_of_a_webhook_is_never_shown(path: str, start: str) -> None:
    said: list[str] = []
    secret = f"hush{path}"
    webhook(start + secret, said, answer_s=0.5, give_up_s=0.0).send_alert(CRASH)
    assert len(said) == 1
    assert secret not in said[0]


def test_the_end_names_the_host_and_not_the_secret(server: Hook) -> None:
    said: list[str] = []
    made = webhook(server.url, said)
    made.send_alert(CRASH)
    made.close("done")
    assert said == ["webhook: 1 sent to http://127.0.0.1/…"]
    assert "s3cr3t" not in json.dumps(server.got)


def test_a_variable_can_hold_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://x/s3cr3t")
    assert address("$HOOK") == "https://x/s3cr3t"
    monkeypatch.setenv("HOOK", "s3cr3t")
    with pytest.raises(PenstockError, match="holds no http") as error:
        address("$HOOK")
    assert "s3cr3t" not in str(error.value)
    monkeypatch.delenv("HOOK")
    with pytest.raises(PenstockError, match="variable HOOK is not set"):
        address("$HOOK")
