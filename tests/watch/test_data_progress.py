"""A build on a terminal and in a log."""

import io

from rich.console import Console

from penstock.watch.data_progress import PLAIN_S, BuildProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plain() -> tuple[BuildProgress, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    return BuildProgress(Console(file=text, width=120, highlight=False), clock), text, clock


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end():
    progress, text, clock = plain()
    progress.stage("clean", total_bytes=40_000_000, total_documents=None)
    progress.did(100, 1_000_000)
    assert text.getvalue() == ""
    clock.now_s += PLAIN_S
    progress.did(900, 9_000_000)
    line = "  clean: 1,000 documents  100/s  1.0 MB/s  25%  30 s left\n"
    assert text.getvalue() == line
    progress.did(1, 1)
    assert text.getvalue() == line
    clock.now_s += PLAIN_S
    progress.note("part-2.jsonl is cut off")
    progress.close()
    rest = text.getvalue().removeprefix(line).splitlines()
    assert rest == [
        "  part-2.jsonl is cut off",
        "  clean                      1,001 documents in 20 s  50/s  0.5 MB/s",
    ]


def test_a_stage_that_has_nothing_left_to_do_says_so():
    progress, text, _ = plain()
    progress.stage("read", 0, 0)
    progress.stage("clean", 0, None)
    progress.close()
    progress.close()
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["read", "done", "in", "0.0", "s"],
        ["clean", "done", "in", "0.0", "s"],
    ]


def test_a_terminal_shows_a_bar_and_keeps_the_lines():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, highlight=False)
    clock = Clock()
    progress = BuildProgress(console, clock)
    progress.stage("read", 100, 10)
    clock.now_s += 2
    progress.did(5, 50)
    progress.stage("clean", 0, 10)
    progress.did(10, 0)
    progress.close()
    shown = text.getvalue()
    assert "━" in shown
    assert "5 documents in 2.0 s" in shown
    assert "10 documents" in shown
