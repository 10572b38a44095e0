"""A run in the terminal while it trains: a live screen, or plain lines where there is no screen."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.status import Status

from penstock import output
from penstock.launch.prepare.listener import Listener
from penstock.ledger.causes import Cause
from penstock.ledger.journal.records import journal_files
from penstock.plan.job.layout import Layout
from penstock.policy.straggler import StragglerChange
from penstock.run.diff import describe, length_words
from penstock.run.folder import RunFolder
from penstock.secret import redact
from penstock.style import format_duration, format_loss, plural
from penstock.watch.facts.view import View
from penstock.watch.outlets.process import Elsewhere
from penstock.watch.style.console import RedactedConsole
from penstock.watch.style.text import dataset_text, model_text, printable
from penstock.watch.terminal.actions import Deeds
from penstock.watch.terminal.keys import in_foreground
from penstock.watch.terminal.screen import Screen

if TYPE_CHECKING:
    from penstock.launch.prepare.resume import How

REFRESH_S = 1.0
PLAIN_S = 10.0
# Of a core, for reading the journal and drawing: the cores belong to the ranks.
SHARE = 0.01
LEAST = (40, 8)  # columns and lines of a terminal that a screen fits in


class Terminal(Listener):
    """Shows a launch on `console`: a screen with keys, or a line now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None  # the screen, from the first look on
        self.deeds: Deeds | None = None  # as long as there is a screen
        self.folder: RunFolder | None = None
        self.view: View | None = None  # the last reading
        self.next_s = 0.0
        self.size = console.size
        self.stage: Status | None = None  # what is done before the launch
        self.shown_step = -1
        self.announced: int | None = None  # step that the run was said to go on from
        self.said: list[tuple[str, str]] = []  # behind the screen, to be printed when it goes
        self.elsewhere = Elsewhere()

    def found(self, machine: str) -> None:
        self.console.print(machine)

    def warning(self, words: str) -> None:
        self._tell(f"warning: {words}", style="yellow")

    def progress(self, what: str, done: int, total: int) -> None:
        text = f"{what}: {done:,} of {total:,}"
        if self.stage is None:
            self.stage = self.console.status(text)
            if self.console.is_terminal:
                self.stage.start()
        self.stage.update(text)
        if done >= total:
            self.console.print(f"  {text}", style="dim", markup=False)

    def going_on(self, how: "How", folder: RunFolder) -> None:
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
                f"{length_words(how.run)}, by an earlier command line or run file.",
                style="dim",
                markup=False,
            )
        if how.finished:
            return
        if how.exists and not _was_launched(how, plan := folder.read_plan(), folder):
            if "forked_from" not in plan:
                return  # another host begins it in this moment
            origin = plan["forked_from"]  # of a fork that was never launched
            self.console.print(
                f"run '{folder.name}' begins at step {how.step} of '{origin['run']}'", markup=False
            )
        elif how.exists:
            self.console.print(f"run '{folder.name}' exists and goes on from {_from(how)}")
            self.announced = how.step if how.run.cluster.nodes == 1 else None
            if how.changes:
                self.console.print(describe(list(how.changes)), style="dim", markup=False)
            if any(change.field.startswith("train.") for change in how.changes):
                self.console.print(
                    "  longer: the schedule is stretched, so the learning rate, and with it the "
                    "loss, rises again first",
                    style="dim",
                )

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        layout, model = plan["layout"], model_text(plan)
        self.console.print(
            f"{folder.name}: {model}, {dataset_text(plan['dataset'])}, {plan['steps']} steps of "
            f"{plan['batch_tokens']:,} tokens on {plural(plan['ranks'], 'rank')} "
            f"({Layout(**layout).ways}) → {folder.path}",
            markup=False,
        )
        self.folder = folder
        self.elsewhere.launching(folder, plan)
        self._end_stage()

    def tick(self) -> None:
        if self.folder is None:
            return
        try:
            self._look(self.folder)
        except BaseException:
            self._leave()  # what is said of it is to be seen
            raise

    def _look(self, folder: RunFolder) -> None:
        # Only now: whoever calls this hears signals, so the terminal is put back after one.
        if self.live is None and self.view is None and has_room(self.console):
            self.deeds = Deeds(folder)
            self.live = Live(console=self.console, screen=True, auto_refresh=False)
            self.live.start()
        if self.deeds and (self.deeds.heard() or self.console.size != self.size):
            self._draw()
        if time.monotonic() < self.next_s:
            return
        began = time.thread_time()
        view = self.view = View(folder)
        self._correct(view)
        if self.live:
            self._draw()
        elif view.step != self.shown_step and len(view.curve):
            self.console.print(line(view), markup=False)
            self.shown_step = view.step
        pause = REFRESH_S if self.live or not len(view.curve) else PLAIN_S
        self.next_s = time.monotonic() + max(pause, (time.thread_time() - began) / SHARE)

    def _correct(self, view: View) -> None:
        """Say which checkpoint was loaded, if it is not the one that was announced."""
        if self.announced is None or view.resumed_from is None:
            return
        if view.resumed_from != self.announced:
            problems = [str(e.payload["problem"]) for e in view.told("checkpoint_rejected")[-3:]]
            why = f" ({'; '.join(problems)})" if problems else ""
            self._tell(f"went on from step {view.resumed_from} instead{why}", "yellow")
        self.announced = None

    def _draw(self) -> None:
        if self.live and self.deeds and self.view:
            self.size = self.console.size
            self.live.update(Screen(self.view, self.deeds.foot()), refresh=True)

    # The end, and what is said meanwhile

    def _end_stage(self) -> None:
        if self.stage:
            self.stage.stop()
            self.stage = None

    def _leave(self) -> None:
        """Puts the terminal back, and tells what was said behind the screen."""
        live, deeds, self.live, self.deeds = self.live, self.deeds, None, None
        try:
            if live:
                with contextlib.suppress(OSError):  # the terminal itself may be gone
                    live.stop()
        finally:
            if deeds:
                deeds.close()
        said, self.said = self.said, []
        for words, style in said:
            self.console.print(words, style=style, markup=False)

    def problem(self) -> str:
        return output.problem()

    def close(self) -> None:
        try:
            self._end_stage()
            self._leave()
        finally:
            said = self.elsewhere.ended()
        for words in said:
            self._tell(words, "dim")

    def _tell(self, words: str, style: str = "") -> None:
        words = redact(printable(words))  # the reason of a fault may hold anything
        if self.live:
            self.said.append((words, style))
            self.next_s = 0.0  # the screen shows it too, as an event
        else:
            self.console.print(words, style=style, markup=False)

    def fault(self, rank: int, reason: str, action: str) -> None:
        after = "giving up" if action == "give_up" else action.replace("restart", "restarting", 1)
        self._tell(f"fault: rank {rank}: {reason.rstrip('.')}; {after}", "red")

    def told(self, words: str) -> None:
        self._tell(words, "dim")
        if self.deeds:
            self.deeds.say(words)

    def straggler(self, change: StragglerChange) -> None:
        words = f"takes {change.factor:.2f} times as long as the others for its own work"
        told = f"slow: rank {change.rank} {words}" if change.slow else f"rank {change.rank} is fine"
        self._tell(told, "yellow" if change.slow else "")

    def over_budget(self, words: str) -> None:
        self._ending()
        self._tell(f"{words} is reached: saving and stopping", "yellow")

    def stopping(self) -> None:
        self._ending()
        if self.live is None:
            self._tell("stopping: saving first; once more ends it at once", "yellow")

    def _ending(self) -> None:
        self.next_s = 0.0
        if self.deeds:
            self.deeds.ending = True


@contextmanager
def closed_at_the_end(displays: Sequence[Terminal]) -> Iterator[None]:
    """The last display is closed, and the terminal put back, whatever ends the block.

    The supervisor hears SIGTERM while ranks run; before and after, it is to end the block too.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    deaf = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if deaf:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for display in displays[-1:]:
            try:
                display.close()
            except Exception as error:  # what the run came to is worth more
                sys.stderr.write(f"the display could not be closed: {error}\n")
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _was_launched(how: "How", plan: dict[str, Any], folder: RunFolder) -> bool:
    """Return whether ranks of the run were started before; a plan that was made again after damage
    has no layout yet."""
    return "layout" in plan or (how.run.cluster.nodes == 1 and bool(journal_files(folder.journal)))


def has_room(console: Console) -> bool:
    """Whether a screen can be drawn: a terminal of some size, whose foreground is this process."""
    if not console.is_terminal or console.is_dumb_terminal or console.options.ascii_only:
        return False
    try:
        file = console.file.fileno()
    except (OSError, ValueError):
        return False
    return in_foreground(file) and console.width >= LEAST[0] and console.height >= LEAST[1]


def line(view: View) -> str:
    parts = [f"step {view.step}/{view.steps}", f"loss {format_loss(view.loss)}"]
    if view.validation:
        step, value = view.validation[-1]
        earlier = f" (step {step})" if step < view.step else ""
        parts.append(f"val {format_loss(value)}{earlier}")
    if view.tokens_per_s:
        parts.append(f"{view.tokens_per_s:,.0f} tok/s")
    if view.left_s is not None:
        parts.append(f"{format_duration(view.left_s)} left")
    return "  ".join([*parts, *skipped(view), causes(view)])


def _from(how: "How") -> str:
    """Name the checkpoint that a run goes on from."""
    saved = f"step {how.step} ({how.tier})" if how.step else "the first step"
    if how.run.cluster.nodes > 1:  # each host knows only its own memory until they meet
        return f"{saved}, or from newer copies in the memory of its hosts"
    return saved if how.step else f"{saved} (nothing was saved yet)"


def skipped(view: View) -> list[str]:
    many = len(view.skipped)
    return [f"{plural(many, 'damaged block')} skipped"] if many else []


def causes(view: View, most: int = 4) -> str:
    """The largest causes so far, as shares."""
    shares = {c: view.account.ledger.share(c) or 0.0 for c in Cause}
    largest = sorted(shares, key=lambda c: -shares[c])[:most]
    return " ".join(f"{c} {shares[c]:.0%}" for c in largest if shares[c] >= 0.005)


def for_stdout(quiet: bool) -> Terminal:
    """The display of `penstock train`; with --json it goes to stderr, stdout is for programs."""
    return Terminal(
        RedactedConsole(stderr=quiet, highlight=False, soft_wrap=not sys.stdout.isatty())
    )
