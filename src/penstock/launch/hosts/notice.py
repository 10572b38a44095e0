"""A stop signal on one host of a run: this host is to leave, or the whole run is to stop."""

import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.launch.supervisor.signals import on_stop_signal


@dataclass
class StopNotice:
    """The stop signal that this host got, if any.

    A scheduler that takes a host away sends SIGTERM; a person who presses Ctrl-C means the run.
    """

    leaving: bool = False
    stopping: bool = False

    @property
    def given(self) -> bool:
        return self.leaving or self.stopping

    def catch_signals(self) -> AbstractContextManager[None]:
        """Set the fields on the first stop signal; the second raises KeyboardInterrupt."""
        return on_stop_signal(self._set)

    def _set(self, number: int) -> None:
        self.leaving = number == signal.SIGTERM
        self.stopping = not self.leaving
