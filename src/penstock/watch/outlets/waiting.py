"""Since when a client waits for its service. It bounds how long an outlet outlives its run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NO_ANSWER_S = 15.0  # after the end of a run: from then on a service counts as not there
LONGEST_S = 300.0  # after the end, or after the last call that the service took, to send the rest


@dataclass
class ServiceWait:
    """The wait of a client for an answer of its service."""

    since: float | None = None  # monotonic seconds; None while it waits for nothing

    @contextmanager
    def for_answer(self) -> Iterator[None]:
        """Wait for an answer while the body runs."""
        self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = None

    def late(self, since: float, now: float) -> bool:
        """Return whether to give up at `now`, if the last thing was done at `since`."""
        if self.since is None:  # the client itself is at work: it imports, computes or writes
            return now - since > LONGEST_S
        return now - max(since, self.since) > NO_ANSWER_S

    def heard(self, asked_s: float = 0.0) -> None:
        """Note that the service is there; `asked_s` is how long it asked the client to wait."""
        if self.since is not None:
            self.since = time.monotonic() + asked_s

    def timed(self, client: Any) -> Any:
        """Return the client; each call of its methods is a wait of its own."""
        return _TimedClient(client, self)


class _TimedClient:
    """A client whose calls are waits."""

    def __init__(self, client: Any, wait: ServiceWait) -> None:
        self._client, self._wait = client, wait

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*words: Any, **named: Any) -> Any:
            with self._wait.for_answer():
                return method(*words, **named)

        return call
