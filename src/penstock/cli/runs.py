"""`ls`, `status`, `logs`, `stop`, `report`: the runs, now."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from penstock.cli.show import Json, err, is_stdout, out, print_json, print_table, write_page
from penstock.errors import PenstockError, system_error
from penstock.launch.engines.engine import JOB_LOGS, far_logs, read_submission
from penstock.launch.engines.table import job_of
from penstock.run.folder import RunFolder, find_run, list_runs
from penstock.run.load import load
from penstock.secret import redact
from penstock.style import format_loss
from penstock.watch.facts.rounds import round_facts
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.html import page
from penstock.watch.report.screen import screen, summary
from penstock.watch.terminal.display import progress_line
from penstock.watch.web.sections import UNREADABLE

T = TypeVar("T")
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name, folder or run file of a run.")]
Root = Annotated[str, typer.Option("--dir", help="Where the runs live.")]


def ls(root: Root = "runs", json: Json = False) -> None:
    """List the runs."""
    if not root:
        raise PenstockError("--dir '': names no folder; name one, or leave it out")
    unlisted: list[OSError] = []
    found = list_runs(root, unlisted)
    unreadable: list[Exception] = [*unlisted]
    if json:
        told = [one for f in found if (one := _or_noted(partial(summary, f), unreadable))]
        print_json(told)
        _note(unreadable)
        return
    if not found and not unreadable:
        out.print(
            f"no runs in {root}/; `penstock init` writes a run file, `penstock train` runs it"
        )
        return
    table = Table("run", "status", "step", "loss", "validation", "tokens/s", box=None)
    for folder in found:
        if row := _or_noted(partial(_row, RunView(folder)), unreadable):
            table.add_row(*row)
    print_table(table)
    _note(unreadable)


def _row(view: RunView) -> list[str]:
    validation = format_loss(view.validation[-1][1] if view.validation else None)
    speed = f"{view.tokens_per_s:,.0f}" if view.tokens_per_s else "–"
    step = f"{view.step}/{view.steps}"
    return [view.folder.name, view.status, step, format_loss(view.loss), validation, speed]


def _or_noted(read: Callable[[], T], unreadable: list[Exception]) -> T | None:
    """Return what can be read; a run that cannot be read must not hide the others."""
    try:
        return read()
    except UNREADABLE as error:
        unreadable.append(error)
        return None


def _note(unreadable: Sequence[Exception]) -> None:
    for error in unreadable:
        words = system_error(error) if isinstance(error, OSError) else _damage(error)
        sys.stderr.write(f"note: left out: {words}\n")


def _damage(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return str(error)
    return redact(f"damaged, or of another version ({type(error).__name__}: {str(error)[:200]})")


@contextmanager
def _in_words(folder: RunFolder) -> Iterator[None]:
    """Turn the errors of a damaged folder into one message without a traceback."""
    try:
        yield
    except (PenstockError, OSError):
        raise
    except UNREADABLE as error:
        if os.environ.get("PENSTOCK_TRACEBACK"):
            raise
        raise PenstockError(f"{folder.path}: {_damage(error)}") from None


def status(run: RunName, root: Root = "runs", json: Json = False) -> None:
    """Show one line on a run."""
    folder = find_run(run, root)
    with _in_words(folder):
        if json:
            print_json(summary(folder))
            return
        view = RunView(folder)
        detail = progress_line(RunFacts(view)) if len(view.curve) else "no step yet"
        said = f"{folder.name}: {view.status}  {detail}"
        if told := round_facts(view):
            said += f"  {told.words()}"
        if view.job and view.job.words:
            said += f"  ({view.job.words})"
    out.print(said, markup=False)


def report(
    run: RunName,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as a page with pictures; - prints it."),
    ] = None,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Show where everything went: plan and actual, energy, cost, faults, what to change."""
    folder = find_run(run, root)
    printed = is_stdout(html, "--html", json)
    with _in_words(folder):
        made = page(folder) if html is not None else ""
        found = summary(folder) if json else None
        shown = screen(folder) if html is None and not json else None
    if html is not None:
        write_page(html, made)
        if printed:
            return
    if found is not None:
        print_json(found)
    elif html is not None:
        out.print(f"wrote {html}", markup=False)
    else:
        out.print(shown)


def logs(
    run: RunName,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    attempt: Annotated[
        int | None, typer.Option(help="Only this attempt; default: the last.")
    ] = None,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Show what the ranks printed."""
    printed = [
        {"title": title, "file": str(path), "text": text}
        for path, title in _log_files(find_run(run, root), rank, attempt)
        if (text := redact(path.read_text(errors="replace").strip()))
    ]
    if json:
        print_json(printed)
        return
    for one in printed:
        sys.stdout.write(f"== {one['title']}\n{one['text']}\n")
    if not printed:
        err.print("nothing was printed")


def stop(
    run: RunName,
    now: Annotated[
        bool,
        typer.Option("--now", help="End the job of a submitted run at once, without a save."),
    ] = False,
    root: Root = "runs",
    json: Json = False,
) -> None:
    """Ask a running run to save and stop."""
    folder = find_run(run, root)
    said = _stop_job(folder, now) or _ask_to_stop(folder, now)
    if json:
        print_json({"run": folder.name, "said": said})
    else:
        out.print(said, markup=False)


def _ask_to_stop(folder: RunFolder, now: bool) -> str:
    """Ask the supervisor of a run that no engine started; return what was done."""
    if now:
        raise PenstockError(f"--now: run '{folder.name}' has no job of an engine; leave it out")
    if not folder.running():
        raise PenstockError(f"run '{folder.name}' is not running ({RunView(folder).status})")
    folder.request("stop")
    return f"asked '{folder.name}' to save and stop after its current step"


def _stop_job(folder: RunFolder, now: bool) -> str:
    """Stop a run by the engine that started it; return what was done, or "" where none runs it."""
    from penstock.launch.follow import stop_job

    submission, state = read_submission(folder.path), job_of(folder.path)
    if submission is None or state is None or state.phase == "ended":
        return ""
    if state.phase == "unknown" and not now:
        raise PenstockError(
            f"job {submission.job} of run '{folder.name}': {state.words}; try again when "
            f"{submission.engine} answers"
        )
    run = load(folder.run_file, [{"name": folder.name, "dir": str(folder.path.parent)}])
    return stop_job(run, submission, state, now)


def _log_files(
    folder: RunFolder, rank: int | None, attempt: int | None
) -> Iterator[tuple[Path, str]]:
    numbers = sorted(int(p.name.removeprefix("attempt-")) for p in folder.logs.glob("attempt-*"))
    if attempt is None and rank is None:
        for path in sorted(folder.logs.glob(f"{JOB_LOGS}*")):
            yield path, f"node output, {path.name}"
    if not numbers and any(folder.logs.glob(f"{JOB_LOGS}*")):
        return
    if not numbers and (submission := read_submission(folder.path)) and far_logs(submission):
        raise PenstockError(
            f"run '{folder.name}': its nodes print on other machines; `{far_logs(submission)}` "
            "shows it"
        )
    if not numbers:
        raise PenstockError(f"run '{folder.name}' has printed nothing yet: {folder.logs} is empty")
    chosen = numbers[-1] if attempt is None else attempt
    if chosen not in numbers:
        raise PenstockError(f"no attempt {chosen} of run '{folder.name}'; there are {numbers}")
    files = sorted(
        (int(path.stem.removeprefix("rank-")), path.suffix, path)
        for path in (folder.logs / f"attempt-{chosen}").glob("rank-*.*")
    )
    there = sorted({number for number, _, _ in files})
    if rank is not None and rank not in there:
        known = f"there are ranks {', '.join(map(str, there))}" if there else "there is none"
        raise PenstockError(
            f"--rank {rank}: run '{folder.name}' has no log of it in attempt {chosen}; {known}"
        )
    for number, suffix, path in files:
        if rank in (None, number):
            yield path, f"attempt {chosen}, rank {number}, std{suffix[1:]}"
