"""C4 removes lines and counts sentences; FineWeb judges the lines that are left."""

from dataclasses import replace

import pytest

from penstock.data.clean.config import C4, Filters, FineWeb
from penstock.data.clean.filters import run_filters

ONLY = Filters(gopher_repetition=None, gopher_quality=None, fineweb=None)
LOOSE = C4(terminal_punctuation=False, min_sentences=None)
FIVE = "One is here now. Two is here! Three is it? Four is here. Five is here."


def left(text: str, config: C4) -> str:
    return run_filters([text], replace(ONLY, c4=config)).texts[0]


@pytest.mark.parametrize(
    ("line", "switch"),
    [
        ("No end mark on this line", {"terminal_punctuation": False}),
        ("An ellipsis ends this line...", {"terminal_punctuation": False}),
        ("Two words.", {"min_line_words": None}),
        ("x" * 1001 + " is too long.", {"max_word_characters": None}),
        ("Please enable JavaScript here now.", {"javascript": False}),
        ("We USE cookies on this site.", {"notices": False}),
        ("Read the Terms of Use first.", {"notices": False}),
    ],
)
def test_a_line_is_removed_by_its_own_rule_only(line: str, switch: dict[str, bool | None]) -> None:
    text = f"{FIVE}\n{line}\n{FIVE}"
    assert left(text, C4()) == f"{FIVE}\n{FIVE}"
    assert left(text, replace(C4(), **switch)) == text  # type: ignore[arg-type]


def test_citations_are_removed_from_inside_a_line() -> None:
    text = "It was so.[1] It was not[citation needed] so.[23]"
    assert left(text, C4(min_sentences=None)) == "It was so. It was not so."
    kept = left(text, C4(min_sentences=None, citations=False))
    assert kept == ""  # the line ends in a bracket
    assert left(text, replace(LOOSE, citations=False)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FIVE, None),
        (FIVE + "\nLorem Ipsum is a text.", "lorem_ipsum"),
        (FIVE + "\nif (a) { b }.", "curly_bracket"),
        (FIVE + "\nif (a) { b }", None),  # the line goes before it is looked at
        (FIVE[: FIVE.rindex(" Five")], "few_sentences"),
        ("", "few_sentences"),
    ],
)
def test_documents_are_dropped_by_name(text: str, reason: str | None) -> None:
    assert run_filters([text], ONLY).reason(0) == (reason and f"c4.{reason}")


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One here. Two here.", 2),
        ('He said "no." Then he left.', 2),
        ("Pi is 3.14 and e.g. this is Mr. Smith.", 1),
        ("Wait... what?! Really.", 2),
        ("So it is.) ] Then more.", 2),
    ],
)
def test_sentences_are_counted(line: str, sentences: int) -> None:
    verdicts = run_filters(["Before it all.\n" + line, line], replace(ONLY, c4=C4()))
    assert verdicts.measures["c4.sentences"].tolist() == [1 + sentences, sentences]


def fineweb(text: str, config: FineWeb | None = None) -> tuple[str | None, dict[str, float]]:
    verdicts = run_filters([text], Filters(None, None, None, config or FineWeb()))
    return verdicts.reason(0), {k.split(".")[1]: float(v[0]) for k, v in verdicts.measures.items()}


LONG = "This is one long line of text number {} that ends with a full stop."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n".join(LONG.format(i) for i in range(9)), None),
        (" \n\t\n", "empty"),
        ("\n".join(LONG.format(i)[:-1] for i in range(9)), "few_punctuated_lines"),
        ("\n".join(f"Short line {i}." for i in range(9)), "short_lines"),
        ("\n".join(LONG.format(i % 8) for i in range(9)), "duplicate_characters"),
        ("\n\n\n\n\n\n".join(LONG.format(i) for i in range(9)), "many_lines"),
    ],
)
def test_fineweb_names_the_rule(text: str, reason: str | None) -> None:
    assert fineweb(text)[0] == (reason and f"fineweb.{reason}")


def test_fineweb_sees_the_lines_that_c4_left() -> None:
    good = "\n".join(LONG.format(f"{i}. It is so") for i in range(3))
    text = good + "\nHome" * 20
    off = Filters(None, None, None, FineWeb())
    assert run_filters([text], off).reason(0) == "fineweb.short_lines"
    verdicts = run_filters([text], replace(off, c4=C4()))
    alone = run_filters([good], off)
    assert verdicts.kept[0]
    for name, values in alone.measures.items():
        assert verdicts.measures[name][0] == values[0]


def test_words_are_counted_again_after_removing_citations() -> None:
    text = "It was so.[1] It was not so.[23]\nThis line has [4] some words too."
    config = Filters(None, None, LOOSE, FineWeb())
    again = run_filters(
        [run_filters([text], config).texts[0]], Filters(None, None, None, FineWeb())
    )
    found = run_filters([text], config).measures["fineweb.lines_per_word"][0]
    assert found == again.measures["fineweb.lines_per_word"][0] > 0
