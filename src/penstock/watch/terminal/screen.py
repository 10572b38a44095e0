"""The terminal screen of a run that trains, fitted to any size.

The chart and the newest events take the lines that the rest leaves.
"""

import time
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from penstock.ledger.journal.events import StepTraced
from penstock.style import (
    CAUSE_COLOURS,
    LEVEL_STYLES,
    format_duration,
    format_loss,
    format_percent,
    plural,
)
from penstock.watch.facts.event_lines import event_lines
from penstock.watch.facts.rewards import recent, training_rewards
from penstock.watch.facts.run_facts import RunFacts
from penstock.watch.facts.run_view import RunView
from penstock.watch.terminal.chart import BrailleChart
from penstock.watch.terminal.status_lines import one_line, row, status_lines

WIDE = 112  # columns, from which the table of causes stands beside the chart
TABLE = 44  # columns of that table
LEAST_CHART, MOST_CHART, MOST_EVENTS = 4, 24, 8
HELP = (
    "s  save a checkpoint after this step",
    "q  save and stop (asks once); Ctrl-C does the same, twice ends at once",
    "o  open the page of this run in the browser",
    "h  this help",
)


@dataclass(frozen=True)
class Footer:
    """The last line of the screen: the keys, or the answer to the last one."""

    keys: bool = False  # whether keys can be pressed
    note: str = ""  # the answer to the last key
    style: str = "cyan"
    help: bool = False


@dataclass
class RunScreen:
    """A rich renderable of exactly the size of the terminal."""

    facts: RunFacts
    footer: Footer = field(default_factory=Footer)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        for number, line in enumerate(lines(self.facts, self.footer, width, height)):
            if number:
                yield Segment.line()
            line.truncate(width, overflow="ellipsis", pad=True)
            line.end = ""
            yield line


def lines(facts: RunFacts, footer: Footer, width: int, height: int) -> list[Text]:
    """Return at most `height` lines of the screen, and exactly that many if it is tall enough."""
    view = facts.view
    top = _headline(view, width)
    below = [*status_lines(facts, width), *_help(footer)]
    last = _keys(footer)
    events = _events(view)
    room = height - len(top) - len(below) - len(last)
    gaps = 2 if room > LEAST_CHART + 5 else 0
    room -= gaps
    many = min(len(events), MOST_EVENTS, max(1, room // 4))
    picture = _chart(facts, width, min(MOST_CHART, room - many))
    gap = [Text()] * (gaps // 2)
    shown = [*top, *gap, *picture, *gap, *below]
    left = height - len(shown) - len(last)
    shown += events[: max(0, min(left, MOST_EVENTS))]
    shown += [Text()] * max(0, height - len(shown) - len(last))
    return [*shown[: height - len(last)], *last][:height]


def _headline(view: RunView, width: int) -> list[Text]:
    title = Text(view.folder.name, style="bold", no_wrap=True)
    about = f"  {view.model_text}" if view.model_text else ""
    if view.layout_text:
        about += f" on {view.launch.machine}, {view.layout_text}"
    title.append(about, style="not bold dim")
    clock = format_duration(view.account.wall_s)
    title.truncate(max(1, width - len(clock) - 2), overflow="ellipsis", pad=True)
    title.append(f"  {clock}", style="not bold dim")
    return [title, _progress(view, width)]


def _progress(view: RunView, width: int) -> Text:
    share = min(1.0, view.step / view.steps) if view.steps else 0.0
    words = f" {share:4.0%}  step {view.step:,} of {view.steps:,}"
    if view.remaining_s is not None:
        at = time.localtime(time.time() + view.remaining_s)
        when = time.strftime("%H:%M" if view.remaining_s < 20 * 3600 else "%a %H:%M", at)
        words += f"  {format_duration(view.remaining_s)} left ({when})"
    columns = max(4, width - len(words) - 1)
    full = round(share * columns)
    bar = Text("━" * full, style="green", no_wrap=True)
    bar.append("━" * (columns - full), style="bright_black")
    return bar.append(words, style="default")


def _chart(facts: RunFacts, width: int, height: int) -> list[Text]:
    """Return the loss curve, with the table of causes beside it if there is room."""
    view = facts.view
    if not len(view.curve):
        waited = f"starting {plural(view.launch.ranks, 'rank')} …"
        return [Text(waited, style="dim"), *[Text()] * (height - 1)][: max(0, height)]
    if height < LEAST_CHART:
        return [_losses(view)][: max(0, height)]
    wide = width >= WIDE and height >= 8
    chart = BrailleChart(width - TABLE if wide else width, height - 1)
    drawn = [_losses(view), *chart.lines(view.curve["step"], view.curve["loss"], view.validation)]
    if wide:
        table = _table(facts, height)
        for line, cells in zip(drawn, table, strict=False):
            line.truncate(width - TABLE, pad=True)
            line.append_text(cells)
    return drawn


def _losses(view: RunView) -> Text:
    line = row("loss", (format_loss(view.loss), "bold green"))
    if view.validation:
        step, value = view.validation[-1]
        line.append(f"   validation {format_loss(value)}", style="yellow")
        line.append(f" at step {step:,}", style="dim")
        best = min(v for _, v in view.validation)
        if best < value:
            line.append(f", best {format_loss(best)}", style="dim")
    if rewards := recent(training_rewards(view)):
        words = f"   margin {rewards.margin:.3f}, accuracy {format_percent(rewards.accuracy)}"
        line.append(words, style="dim")
    return line


def _table(facts: RunFacts, height: int) -> list[Text]:
    """Return the time of each rank by cause, planned and actual, the largest first."""
    head = f"   {'per rank':<13}{'planned':>9}{'actual':>10}{'share':>8}"
    rows = [Text(head, style="dim", no_wrap=True)]
    for cause_time in sorted(facts.by_cause, key=lambda one: -one.actual_s):
        if not cause_time.worth_a_row or len(rows) == height:
            continue
        planned = "–" if cause_time.planned_s is None else format_duration(cause_time.planned_s)
        line = Text(
            f"   {cause_time.cause:<13}",
            style=CAUSE_COLOURS[cause_time.cause].terminal,
            no_wrap=True,
        )
        line.append(f"{_tight(planned):>9}", style="dim")
        actual = _tight(format_duration(cause_time.actual_s))
        line.append(f"{actual:>10}{cause_time.share:>8.1%}", style="default")
        rows.append(line)
    return rows


def _tight(words: str) -> str:
    """Shorten `2 min 05 s` to `2m 05s`, which fits nine columns."""
    for long, short in ((" min", "m"), (" d", "d"), (" h", "h"), (" s", "s")):
        words = words.replace(long, short)
    return words


def _events(view: RunView) -> list[Text]:
    """Return the newest events first."""
    lines = []
    for event in event_lines(view, 4 * MOST_EVENTS):
        if event.kind == StepTraced.kind:
            continue
        clock = time.strftime("%H:%M:%S", time.localtime(event.t))
        words = one_line(event.words)
        line = Text(clock, style="dim", no_wrap=True)
        style = LEVEL_STYLES[event.level] or "not dim default"
        lines.append(line.append(f"  {words}", style=style))
    return lines


def _help(footer: Footer) -> list[Text]:
    if footer.help:
        return [Text(), *(Text(f"  {line}", style="cyan") for line in HELP), Text()]
    return []


def _keys(footer: Footer) -> list[Text]:
    if footer.note:
        return [Text(footer.note, style=footer.style, no_wrap=True)]
    if not footer.keys:
        return []
    line = Text(no_wrap=True)
    for key, what in (("s", "save now"), ("q", "stop"), ("o", "open the page"), ("h", "help")):
        line.append(f" {key} ", style="reverse dim").append(f" {what}   ", style="dim")
    return [line]
