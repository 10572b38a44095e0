"""A run in the terminal while it trains: a live screen, or plain lines where there is no screen."""

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from penstock.launch.listener import Listener
from penstock.ledger.causes import Cause
from penstock.plan.layout import Layout
from penstock.policy.straggler import Change
from penstock.run.diff import describe
from penstock.run.folder import RunFolder
from penstock.watch.outlets import Elsewhere
from penstock.watch.view import View
from penstock.watch.words import dataset, loss, plural, size, spoken

if TYPE_CHECKING:
    from penstock.launch.resume import How

REFRESH_S = 0.5
PLAIN_S = 10.0
# Reading the journal may take at most this share of the time: the cores belong to the ranks.
READ_SHARE = 0.02


class Terminal(Listener):
    """Shows a launch on `console`; `screen` and `lines` differ only in how a reading is drawn."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live: Live | None = None
        self.folder: RunFolder | None = None
        self.next_s = 0.0
        self.stage: Status | None = None  # what is done before the launch
        self.shown_step = -1
        self.elsewhere = Elsewhere()

    def found(self, machine: str) -> None:
        self.console.print(machine)

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
        if how.finished:
            self.console.print(
                f"run '{folder.name}' has finished at step {how.step}; nothing to do. Train it "
                "further with a larger train.tokens (or steps, epochs), or anew with --fresh or "
                "another name."
            )
        elif how.exists and "layout" not in (plan := folder.read_plan()):
            if "forked_from" not in plan:
                return  # another host begins it in this moment
            origin = plan["forked_from"]  # of a fork that was never launched
            self.console.print(
                f"run '{folder.name}' begins at step {how.step} of '{origin['run']}'", markup=False
            )
        elif how.exists:
            where = f"step {how.step}" if how.step else "the first step (no checkpoint yet)"
            self.console.print(f"run '{folder.name}' exists and goes on from {where}")
            if how.changes:
                self.console.print(describe(list(how.changes)), style="dim", markup=False)
            if any(change.field.startswith("train.") for change in how.changes):
                self.console.print(
                    "  longer: the schedule is stretched, so the learning rate, and with it the "
                    "loss, rises again first",
                    style="dim",
                )

    def launching(self, folder: RunFolder, plan: dict[str, Any]) -> None:
        layout, model = plan["layout"], size(plan)
        self.console.print(
            f"{folder.name}: {model}, {dataset(plan['dataset'])}, {plan['steps']} steps of "
            f"{plan['batch_tokens']:,} tokens on {plural(plan['ranks'], 'rank')} "
            f"({Layout(**layout).ways}) → {folder.path}",
            markup=False,
        )
        self.folder = folder
        self.elsewhere.launching(folder, plan)
        self._end_stage()
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()

    def tick(self) -> None:
        if self.folder is None or time.monotonic() < self.next_s:
            return
        began = time.monotonic()
        view = View(self.folder)
        if self.live:
            self.live.update(screen(view), refresh=True)
        elif view.step != self.shown_step and len(view.curve):
            self.console.print(line(view), markup=False)
            self.shown_step = view.step
        pause = REFRESH_S if self.live or not len(view.curve) else PLAIN_S
        self.next_s = time.monotonic() + max(pause, (time.monotonic() - began) / READ_SHARE)

    def _end_stage(self) -> None:
        if self.stage:
            self.stage.stop()
            self.stage = None

    def close(self) -> None:
        self._end_stage()
        if self.live:
            self.live.stop()
            self.live = None
        for words in self.elsewhere.ended():
            self.told(words)

    def fault(self, rank: int, reason: str, action: str) -> None:
        after = "giving up" if action == "give_up" else action.replace("restart", "restarting", 1)
        self.console.print(f"fault: rank {rank}: {reason}; {after}", style="red", markup=False)

    def told(self, words: str) -> None:
        self.console.print(words, style="dim", markup=False)

    def straggler(self, change: Change) -> None:
        words = f"takes {change.factor:.2f} times as long as the others for its own work"
        told = f"slow: rank {change.rank} {words}" if change.slow else f"rank {change.rank} is fine"
        self.console.print(told, style="yellow" if change.slow else "", markup=False)

    def over_budget(self, words: str) -> None:
        self.console.print(f"{words} is reached: saving and stopping", style="yellow", markup=False)

    def stopping(self) -> None:
        self.console.print("stopping: saving first; once more ends it at once", style="yellow")


def line(view: View) -> str:
    parts = [f"step {view.step}/{view.steps}", f"loss {loss(view.loss)}"]
    if view.validation:
        parts.append(f"val {loss(view.validation[-1][1])}")
    if view.tokens_per_s:
        parts.append(f"{view.tokens_per_s:,.0f} tok/s")
    if view.left_s is not None:
        parts.append(f"{spoken(view.left_s)} left")
    return "  ".join([*parts, *skipped(view), causes(view)])


def skipped(view: View) -> list[str]:
    many = len(view.skipped)
    return [f"{plural(many, 'damaged block')} skipped"] if many else []


def causes(view: View, most: int = 4) -> str:
    """The largest causes so far, as shares."""
    shares = {c: view.account.ledger.share(c) or 0.0 for c in Cause}
    largest = sorted(shares, key=lambda c: -shares[c])[:most]
    return " ".join(f"{c} {shares[c]:.0%}" for c in largest if shares[c] >= 0.005)


def screen(view: View) -> RenderableType:
    if not len(view.curve):
        waited = spoken(view.account.wall_s)
        return Text(f"starting the ranks … {waited}", style="dim")
    left = f"{spoken(view.left_s)} left" if view.left_s is not None else ""
    top = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, view.steps), completed=view.step, width=32)
    top.add_row(
        Text(view.folder.name, style="bold"), bar, f"step {view.step} of {view.steps}", left
    )
    numbers = Table.grid(padding=(0, 2))
    validation = f"validation {loss(view.validation[-1][1])}" if view.validation else ""
    numbers.add_row(
        f"loss [bold]{loss(view.loss)}[/]",
        sparkline(view),
        validation,
        f"{view.tokens_per_s or 0:,.0f} tokens/s",
        f"{view.mfu:.0%} MFU" if view.mfu is not None else "",
    )
    damage = [Text(words, style="yellow") for words in skipped(view)]
    return Group(top, numbers, *damage, Text(causes(view, most=6), style="dim"))


def sparkline(view: View, width: int = 24) -> str:
    """The loss since the beginning, in one line of blocks."""
    points = [float(x) for x in view.curve["loss"] if math.isfinite(x)] or [0.0]
    width = min(width, len(points))
    picked = [points[i * len(points) // width] for i in range(width)]
    low, high = min(picked), max(picked)
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[round((x - low) / max(high - low, 1e-9) * 7)] for x in picked)


def for_stdout(quiet: bool) -> Terminal:
    """The display of `penstock train`; with --json it goes to stderr, stdout is for programs."""
    return Terminal(Console(stderr=quiet, highlight=False, soft_wrap=not sys.stdout.isatty()))
