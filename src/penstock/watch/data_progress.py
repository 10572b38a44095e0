"""A build in the terminal: a bar per stage, or a line now and then where there is no screen."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from penstock.watch.words import spoken

PLAIN_S = 10.0  # between two lines of a stage


class BuildProgress:
    """A `Watcher`. Rates are of this attempt: what an earlier one had done is not counted."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._began_s = self._next_s = 0.0
        self._documents = self._bytes = self._total_bytes = 0
        self._total_documents: int | None = None

    def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
        self._end()
        self._name, self._began_s = name, self._now()
        self._next_s = self._began_s + PLAIN_S
        self._documents = self._bytes = 0
        self._total_bytes, self._total_documents = total_bytes, total_documents
        if self._console.is_terminal:
            self._open_bars()
            assert self._bars is not None
            total = self._total()
            self._task = self._bars.add_task(name, total=total or None, facts="")

    def did(self, documents: int, bytes: int) -> None:
        self._documents += documents
        self._bytes += bytes
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=self._done(), facts=self._facts())
        elif self._now() >= self._next_s:
            self._next_s = self._now() + PLAIN_S
            self._console.print(f"  {self._name}: {self._facts()}", style="dim", markup=False)

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", style="yellow", markup=False)

    def close(self) -> None:
        self._end()
        if self._bars:
            self._bars.stop()
            self._bars = None

    def _open_bars(self) -> None:
        if self._bars is None:
            columns = ("[bold]{task.description:<26}", "{task.fields[facts]}")
            self._bars = Progress(
                TextColumn(columns[0]),
                BarColumn(24),
                TextColumn(columns[1]),
                console=self._console,
                transient=True,
            )
            self._bars.start()

    def _total(self) -> int:
        """Bytes where they are known: documents differ too much in length."""
        return self._total_bytes or self._total_documents or 0

    def _done(self) -> int:
        return self._bytes if self._total_bytes else self._documents

    def _facts(self) -> str:
        seconds = max(self._now() - self._began_s, 1e-9)
        done, total = self._done(), self._total()
        facts = [f"{self._documents:,} documents", *_rates(self._documents, self._bytes, seconds)]
        if total and 0 < done < total:
            facts += [f"{done / total:.0%}", f"{spoken(seconds / done * (total - done))} left"]
        return "  ".join(facts)

    def _end(self) -> None:
        """One line that stays: what the stage did."""
        if not self._name:
            return
        seconds = max(self._now() - self._began_s, 1e-9)
        did = f"{self._documents:,} documents" if self._documents else "done"
        rates = _rates(self._documents, self._bytes, seconds)
        line = "  ".join([f"{did} in {spoken(seconds)}", *rates])
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        self._console.print(f"  {self._name:<26} {line}", style="dim", markup=False)
        self._name = ""


def _rates(documents: int, bytes: int, seconds: float) -> list[str]:
    rates = [f"{documents / seconds:,.0f}/s"] if documents else []
    return rates + ([f"{bytes / seconds / 1e6:,.1f} MB/s"] if bytes else [])
