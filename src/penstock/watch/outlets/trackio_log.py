"""An outlet that logs a run to Trackio's local store, through its own client.

The store is Trackio's: SQLite files in `TRACKIO_DIR`, else in the cache of Hugging Face. Nothing is
sent over the network.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.watch.outlets.alerts import PROBLEMS, Alert
from penstock.watch.outlets.tracker import LoggedValues, TrackedRun, require_package, say_where
from penstock.watch.outlets.waiting import ServiceWait

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # variables that send a run elsewhere


def check(written: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise PenstockError for mistakes that the client would report later in a log."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", written):
        raise PenstockError(
            f"log.trackio = {written}: no name of a project; write letters, digits, - and _"
        )
    require_package("trackio", written)
    if found := [name for name in REMOTE if env.get(name)]:
        raise PenstockError(
            f"log.trackio = {written}: {found[0]} is set, and Penstock writes Trackio's local "
            f"store only; unset {found[0]}, and send the project with `trackio sync` later"
        )


@dataclass
class TrackioLog:
    """A run in Trackio."""

    written: str  # log.trackio
    say: Callable[[str], None]
    wait: ServiceWait = field(default_factory=ServiceWait)
    unsent: str = ""
    name: str = "trackio"
    run: Any = None  # the client's
    _last: int = -1  # step

    def begin(self, run: TrackedRun) -> None:
        # Trackio asks the Hub for the user's name. Its imports read this variable.
        os.environ["HF_HUB_OFFLINE"] = "1"
        import trackio
        from trackio.utils import TRACKIO_DIR

        self.run = trackio.init(
            project=self.written,
            name=run.unique_name,
            resume="allow",
            config=run.config,
            embed=False,
            auto_log_gpu=False,  # Penstock measures, once for a node
            auto_log_cpu=False,
        )
        say_where(self.say, self.name, f"trackio show --project {self.written} ({TRACKIO_DIR})")

    def rewind(self, step: int) -> None:
        """Do nothing: Trackio keeps both values of a step."""

    def log(self, rows: Sequence[LoggedValues]) -> None:
        for row in rows:
            self.run.log(row.values, step=row.step)
            self._last = max(self._last, row.step)

    def alert(self, alert: Alert) -> None:
        from trackio import AlertLevel

        problem = alert.event in PROBLEMS and alert.event != "recovered"
        level = AlertLevel.ERROR if problem else AlertLevel.INFO
        self.run.alert(title=alert.event, text=alert.words, level=level, step=alert.step)

    def summarize(self, values: dict[str, float | str]) -> None:
        """Do nothing: Trackio shows series, and those have the values."""

    def end(self, result: str, well: bool) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self.run.finish()
        # The client never raises: it warns, in the log, and drops what it could not write.
        stored = SQLiteStorage.get_max_step_for_run(self.written, self.run.name, run_id=self.run.id)
        if self._last > (-1 if stored is None else stored):
            self.say(f"{self.name}: not everything was written; see the log of the outlets")
