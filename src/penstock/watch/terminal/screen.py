"""The screen of a run that trains: what one looks at for hours, fitted to any terminal.

Made of lines, so that it is as tall as there is room for: the chart and the last events take what
the rest leaves.
"""

import time
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from penstock.ledger.causes import Cause
from penstock.plan.job.layout import Layout
from penstock.style import CAUSE_COLOURS, format_duration, format_loss, plural
from penstock.watch.facts.event_text import told
from penstock.watch.facts.plan_vs_actual import held
from penstock.watch.facts.view import View
from penstock.watch.style.text import model_text
from penstock.watch.terminal.chart import Chart
from penstock.watch.terminal.facts import facts, plain, row

LEVELS = {"bad": "red", "warning": "yellow", "good": "green"}
WIDE = 112  # columns, from which the table by cause stands beside the chart
TABLE = 44  # its columns
LEAST_CHART, MOST_CHART, MOST_EVENTS = 4, 24, 8
HELP = (
    "s  save a checkpoint after this step",
    "q  save and stop (asks once); Ctrl-C does the same, twice ends at once",
    "o  open the page of this run in the browser",
    "h  this help",
)


@dataclass(frozen=True)
class Foot:
    """What the keys say, below everything."""

    keys: bool = False  # whether there are any
    note: str = ""  # the answer to the last one
    style: str = "cyan"
    help: bool = False


@dataclass
class Screen:
    """A reading of the run as a renderable of exactly the terminal's size."""

    view: View
    foot: Foot = field(default_factory=Foot)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        for number, line in enumerate(lines(self.view, self.foot, width, height)):
            if number:
                yield Segment.line()
            line.truncate(width, overflow="ellipsis", pad=True)
            line.end = ""
            yield line


def lines(view: View, foot: Foot, width: int, height: int) -> list[Text]:
    """At most `height` lines of the screen, and exactly that many where it is tall enough."""
    top = _headline(view, width)
    below = [*facts(view, width), *_asked(foot)]
    last = _keys(foot)
    events = _events(view)
    room = height - len(top) - len(below) - len(last)
    gaps = 2 if room > LEAST_CHART + 5 else 0
    room -= gaps
    many = min(len(events), MOST_EVENTS, max(1, room // 4))
    picture = _picture(view, width, min(MOST_CHART, room - many))
    gap = [Text()] * (gaps // 2)
    made = [*top, *gap, *picture, *gap, *below]
    left = height - len(made) - len(last)
    made += events[: max(0, min(left, MOST_EVENTS))]
    made += [Text()] * max(0, height - len(made) - len(last))
    return [*made[: height - len(last)], *last][:height]


def _headline(view: View, width: int) -> list[Text]:
    title = Text(view.folder.name, style="bold", no_wrap=True)
    about = f"  {model_text(view.plan)}" if view.plan else ""
    if "layout" in view.plan:
        about += f" on {view.plan.get('machine')}, {Layout(**view.plan['layout']).ways}"
    title.append(about, style="not bold dim")
    clock = format_duration(view.account.wall_s)
    title.truncate(max(1, width - len(clock) - 2), overflow="ellipsis", pad=True)
    title.append(f"  {clock}", style="not bold dim")
    return [title, _progress(view, width)]


def _progress(view: View, width: int) -> Text:
    share = min(1.0, view.step / view.steps) if view.steps else 0.0
    words = f" {share:4.0%}  step {view.step:,} of {view.steps:,}"
    if view.left_s is not None:
        at = time.localtime(time.time() + view.left_s)
        when = time.strftime("%H:%M" if view.left_s < 20 * 3600 else "%a %H:%M", at)
        words += f"  {format_duration(view.left_s)} left ({when})"
    columns = max(4, width - len(words) - 1)
    full = round(share * columns)
    made = Text("━" * full, style="green", no_wrap=True)
    made.append("━" * (columns - full), style="bright_black")
    return made.append(words, style="default")


def _picture(view: View, width: int, height: int) -> list[Text]:
    """The curve, with the plan against actual by cause beside it where there is room."""
    if not len(view.curve):
        waited = f"starting {plural(int(view.plan.get('ranks') or 0), 'rank')} …"
        return [Text(waited, style="dim"), *[Text()] * (height - 1)][: max(0, height)]
    if height < LEAST_CHART:
        return [_losses(view)][: max(0, height)]
    wide = width >= WIDE and height >= 8
    chart = Chart(width - TABLE if wide else width, height - 1)
    drawn = [_losses(view), *chart.draw(view.curve["step"], view.curve["loss"], view.validation)]
    if wide:
        table = _table(view, height)
        for line, cells in zip(drawn, table, strict=False):
            line.truncate(width - TABLE, pad=True)
            line.append_text(cells)
    return drawn


def _losses(view: View) -> Text:
    made = row("loss", (format_loss(view.loss), "bold green"))
    if view.validation:
        step, value = view.validation[-1]
        made.append(f"   validation {format_loss(value)}", style="yellow")
        made.append(f" at step {step:,}", style="dim")
        best = min(v for _, v in view.validation)
        if best < value:
            made.append(f", best {format_loss(best)}", style="dim")
    return made


def _table(view: View, height: int) -> list[Text]:
    """Time by cause for each rank: planned and measured."""
    ledger, ranks, plan = view.account.ledger, max(1, view.account.ranks), held(view)
    planned = {row.cause: row.predicted or 0.0 for row in plan.rows} if plan else {}
    head = f"   {'per rank':<13}{'planned':>9}{'actual':>10}{'share':>8}"
    made = [Text(head, style="dim", no_wrap=True)]
    for cause in sorted(Cause, key=lambda c: -ledger.seconds[c])[: height - 1]:
        share = ledger.share(cause) or 0.0
        if share < 0.0005 and planned.get(cause, 0.0) / ranks < 0.05:
            continue
        before = format_duration(planned[cause] / ranks) if plan else "–"
        line = Text(f"   {cause:<13}", style=CAUSE_COLOURS[cause].terminal, no_wrap=True)
        line.append(f"{_tight(before):>9}", style="dim")
        actual = _tight(format_duration(ledger.seconds[cause] / ranks))
        line.append(f"{actual:>10}{share:>8.1%}", style="default")
        made.append(line)
    return made


def _tight(words: str) -> str:
    """`2 min 05 s` in nine columns: `2m 05s`."""
    for long, short in ((" min", "m"), (" d", "d"), (" h", "h"), (" s", "s")):
        words = words.replace(long, short)
    return words


def _events(view: View) -> list[Text]:
    """The newest first."""
    made = []
    for one in [one for one in told(view, 4 * MOST_EVENTS) if one["kind"] != "trace"]:
        clock = time.strftime("%H:%M:%S", time.localtime(one["t"]))
        words = plain(one["words"])
        line = Text(clock, style="dim", no_wrap=True)
        made.append(line.append(f"  {words}", style=LEVELS.get(one["level"], "not dim default")))
    return made


def _asked(foot: Foot) -> list[Text]:
    if foot.help:
        return [Text(), *(Text(f"  {line}", style="cyan") for line in HELP), Text()]
    return []


def _keys(foot: Foot) -> list[Text]:
    if foot.note:
        return [Text(foot.note, style=foot.style, no_wrap=True)]
    if not foot.keys:
        return []
    made = Text(no_wrap=True)
    for key, what in (("s", "save now"), ("q", "stop"), ("o", "open the page"), ("h", "help")):
        made.append(f" {key} ", style="reverse dim").append(f" {what}   ", style="dim")
    return [made]
