"""The processes of a run's ranks, as a supervisor uses them.

`fork_client.ForkClient` has ranks on this host only; `hosts/remote_ranks.RemoteRanks` has ranks on
several hosts. The supervisor cannot tell them apart.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class RankProcesses(Protocol):
    """Processes that run ranks, started and ended one by one at any time."""

    @property
    def ready(self) -> bool:
        """Whether imports are done, so that `start` returns within milliseconds."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the fork server of this host is gone, and all its ranks with it."""
        ...

    def start(self, rank: int, env: Mapping[str, str], args: Sequence[str], logs: Path) -> int:
        """Run `python -m ARGS…` as a rank; return its pid, or 0 where another host starts it."""
        ...

    def exit_codes(self) -> dict[int, int | None]:
        """Return the exit code of each rank's newest process; None while it lives."""
        ...

    def pids(self) -> dict[int, int]:
        """Return the pids of the ranks that live."""
        ...

    def stopped_ranks(self) -> set[int]:
        """Return the ranks that live and that SIGSTOP holds."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a rank ends, or for `timeout_s`."""
        ...

    def send_signal(self, ranks: Iterable[int], number: int = signal.SIGKILL) -> None:
        """Send a signal to ranks. SIGKILL also ends the processes that a rank has started."""
        ...

    def end_ranks(self, ranks: Iterable[int] | None = None) -> None:
        """Kill ranks (all by default) and return when they are gone."""
        ...

    def close(self) -> None:
        """End all ranks; nothing can be started afterwards."""
        ...
