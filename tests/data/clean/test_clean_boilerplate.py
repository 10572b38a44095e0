"""What goes from a page, by kind, and that prose, code and whole libraries stay."""

import sysconfig
import time
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean.boilerplate import Boilerplate, strip_boilerplate
from penstock.data.clean.phrases import MAYBE, SURE, phrase_kinds

BODY = [
    "The harbour lay still under the light of the moon, and the boats had come back early.",
    "Nobody could say who had lit the lamp at the end of the pier that night.",
    "In the morning it was gone, and with it the small grey boat of the old woman.",
    "They asked along the coast for weeks and heard nothing but old stories.",
    "So the lamp stayed where it was, and was lit again each year on the same night.",
    "Home is where the cookies are, she used to say, and nobody had ever disagreed.",
]
BY_KIND = {
    "cookies": [
        "We use cookies to give you the best experience on our website. Learn more",
        "By continuing to browse this site you agree to our use of cookies.",
        "Wir verwenden Cookies. Wenn Sie weitersurfen, stimmen Sie dem zu.",
        "Ce site utilise des cookies pour améliorer votre expérience.",
        "Utilizamos cookies propias para mejorar tu experiencia.",
        "Accept All Cookies",
    ],
    "navigation": [
        "Skip to main content",
        "Home | Products | About us | Contact",
        "Startseite · Produkte · Über uns · Impressum",
        "Home About Blog Contact",
        "↑ Back to top",
    ],
    "breadcrumbs": ["Home > News > Science", "You are here: Home » Recipes", "Accueil › Vie › Mer"],
    "share": ["Share this article", "Facebook Twitter LinkedIn", "Artikel teilen"],
    "subscribe": [
        "Subscribe to our newsletter",
        "Sign up for our weekly newsletter today!",
        "Get the latest stories delivered straight to your inbox.",
    ],
    "more": [
        "Read more »",
        "Continue reading →",
        "[Weiterlesen ...]",
        "Related articles",
        "続きを読む",
    ],
    "login": ["Forgot your password?", "Log in / Register", "¿Olvidaste tu contraseña?"],
    "comments": [
        "Leave a Reply",
        "Your email address will not be published. Required fields are marked *",
    ],
    "advertising": ["Story continues below advertisement"],
    "browser": ["You need to enable JavaScript to run this app."],
}
CASES = [(kind, line) for kind, lines in BY_KIND.items() for line in lines]


def stripped(
    lines: list[str], config: Boilerplate | None = None
) -> tuple[list[str], dict[str, int]]:
    found = strip_boilerplate(["\n".join(lines)], config or Boilerplate())
    return found.texts[0].split("\n"), found.counts[0]


@pytest.mark.parametrize(("kind", "line"), CASES)
def test_a_boilerplate_line_is_removed_and_counted(kind: str, line: str) -> None:
    assert stripped([line, *BODY]) == (BODY, {kind: 1})


@pytest.mark.parametrize(("kind", "line"), CASES)
def test_a_kind_that_is_off_stays(kind: str, line: str) -> None:
    every = [line, *BODY]
    assert stripped(every, Boilerplate(**{kind: False})) == (every, {})


def test_every_kind_has_a_switch() -> None:
    switches = {field.name for field in fields(Boilerplate)}
    assert set(phrase_kinds(SURE).values()) | set(phrase_kinds(MAYBE).values()) <= switches
    assert set(BY_KIND) | {"copyright", "pages"} == switches


def test_every_phrase_is_found() -> None:
    for phrase, kind in phrase_kinds(SURE).items():
        assert stripped([phrase.capitalize(), *BODY]) == (BODY, {kind: 1}), phrase
    for phrase, kind in phrase_kinds(MAYBE).items():
        menu = [phrase.capitalize(), "Sitemap", "About us", "Privacy policy"]
        assert kind in stripped([*menu, *BODY])[1], phrase
        assert stripped([*menu, *BODY])[0] == BODY, phrase


def test_no_phrase_is_both_sure_and_not() -> None:
    assert not phrase_kinds(SURE).keys() & phrase_kinds(MAYBE).keys()


def test_boilerplate_of_a_whole_page_is_removed() -> None:
    page = ["Skip to content", "Home", "Products", "Widgets", "About us", "Contact", "Search", "",
            "Home > News", *BODY[:3], "", "Share this:", "Facebook", "Twitter", "", *BODY[3:],
            "Privacy Policy", "Terms of use", "Sitemap", "© 2021 Harbour News"]  # fmt: skip
    left, counts = stripped(page)
    assert left == ["Home > News", *BODY[:3], "", *BODY[3:]]  # a trail of two may be anything
    assert counts == {"navigation": 10, "share": 3, "copyright": 1}


@pytest.mark.parametrize(
    "lines",
    [
        ["Home", "The word stands alone.", "Contact"],  # headings
        ["- login", "- logout", "- register", "- help", "- search"],  # commands
        ["* Facebook", "* Twitter", "* LinkedIn"],  # what a library supports
        ["    Home", "    About us", "    Contact us"],  # code
        ["# Read more", "# Share this"],  # comments
        ["next", "next", "next"],
        ["print", "help", "search"],
        ["The command brings the reader back from wherever it was to the", "main menu."],
        ["In this chapter we use cookies to keep the session."],
        ["Copyright: 2009, A Person", "License: GPL"],
        ["home > away = 3", "/home/search/help", "a | b | c"],
    ],
)
def test_text_that_only_looks_like_a_page_stays(lines: list[str]) -> None:
    assert stripped([*lines, *BODY]) == ([*lines, *BODY], {})
    assert stripped([*BODY, *lines]) == ([*BODY, *lines], {})


def test_a_notice_in_the_middle_of_a_long_text_stays() -> None:
    notice = BY_KIND["cookies"][0]
    long = BODY * 5
    assert stripped([*long, notice, *long]) == ([*long, notice, *long], {})
    assert stripped([*long, notice])[1] == {"cookies": 1}


def test_copyright_is_removed_from_a_footer_but_not_from_a_licence() -> None:
    line = "Copyright (c) 2003 A Person. All rights reserved."
    assert stripped([*BODY, line, "Contact"])[1] == {"copyright": 1}
    assert stripped([line, *BODY])[1] == {}
    assert stripped([*BODY, line, *BODY])[1] == {}


def test_page_numbers_are_removed_with_their_headers_and_footers() -> None:
    pages: list[str] = []
    for number, line in enumerate(BODY, start=7):
        pages += [
            line,
            "",
            f"A. Person      Standards Track      [Page {number}]",
            "",
            "RFC 1   May 1999",
            "",
        ]
    left, counts = stripped(pages)
    assert [line for line in left if line] == BODY
    assert counts == {"pages": 12}


@pytest.mark.parametrize("numbers", [[7, 8], [7, 9, 11], [3, 2, 1]])
def test_page_numbers_that_do_not_grow_by_one_stay(numbers: list[int]) -> None:
    lines = [line for n in numbers for line in (*BODY[:2], f"Page {n}")]
    assert stripped(lines) == (lines, {})


def test_the_standard_library_stays_whole() -> None:
    """Five megabytes of code and docstrings, and not a line too many."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    paths += sorted(Path(sysconfig.get_path("stdlib")).glob("pydoc_data/*.py"))
    texts = [path.read_text(errors="surrogateescape") for path in paths]
    assert sum(map(len, texts)) > 3_000_000
    found = strip_boilerplate(texts, Boilerplate())
    assert {str(p): c for p, c in zip(paths, found.counts, strict=True) if c} == {}
    assert found.texts == texts


LINE = st.sampled_from(
    [*phrase_kinds(SURE), *phrase_kinds(MAYBE), *(line for _, line in CASES), *BODY, "", " ", "x",
     "© 2020 A",
     "Page 1", "Page 2", "Page 3", "- 4 -", "a > b", "Home > b > c"]
) | st.text(max_size=30)  # fmt: skip


@given(st.lists(LINE, max_size=40))
@settings(max_examples=150, deadline=None)
def test_only_whole_lines_are_removed_and_all_are_counted(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = strip_boilerplate([text], Boilerplate())
    before, after = text.split("\n"), iter(found.texts[0].split("\n"))
    wanted = next(after, None)
    for line in before:  # what is left is some of the lines, in order
        if line == wanted:
            wanted = next(after, None)
    assert wanted is None or not found.texts[0]
    said = sum(bool(line.strip()) for line in before)
    left = sum(bool(line.strip()) for line in found.texts[0].split("\n"))
    assert said - left == sum(found.counts[0].values())
    if not found.counts[0]:
        assert found.texts[0] == text


@given(st.lists(st.lists(LINE, max_size=10).map("\n".join), max_size=4))
@settings(max_examples=30, deadline=None)
def test_the_result_for_a_document_depends_on_it_alone(texts: list[str]) -> None:
    together = strip_boilerplate(texts, Boilerplate())
    assert together.texts == [strip_boilerplate([text], Boilerplate()).texts[0] for text in texts]


@pytest.mark.parametrize(
    "text",
    [
        "x" * 2_000_000,
        "home > " * 200_000,
        ("we use " * 60 + "cookie\n") * 1000,
        ("get a in your " * 20 + "\n") * 1000,
        ("copyright " * 40 + "\n") * 1000,
        "Home\n" * 50_000,
        "".join(f"Page {n}\n" for n in range(30_000)),
        "| " * 500_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    start = time.process_time()
    strip_boilerplate([text], Boilerplate())
    assert time.process_time() - start < 20  # quadratic would be minutes
