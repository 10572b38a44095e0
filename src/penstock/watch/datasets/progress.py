"""Progress of a build in the terminal: a bar per stage, or a line now and then without a screen."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from penstock.style import format_duration, plural

PLAIN_S = 10.0  # between two lines of a stage
_NAME = 26  # characters
_GAPS = 2  # between the columns of a bar's line
# Nouns of stages that do not count documents; empty: the count is not shown.
_NOUNS = {"shard": "", "copy": "file", "verify": "file"}


class BuildProgress:
    """A `BuildWatcher` and context manager; a stage that ends in an error is not shown as done.

    Rates are those of this attempt: work of an earlier attempt is not counted.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._began_s = self._next_s = 0.0
        self._documents = self._bytes = self._total_bytes = 0
        self._total_documents: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end(whole=kind is None)
        if self._bars:
            self._bars.stop()
            self._bars = None

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        self._end()
        stage, _, step = name.partition(": ")
        self._name = stage if step == stage else name
        self._began_s = self._now()
        self._next_s = self._began_s + PLAIN_S
        self._documents = self._bytes = 0
        self._total_bytes, self._total_documents = total_bytes, total_documents
        if self._console.is_terminal:
            self._open_bars()
            assert self._bars is not None
            self._task = self._bars.add_task(self._name, total=self._total() or None, facts="")

    def did(self, documents: int, bytes: int) -> None:
        # A step that starts over reports less than before; what was done stays done.
        self._documents = _more(self._documents, documents, self._total_documents)
        self._bytes = _more(self._bytes, bytes, self._total_bytes)
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=self._done(), facts=self._facts(self._room()))
        elif self._now() >= self._next_s:
            self._next_s = self._now() + PLAIN_S
            line = f"  {self._name}: {self._facts()}"
            self._console.print(line, style="dim", markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", style="yellow", markup=False, soft_wrap=True)

    def _open_bars(self) -> None:
        if self._bars is None:
            width = self._bar()
            self._bars = Progress(
                TextColumn(f"[bold]{{task.description:<{_NAME}}}"),
                BarColumn(width, table_column=Column(min_width=width)),
                TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
                console=self._console,
                transient=True,
            )
            self._bars.start()

    def _bar(self) -> int:
        return 24 if self._console.width >= 110 else 10

    def _room(self) -> int:
        """Return the characters that are free beside the name and the bar."""
        return max(self._console.width - _NAME - self._bar() - _GAPS, 0)

    def _total(self) -> int:
        """Return the total in bytes if they are known: documents differ too much in length."""
        return self._total_bytes or self._total_documents or 0

    def _done(self) -> int:
        return self._bytes if self._total_bytes else self._documents

    def _facts(self, room: int | None = None) -> str:
        """Return counts, rates and the time left; the least important are dropped if too long."""
        seconds = max(self._now() - self._began_s, 1e-9)
        done, total = self._done(), self._total()
        far = [f"{done / total:.0%}"] if total and 0 < done < total else []
        left = [f"{format_duration(seconds / done * (total - done))} left"] if far else []
        count = [counted] if (counted := self._counted()) else []
        each, size = self._rates(seconds)
        facts = [*count, *each, *size, *far, *left]
        for least in (each, size, count, left):
            if room is None or len("  ".join(facts)) <= room:
                break
            facts = [fact for fact in facts if fact not in least]
        return "  ".join(facts)

    def _counted(self) -> str:
        noun = _NOUNS.get(self._name, "document")
        return plural(self._documents, noun) if noun and self._documents else ""

    def _rates(self, seconds: float) -> tuple[list[str], list[str]]:
        each = [f"{self._documents / seconds:,.0f}/s"] if self._counted() else []
        return each, [f"{self._bytes / seconds / 1e6:,.1f} MB/s"] if self._bytes else []

    def _end(self, whole: bool = True) -> None:
        """Print one line that stays: what the stage did."""
        if not self._name:
            return
        seconds = max(self._now() - self._began_s, 1e-9)
        each, size = self._rates(seconds)
        did = self._counted() or "done"
        line = "  ".join([f"{did} in {format_duration(seconds)}", *each, *size])
        if not whole:
            line = f"stopped after {format_duration(seconds)}"
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        text = f"  {self._name:<{_NAME}} {line}"
        self._console.print(text, style="dim", markup=False, soft_wrap=True)
        self._name = ""


def _more(before: int, more: int, total: int | None) -> int:
    after = before + max(more, 0)
    return min(after, total) if total else after
