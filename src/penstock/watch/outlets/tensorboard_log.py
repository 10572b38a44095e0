"""An outlet that writes a run's event files for TensorBoard, with TensorBoard's own writer.

Values are in one folder of the run; events such as a crash are texts in its sub-folder `events`,
because TensorBoard drops everything after the step to which a run goes back.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.watch.outlets.alerts import Alert
from penstock.watch.outlets.tracker import (
    LoggedValues,
    TrackedRun,
    flat_config,
    require_package,
    say_where,
)
from penstock.watch.outlets.waiting import ServiceWait

EVENTS = "events"
QUEUED = 1000  # records that may wait for the disk; then the writer blocks this outlet


def check(written: bool | str) -> None:
    """Raise PenstockError for a missing package, and for a folder that cannot be one."""
    require_package("tensorboard", written)
    if isinstance(written, str):
        where = Path(written).expanduser()
        above = next((p for p in (where, *where.parents) if p.exists()), where)
        if not above.is_dir():
            raise PenstockError(
                f"log.tensorboard = {written}: {above} is a file; write a folder, or true for "
                "one in the run folder"
            )
        if not os.access(above, os.W_OK | os.X_OK):
            raise PenstockError(
                f"log.tensorboard = {written}: {above} cannot be written; write another folder, "
                "or true for one in the run folder"
            )


def folder_of(written: bool | str, run: TrackedRun) -> Path:
    """Return the folder of a run: its own, or one below a folder that several runs share."""
    if isinstance(written, str):
        return Path(written).expanduser() / run.unique_name
    return run.folder / "tensorboard"


@dataclass
class TensorboardLog:
    """A run in TensorBoard."""

    written: bool | str  # log.tensorboard
    say: Callable[[str], None]
    wait: ServiceWait = field(default_factory=ServiceWait)
    unsent: str = ""
    name: str = "tensorboard"
    folder: Path = Path()
    _values: Any = None  # TensorBoard's EventFileWriter
    _events: Any = None

    def begin(self, run: TrackedRun) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self.folder = folder_of(self.written, run)
        resumed = self.folder.exists()
        self._values = self._writer(self.folder)
        if not resumed:
            self.rewind(0)  # TensorBoard drops values at every start of a session but the first
            # The fields of a run that decide its numbers do not change.
            lines = [f"| {name} | {value} |" for name, value in flat_config(run.config).items()]
            table = "\n".join(["| field | value |", "|---|---|", *lines])
            self._write(self._values, text_pb("config", table), 0, time.time())
        say_where(self.say, self.name, f"tensorboard --logdir {self.folder}")

    def rewind(self, step: int) -> None:
        """Drop the values from `step` on, as TensorBoard does when a session starts again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._values.add_event(Event(wall_time=time.time(), step=step, session_log=start))

    def log(self, rows: Sequence[LoggedValues]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            # Scalars of the first format: `rewind` drops no others in all of TensorBoard's readers.
            values = [Summary.Value(tag=tag, simple_value=v) for tag, v in row.values.items()]
            self._write(self._values, Summary(value=values), row.step, row.t)
        self._values.flush()

    def alert(self, alert: Alert) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        if self._events is None:
            self._events = self._writer(self.folder / EVENTS)
        self._write(self._events, text_pb(alert.event, alert.words), alert.step, alert.t)
        self._events.flush()

    def summarize(self, values: dict[str, float | str]) -> None:
        """Do nothing: TensorBoard shows series, and those have the values."""

    def end(self, result: str, well: bool) -> None:
        for writer in (self._values, self._events):
            if writer is not None:
                writer.close()

    def _writer(self, folder: Path) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # TensorBoard reads files by name, which begins with the second: one file in a second.
        while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        return EventFileWriter(str(folder), max_queue_size=QUEUED)

    def _write(self, writer: Any, summary: Any, step: int, t: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        writer.add_event(Event(wall_time=t, step=step, summary=summary))
