"""An outlet that posts each alert as a JSON message to an address of the user.

The address is a secret: anyone who has it can post. It is in no log, no error and no message; only
its `masked` form is shown.
"""

import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.errors import PenstockError
from penstock.secret import masked
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.alerts import Alert, sentence
from penstock.watch.outlets.waiting import ServiceWait

ANSWER_S = 10.0  # for one try
GIVE_UP_S = 60.0  # for one message
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
TRY_AGAIN = (408, 425, 429)  # and every 5xx


def address(written: str, field: str = "log.webhook") -> str:
    """Return the address of a field: itself, or the value of the variable that it names."""
    if not written.startswith("$"):
        return written
    value = os.environ.get(written[1:], "")
    if not value.startswith(("http://", "https://")):
        what = "holds no http(s) address" if value else "is not set"
        raise PenstockError(
            f"{field} = {written}: the variable {written[1:]} {what}; export it before "
            "`penstock train`, or remove the field"
        )
    return value


@dataclass
class Webhook:
    """Posts alerts in order. Tries again for a while, and never raises."""

    url: str
    run: str
    steps: int
    say: Callable[[str], None]
    give_up_s: float = GIVE_UP_S
    answer_s: float = ANSWER_S
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    name: str = "webhook"
    wait: ServiceWait = field(default_factory=ServiceWait)
    sent: int = 0
    undelivered: list[str] = field(default_factory=list)  # events
    loss: float | None = None
    _opener: urllib.request.OpenerDirector = field(init=False)

    def __post_init__(self) -> None:
        # A redirect would carry the message, and its secret path, somewhere the user did not name.
        self._opener = urllib.request.build_opener(_NoRedirect())

    @property
    def kept(self) -> bool:
        return False

    @property
    def remedy(self) -> str:
        return f"messages are not sent later; `penstock report {self.run}` says how the run went"

    @property
    def problem(self) -> str:
        events = ", ".join(self.undelivered)
        return f"not delivered: {events}; {self.remedy}" if events else ""

    def begin(self, view: RunView) -> None:
        """Do nothing: there is no connection to open."""

    def send_points(self, points: np.ndarray) -> None:
        if len(points) and np.isfinite(points["loss"][-1]):
            self.loss = float(points["loss"][-1])

    def send_summary(self, view: RunView) -> None:
        """Do nothing: messages are about alerts; values are in the metrics."""

    def send_alert(self, alert: Alert) -> None:
        body = json.dumps(self.message(alert)).encode()
        with self.wait.for_answer():
            problem, tries = self._deliver(body)
        if problem:
            self.undelivered.append(alert.event)
            after = f"after {tries} tries" if tries > 1 else "at once"
            self.say(f"webhook: '{alert.event}' was not delivered, given up {after}: {problem}")
        else:
            self.sent += 1

    def message(self, alert: Alert) -> dict[str, object]:
        """Return the message. Slack, Mattermost and Teams show `text`, Discord shows `content`."""
        words = sentence(self.run, alert, self.steps)
        return {
            "run": self.run,
            "event": alert.event,
            "step": alert.step,
            "steps": self.steps,
            "loss": self.loss,
            "t": round(alert.t, 3),
            "host": socket.gethostname(),
            "words": alert.words,
            "text": words,
            "content": words[:2000],  # Discord refuses more
        }

    def close(self, result: str) -> None:
        if self.sent:
            self.say(f"webhook: {self.sent} sent to {masked(self.url)}")

    def _deliver(self, body: bytes) -> tuple[str, int]:
        """Post with retries; return the last problem, empty on success, and the number of tries."""
        began, pause_s, tries = self.clock(), FIRST_PAUSE_S, 0
        while True:
            tries += 1
            problem, wait_s = self._post(body)
            if not problem or wait_s is None:
                return problem, tries
            if wait_s:
                self.wait.heard(wait_s)  # it answered, and named the time itself
            wait_s = max(wait_s, pause_s)
            if self.clock() - began + wait_s > self.give_up_s:
                return problem, tries
            self.pause(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _post(self, body: bytes) -> tuple[str, float | None]:
        """Post once; return the problem, and the seconds to wait before a retry (None: give up)."""
        headers = {"Content-Type": "application/json", "User-Agent": "penstock"}
        try:
            request = urllib.request.Request(self.url, body, headers, method="POST")
            with self._opener.open(request, timeout=self.answer_s):
                return "", None
        except urllib.error.HTTPError as error:
            with error:
                again = error.code in TRY_AGAIN or error.code >= 500
                return f"HTTP {error.code}", _retry_after(error) if again else None
        except (OSError, http.client.HTTPException) as error:
            return _without_address(error), 0.0
        except ValueError:  # its text would hold the address
            return "the address is no valid URL", None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirects."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _retry_after(error: urllib.error.HTTPError) -> float:
    try:
        return min(max(0.0, float(error.headers.get("Retry-After", "0"))), GIVE_UP_S)
    except ValueError:  # a date: wait as always
        return 0.0


def _without_address(error: Exception) -> str:
    """Describe a network error without the address."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return "no answer in time" if isinstance(reason, TimeoutError) else type(reason).__name__
