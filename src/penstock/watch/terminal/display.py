"""The display of `penstock train`: a live screen, or plain lines if there is no terminal."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.status import Status

from penstock import output
from penstock.launch.prepare.listener import Listener
from penstock.ledger.journal.events import CheckpointRejected
from penstock.ledger.journal.records import journal_files
from penstock.plan.job.layout import Layout
from penstock.policy.straggler import StragglerChange
from penstock.run.diff import describe_changes, length_override
from penstock.run.folder import RunFolder
from penstock.run.launch_record import LaunchRecord
from penstock.secret import redact
from penstock.style import format_duration, format_loss, plural
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.outlets.process import OutletProcess
from penstock.watch.style.console import RedactedConsole
from penstock.watch.style.text import dataset_text, model_text, printable
from penstock.watch.terminal.key_actions import KeyActions
from penstock.watch.terminal.keys import in_foreground
from penstock.watch.terminal.screen import RunScreen

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import ResumeDecision

REFRESH_S = 1.0
PLAIN_S = 10.0
# Share of a core for reading the journal and drawing: the cores belong to the ranks.
SHARE = 0.01
LEAST = (40, 8)  # columns and lines that a screen needs


class TerminalDisplay(Listener):
    """Shows a launch on `console`: a screen with keys, or a line now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None  # the screen, from the first update on
        self.key_actions: KeyActions | None = None  # while there is a screen
        self.folder: RunFolder | None = None
        self.ask: Callable[[str], None] | None = None  # of a run on other machines
        self.facts: RunFacts | None = None  # the last reading
        self.next_s = 0.0
        self.size = console.size
        self.stage: Status | None = None  # work before the launch
        self.shown_step = -1
        self.announced: int | None = None  # step that the display said the run resumes from
        self.unsaid: list[tuple[str, str]] = []  # messages to print when the screen closes
        self.outlets = OutletProcess()

    def machine_found(self, machine: str) -> None:
        self.console.print(machine)

    def warning(self, words: str) -> None:
        self._say(f"warning: {words}", style="yellow")

    def progress(self, what: str, done: int, total: int) -> None:
        text = f"{what}: {done:,} of {total:,}"
        if self.stage is None:
            self.stage = self.console.status(text)
            if self.console.is_terminal:
                self.stage.start()
        self.stage.update(text)
        if done >= total:
            self.console.print(f"  {text}", style="dim", markup=False)

    def resuming(self, how: "ResumeDecision", folder: RunFolder) -> None:
        if how.gone:
            self.console.print(f"{how.gone} or another name.", markup=False)
        elif how.early:
            self.console.print(
                f"run '{folder.name}' has stopped early at step {how.step}, since its validation "
                "loss no longer improved; nothing to do. Go on with a larger evaluate.patience or "
                "without it, or train anew with --fresh or another name."
            )
        elif how.finished:
            self.console.print(
                f"run '{folder.name}' has finished at step {how.step}; nothing to do. Train it "
                "further with a larger train.tokens (or steps, epochs), or anew with --fresh or "
                "another name."
            )
        if how.asked:
            self.console.print(
                f"It was made longer than {how.asked} before: its length is "
                f"{length_override(how.run)}, by an earlier command line or run file.",
                style="dim",
                markup=False,
            )
        if how.finished:
            self.outlets.resuming(how, folder)
            return
        if how.exists and not _was_launched(how, launch := folder.read_launch_record(), folder):
            if launch.forked_from is None:
                return  # another host begins it in this moment
            origin = launch.forked_from.run  # of a fork that was never launched
            self.console.print(
                f"run '{folder.name}' begins at step {how.step} of '{origin}'", markup=False
            )
        elif how.exists:
            self.console.print(f"run '{folder.name}' exists and goes on from {_from(how)}")
            self.announced = how.step if how.run.cluster.nodes == 1 else None
            if how.changes:
                self.console.print(describe_changes(list(how.changes)), style="dim", markup=False)
            if any(change.field.startswith("train.") for change in how.changes):
                self.console.print(
                    "  longer: the schedule is stretched, so the learning rate, and with it the "
                    "loss, rises again first",
                    style="dim",
                )

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        self._say_launch(folder, LaunchRecord.from_json(plan))
        self.folder = folder
        self.outlets.launching(folder, plan)
        self._end_stage()

    def _say_launch(self, folder: RunFolder, launch: LaunchRecord) -> None:
        self.console.print(launch_line(folder, launch), markup=False)

    def queued(self, words: str) -> None:
        if self.live:
            self._say(words, "dim")
        elif not self.console.is_terminal:
            self.console.print(words, style="dim", markup=False)
        elif self.stage is None:
            self.stage = self.console.status(words)
            self.stage.start()
        else:
            self.stage.update(words)

    def following(
        self, folder: RunFolder, plan: dict[str, Any], ask: Callable[[str], None]
    ) -> None:
        self._end_stage()
        self._say_launch(folder, LaunchRecord.from_json(plan))
        self.folder, self.ask = folder, ask  # its outlets are on the nodes

    def detached(self, words: str) -> None:
        self._end_stage()
        self._leave()
        self._say(words)

    def tick(self) -> None:
        if self.folder is None:
            return
        try:
            self._update(self.folder)
        except BaseException:
            self._leave()  # so that the error is visible
            raise

    def _update(self, folder: RunFolder) -> None:
        # Not earlier: the caller now handles signals, so the terminal is restored after one.
        if self.live is None and self.facts is None and has_room(self.console):
            self.key_actions = KeyActions(folder, self.ask)
            self.key_actions.start()
            self.live = Live(console=self.console, screen=True, auto_refresh=False)
            self.live.start()
        if self.key_actions and (self.key_actions.poll() or self.console.size != self.size):
            self._draw()
        if time.monotonic() < self.next_s:
            return
        began = time.thread_time()
        view = RunView(folder)
        facts = self.facts = RunFacts(view)
        self._report_other_step(view)
        if self.live:
            self._draw()
        elif view.step != self.shown_step and len(view.curve):
            self.console.print(progress_line(facts), markup=False)
            self.shown_step = view.step
        pause = REFRESH_S if self.live or not len(view.curve) else PLAIN_S
        self.next_s = time.monotonic() + max(pause, (time.thread_time() - began) / SHARE)

    def _report_other_step(self, view: RunView) -> None:
        """Say which checkpoint was loaded if it is not the announced one."""
        if self.announced is None or view.resumed_from is None:
            return
        if view.resumed_from != self.announced:
            rejected = view.rank_events_of(CheckpointRejected)[-3:]
            problems = [line.event.problem for line in rejected]
            why = f" ({'; '.join(problems)})" if problems else ""
            self._say(f"went on from step {view.resumed_from} instead{why}", "yellow")
        self.announced = None

    def _draw(self) -> None:
        if self.live and self.key_actions and self.facts:
            self.size = self.console.size
            self.live.update(RunScreen(self.facts, self.key_actions.footer()), refresh=True)

    # The end, and messages meanwhile

    def _end_stage(self) -> None:
        if self.stage:
            self.stage.stop()
            self.stage = None

    def _leave(self) -> None:
        """Restore the terminal and print the messages that came while the screen was on."""
        live, key_actions, self.live, self.key_actions = self.live, self.key_actions, None, None
        try:
            if live:
                with contextlib.suppress(OSError):  # the terminal itself may be gone
                    live.stop()
        finally:
            if key_actions:
                key_actions.close()
        messages, self.unsaid = self.unsaid, []
        for words, style in messages:
            self.console.print(words, style=style, markup=False)

    def problem(self) -> str:
        return output.problem()

    def close(self) -> None:
        try:
            self._end_stage()
            self._leave()
        finally:
            messages = self.outlets.ended(say=lambda words: self._say(words, "dim"))
        for words in messages:
            self._say(words, "dim")

    def _say(self, words: str, style: str = "") -> None:
        words = redact(printable(words))  # the reason of a fault may hold anything
        if self.live:
            self.unsaid.append((words, style))
            self.next_s = 0.0  # the screen shows it too, as an event
        else:
            self.console.print(words, style=style, markup=False)

    def fault(self, rank: int, reason: str, action: str) -> None:
        after = "giving up" if action == "give_up" else action.replace("restart", "restarting", 1)
        self._say(f"fault: rank {rank}: {reason.rstrip('.')}; {after}", "red")

    def host_message(self, words: str) -> None:
        self._say(words, "dim")
        if self.key_actions:
            self.key_actions.show_note(words)

    def straggler(self, change: StragglerChange) -> None:
        words = f"takes {change.factor:.2f} times as long as the others for its own work"
        slow = f"slow: rank {change.rank} {words}"
        message = slow if change.slow else f"rank {change.rank} is fine"
        self._say(message, "yellow" if change.slow else "")

    def over_budget(self, words: str) -> None:
        self._ending()
        self._say(f"{words} is reached: saving and stopping", "yellow")

    def paused(self, words: str) -> None:
        self._say(words or "the pause is over: starting again", "yellow" if words else "dim")

    def resized(self, words: str) -> None:
        self._say(words, "yellow")

    def stopping(self) -> None:
        self._ending()
        if self.live is None:
            self._say("stopping: saving first; once more ends it at once", "yellow")

    def _ending(self) -> None:
        self.next_s = 0.0
        if self.key_actions:
            self.key_actions.stopping = True


@contextmanager
def close_at_the_end(displays: Sequence[TerminalDisplay]) -> Iterator[None]:
    """Close the last display and restore the terminal whatever ends the block.

    The supervisor handles SIGTERM while ranks run. Before and after, SIGTERM ends the block too.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    unhandled = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unhandled:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for display in displays[-1:]:
            try:
                display.close()
            except Exception as error:  # the result of the run is worth more
                sys.stderr.write(f"the display could not be closed: {error}\n")
        if unhandled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _was_launched(how: "ResumeDecision", launch: LaunchRecord, folder: RunFolder) -> bool:
    """Return whether ranks of the run were started before.

    A plan that was made again after damage has no layout yet.
    """
    return launch.launched or (how.run.cluster.nodes == 1 and bool(journal_files(folder.journal)))


def has_room(console: Console) -> bool:
    """Return whether a screen fits: in a large enough terminal, with this process in front."""
    if not console.is_terminal or console.is_dumb_terminal or console.options.ascii_only:
        return False
    try:
        file = console.file.fileno()
    except (OSError, ValueError):
        return False
    return in_foreground(file) and console.width >= LEAST[0] and console.height >= LEAST[1]


def launch_line(folder: RunFolder, launch: LaunchRecord) -> str:
    """Return what a launch trains, on what, and where its folder is."""
    return (
        f"{folder.name}: {model_text(launch)}, {dataset_text(launch.dataset)}, {launch.steps} "
        f"steps of {launch.batch_tokens:,} tokens on {plural(launch.ranks, 'rank')} "
        f"({Layout(**launch.layout).ways}) → {folder.path}"
    )


def progress_line(facts: RunFacts) -> str:
    """Return the state of a run in one line."""
    view = facts.view
    parts = [f"step {view.step}/{view.steps}", f"loss {format_loss(view.loss)}"]
    if view.validation:
        step, value = view.validation[-1]
        earlier = f" (step {step})" if step < view.step else ""
        parts.append(f"val {format_loss(value)}{earlier}")
    if view.tokens_per_s:
        parts.append(f"{view.tokens_per_s:,.0f} tok/s")
    if view.remaining_s is not None:
        parts.append(f"{format_duration(view.remaining_s)} left")
    return "  ".join([*parts, *filter(None, [facts.skipped_text]), _causes(facts)])


def _from(how: "ResumeDecision") -> str:
    """Name the checkpoint that a run resumes from."""
    saved = f"step {how.step} ({how.tier})" if how.step else "the first step"
    if how.run.cluster.nodes > 1:  # each host knows only its own memory until they meet
        return f"{saved}, or from newer copies in the memory of its hosts"
    return saved if how.step else f"{saved} (nothing was saved yet)"


def _causes(facts: RunFacts, most: int = 4) -> str:
    """Return the largest causes so far, as shares."""
    return " ".join(f"{row.cause} {row.share:.0%}" for row in facts.largest_shares[:most])


def display_for_stdout(quiet: bool) -> TerminalDisplay:
    """Return the display of `penstock train`; with --json it writes to stderr."""
    return TerminalDisplay(
        RedactedConsole(stderr=quiet, highlight=False, soft_wrap=not sys.stdout.isatty())
    )
