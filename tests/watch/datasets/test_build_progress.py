"""A build on a terminal and in a log."""

import io
import re

import pytest
from rich.console import Console

from penstock.watch.datasets.progress import PLAIN_S, BuildProgress


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
    with progress:
        pass
    rest = text.getvalue().removeprefix(line).splitlines()
    assert rest == [
        "  part-2.jsonl is cut off",
        "  clean                      1,001 documents in 20 s  50/s  0.5 MB/s",
    ]


def test_a_stage_that_has_nothing_left_to_do_says_so():
    progress, text, _ = plain()
    with progress:
        progress.stage("read", 0, 0)
        progress.stage("clean", 0, None)
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["read", "done", "in", "0.0", "s"],
        ["clean", "done", "in", "0.0", "s"],
    ]


def lines_of(text: io.StringIO) -> list[str]:
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_a_stage_that_an_error_ends_is_not_done():
    progress, text, clock = plain()
    progress.stage("read", 100, 10)
    progress.did(10, 100)
    progress.stage("clean", 100, 10)
    progress.did(5, 50)
    clock.now_s += 3
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert lines_of(text)[1:] == ["clean stopped after 3.0 s"]


def test_no_count_falls_or_goes_past_the_total():
    progress, text, clock = plain()
    with progress:
        progress.stage("deduplicate: sign", 1000, 100)
        clock.now_s += 1
        progress.did(100, 1000)
        progress.did(-100, -1000)
        progress.did(100, 1000)
        progress.stage("deduplicate: list copies", 1000, 100)
        progress.did(-2, -20)
    assert lines_of(text) == [
        "deduplicate: sign 100 documents in 1.0 s 100/s 0.0 MB/s",
        "deduplicate: list copies done in 0.0 s",
    ]


def test_only_documents_are_called_documents():
    progress, text, clock = plain()
    with progress:
        progress.stage("decontaminate: decontaminate", 0, 4)
        clock.now_s += 1
        progress.did(4, 0)
        progress.stage("shard", 0, 4)  # which counts pieces and copies
        progress.did(9, 0)
        progress.stage("copy", 0, 1)
        clock.now_s += 1
        progress.did(1, 0)
    assert lines_of(text) == [
        "decontaminate 4 documents in 1.0 s 4/s",
        "shard done in 0.0 s",
        "copy 1 file in 1.0 s 1/s",
    ]


@pytest.mark.parametrize(("width", "bar"), [(60, 10), (80, 10), (120, 24)])
def test_a_terminal_shows_a_bar_and_keeps_the_lines(width, bar):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, highlight=False)
    clock = Clock()
    with BuildProgress(console, clock) as progress:
        progress.stage("deduplicate: find copies", 100_000_000_000, 10_000_000)
        clock.now_s += 2000
        progress.did(5_000_000, 50_000_000_000)
        progress._bars.refresh()  # which a thread does now and then
        progress.stage("clean", 0, 10)
        progress.did(10, 0)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    bars = [line for line in re.split(r"[\r\n]+", shown) if "━" in line or "╸" in line]
    assert all(len(re.findall("[━╸╺]", line)) == bar for line in bars)
    assert [line for line in bars if "50%" in line and "33 min 20 s left" in line]
    assert max(map(len, bars)) <= width
    assert "5,000,000 documents in 33 min 20 s" in shown
    assert "10 documents" in shown
