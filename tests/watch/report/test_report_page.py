"""The HTML report and its advice, for runs in every state and files cut anywhere."""

import json
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger.causes import Cause
from penstock.ledger.journal.writer import Journal
from penstock.run.load import load
from penstock.run.save import save
from penstock.watch.facts.advice import Advice, advice
from penstock.watch.facts.run_view import RunView
from penstock.watch.report.html import page
from penstock.watch.report.screen import screen, summary
from written_run import BEGIN, PLAN, Line, Written, planned, shown

T = 1_700_000_000.0
ENDED: Line = (60.0, "ended", {"result": "done"})


class Parsed(HTMLParser):
    """Every tag is closed, and all words are kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def told(written: Written) -> Parsed:
    return Parsed(page(written.folder))


def whole(home: Path, *more: Line) -> Written:
    plan = planned(2.0, compute=60.0, communicate=20.0, startup=12.0)
    made = Written(home, PLAN | {"predicted": plan})
    made.supervisor(*BEGIN, *more, ENDED)
    made.ranks(0, 1.0, range(1, 21))
    made.end(0, 54.0, result="done")
    return made


def test_a_page_stands_alone_and_says_what_the_screen_says(tmp_path: Path) -> None:
    made = whole(tmp_path)
    text, found = page(made.folder), told(made)
    assert "Plan against actual" in found.words
    assert "within the plan's band" in found.words
    assert "script" not in found.tags
    assert "http" not in text.replace("http-equiv", "")  # nothing is loaded from anywhere
    assert text.count("<svg") >= 12
    assert "c-data_wait" in text
    for one in advice(RunView(made.folder)):
        assert one.words in found.words
        assert one.words[:30] in shown(screen(made.folder))


def test_text_of_a_run_is_never_html_on_the_page(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>\x1b[31m'
    made = whole(tmp_path, (30.0, "fault", {"attempt": 0, "rank": 1, "reason": evil}))
    found = told(made)
    assert "script" not in found.tags
    assert 'rank 1: <script>alert("x")</script>\ufffd[31m' in found.words
    assert "\x1b" not in shown(screen(made.folder))
    assert "\x1b" not in page(made.folder)


@pytest.mark.parametrize("kind", ["new", "running", "killed"])
def test_every_state_has_a_page(tmp_path: Path, kind: str) -> None:
    made = Written(tmp_path)
    if kind != "new":
        made.supervisor(*BEGIN)
        made.ranks(0, 1.0, range(1, 5))
    if kind == "running":
        with made.folder.lock():
            assert "running" in told(made).words
    else:
        assert kind in told(made).words


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_files_that_were_cut_anywhere_have_a_report(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        made = whole(Path(name))
        for path in sorted(made.folder.journal.iterdir()):
            content = path.read_bytes()
            if data.draw(st.booleans()):
                path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        if data.draw(st.booleans()):
            content = made.folder.plan_file.read_bytes()
            made.folder.plan_file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        found = summary(made.folder)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert sum(found["ledger"].values()) == pytest.approx(found["wall_s"] * found["ranks"])
        assert shown(screen(made.folder))
        assert told(made).words


def test_a_run_file_that_was_cut_leaves_the_rest(tmp_path: Path) -> None:
    made = whole(tmp_path)
    made.folder.run_file.write_text("name = ")
    assert summary(made.folder)["steps"] == 20
    assert summary(made.folder)["advice"] == []
    assert "Plan against actual" in told(made).words


def advised(
    home: Path, parts: tuple[float, ...], run: str = "", peer: tuple[float, ...] | None = None
) -> dict[Cause, Advice]:
    """Of twenty steps of 2 s: fetch, compute, exchange, bubble."""
    made = Written(home)
    file = home / "other.toml"
    file.write_text(f'name = "hand"\n[model]\npreset = "llama-3m"\n{run}')
    save(load(file), made.folder.run_file)
    made.supervisor(*BEGIN, (46.0, "ended", {"result": "done"}))
    for rank, spent in enumerate((parts, peer or parts)):
        with Journal(made.folder.journal, 0, range(rank, rank + 1)) as journal:
            journal.event("ready", t=T + 6)
            for step in range(1, 21):
                journal.step(step, T + 4 + 2 * step, 2, *spent)
                if rank == 0:
                    journal.curve(step, 5.0, 1.0, 1e-3, 1000 * step)
    return {one.cause: one for one in advice(RunView(made.folder))}


def test_the_largest_cause_comes_first(tmp_path: Path) -> None:
    found = advised(tmp_path, (1.0, 0.6, 0.2, 0.2))
    assert next(iter(found)) is Cause.DATA_WAIT
    assert found[Cause.DATA_WAIT].saves_s == pytest.approx(20)
    assert "43% of the time" in found[Cause.DATA_WAIT].words  # 20 s of 46
    assert found[Cause.COMMUNICATE].field == "train.sync.compress"
    assert found[Cause.BUBBLE].field == "layout.microbatch"
    assert found[Cause.BUBBLE].value == 2


def test_advice_does_not_repeat_the_run_file(tmp_path: Path) -> None:
    found = advised(tmp_path, (0.0, 1.0, 1.0, 0.0), '[train.sync]\ncompress = "bf16"\n')
    assert found[Cause.COMMUNICATE].field == "train.batch_tokens"
    assert found[Cause.COMMUNICATE].value == 2 * 2048  # twice the run file's


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    found = advised(tmp_path, (0.0, 1.0, 1.0, 0.0), peer=(0.0, 1.9, 0.1, 0.0))
    assert "wait for rank 1" in found[Cause.PEER_WAIT].words


def test_unexplained_time_gets_the_advice_to_trace(tmp_path: Path) -> None:
    found = advised(tmp_path, (0.0, 1.0, 0.1, 0.0))
    assert found[Cause.UNEXPLAINED].field == "log.trace"
