"""Lists that the page's JavaScript repeats: they must be those of the Python files."""

import json
import re

from penstock.ledger.causes import Cause
from penstock.style import CAUSE_COLOURS, STATUS_LEVELS
from penstock.watch.facts.rank_health import WORDS
from penstock.watch.report.sweep import NOTE, NOTE_KIND
from penstock.watch.web.assets import CAUSES, FOLDER, asset

TONE_LEVELS = {"running": "active", "done": "good", "stopped": "warning", "bad": "bad", "": "dim"}


def constant(file: str, name: str) -> str:
    """Return the text of a constant of a script, on one line."""
    script = (FOLDER / file).read_text()
    found = re.search(rf"const {name} = (.*?);(?: //[^\n]*)?\n", script, re.DOTALL)
    assert found, f"{file} has no {name}"
    return " ".join(found[1].split())


def table(text: str) -> dict[str, str]:
    return dict(re.findall(r'[{,] "?([\w ]+?)"?: "([^"]*)"', text))


def test_the_page_has_the_causes_in_their_order() -> None:
    assert json.loads(constant("ranks.js", "CAUSES")) == [str(cause) for cause in Cause]


def test_the_page_has_the_states_of_a_rank() -> None:
    assert table(constant("ranks.js", "STATES")) == WORDS
    assert set(json.loads(constant("ranks.js", "WORST"))) == set(WORDS)


def test_the_page_shows_every_status_at_its_level() -> None:
    tones = table(constant("list.js", "TONES"))
    assert {status: TONE_LEVELS[tones.get(status, "")] for status in STATUS_LEVELS} == STATUS_LEVELS


def test_the_page_says_in_the_same_words_why_losses_are_not_compared() -> None:
    assert json.loads(constant("compare.js", "NOTE")) == NOTE
    assert json.loads(constant("compare.js", "NOTE_KIND")) == NOTE_KIND


def test_the_colours_of_the_causes_are_generated() -> None:
    content, kind = asset(CAUSES) or (b"", "")
    assert kind.startswith("text/css")
    for cause, colour in CAUSE_COLOURS.items():
        assert f"--{cause}: light-dark({colour.light}, {colour.dark});" in content.decode()
    for cause in Cause:  # nowhere else
        assert f"--{cause}:" not in (FOLDER / "page.css").read_text()
