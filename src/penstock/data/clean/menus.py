"""Menus and buttons: words that prose has too, so that only neighbouring lines can decide.

A single line with such a word is a heading, a list item or code. Three different ones in a row, one
of which occurs only on web pages, are a menu. Lists with bullets need more evidence, since
documents list commands and services with the same words.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from penstock.data.clean.phrases import MAYBE, SURE, phrase_kinds

_SURE, _MAYBE = phrase_kinds(SURE), phrase_kinds(MAYBE)
_SHORT = 40  # characters of a line on a menu or a button
_LONG_MENU = 5  # lines; a menu this long may have other lines in between
_ROW = 250  # of the longest phrase, and of a row of menu words on one line

_NETWORKS = frozenset(
    {"facebook", "twitter", "linkedin", "pinterest", "instagram", "whatsapp", "youtube", "tiktok",
     "reddit", "tumblr", "telegram", "flickr", "google+", "stumbleupon", "digg", "rss",
     "вконтакте", "одноклассники"}
)  # fmt: skip
# Words that occur on web pages and hardly anywhere else.
_ANCHORS = frozenset(
    {"home", "home page", "homepage", "about us", "contact us", "privacy policy", "sitemap",
     "terms of use", "terms of service", "terms & conditions", "terms and conditions", "my cart",
     "view cart", "shopping cart", "my account", "sign in", "sign up", "follow us",
     "tweet", "pin it", "startseite", "über uns", "impressum", "datenschutz", "warenkorb",
     "mein konto", "teilen",
     "accueil", "mentions légales", "mon compte", "qui sommes-nous", "partager", "inicio",
     "quiénes somos", "sobre nosotros", "aviso legal", "mi cuenta", "compartir", "início",
     "quem somos", "minha conta", "compartilhar", "chi siamo", "contatti", "condividi", "over ons",
     "winkelwagen", "mijn account", "delen", "главная", "о нас", "контакты", "поделиться",
     "首页", "关于我们", "联系我们", "ホーム", "会社概要", "お問い合わせ"}
)  # fmt: skip
_ALIKE = _MAYBE.keys() | _SURE.keys()

_AROUND = " \t.…!?¿:*•·|»«›‹→←↑↓▲▼►▶◄-–—×✕☰>[]()"
_BULLETS = ("-", "*", "•", "·", "–", "1", "2", "3", "4", "5", "6", "7", "8", "9")
_SPLIT = re.compile(r"[|·•»›]| [/–-] |\s{2,}")
_TRAIL = re.compile(r"\s*[>»›→]\s*|\s+/\s+")
_HERE = re.compile(r"(?:you are here|sie sind hier|vous êtes ici|estás aquí):?\s*")
_HOMES = frozenset({"home", "homepage", "home page", "startseite", "accueil", "inicio", "início",
                    "главная", "首页", "ホーム"})  # fmt: skip


@dataclass(frozen=True)
class KnownLine:
    """A line that consists of a known phrase of web pages."""

    at: int  # among the lines with text
    phrase: str
    kind: str
    sure: bool
    bullet: bool


def match_line(at: int, line: str) -> KnownLine | None:
    """Return the known phrase of a line; None if it has none."""
    if len(line) > _ROW:
        return None
    small = line.lower()
    phrase = small.strip(_AROUND)
    if kind := _SURE.get(phrase):
        return KnownLine(at, phrase, kind, True, False)
    if kind := _MAYBE.get(phrase):
        return KnownLine(at, phrase, kind, False, line.startswith(_BULLETS))
    if kind := _row(small):
        return KnownLine(at, phrase, kind, True, False)
    return None


def _row(line: str) -> str | None:
    """Return the kind of a row of links on one line; None if it is not one."""
    words = line.split()
    if len(words) > 1 and all(w in _NETWORKS or _MAYBE.get(w) == "share" for w in words):
        return "share" if not _NETWORKS.isdisjoint(words) else None
    items = [item.strip(_AROUND) for item in _SPLIT.split(line.strip(" |"))]
    if len(items) < 3 and len(words) > 3 and words[0] in _HOMES:
        items = words
    if len(items) < 3 or any(not item or len(item) > _SHORT for item in items):
        return None
    found = [item for item in items if item in _ALIKE]
    enough = len(found) >= 2 and len(found) * 3 >= len(items) * 2
    return "navigation" if enough and not _ANCHORS.isdisjoint(found) else None


def is_trail(line: str) -> bool:
    """Return whether a lower-case line is a breadcrumb trail such as Home > News > Today."""
    rest = _HERE.sub("", line, count=1) if line.startswith(("you", "sie", "vous", "est")) else line
    if len(line) > _ROW or line.endswith((".", ";", "{", "(")):
        return False
    items = [item.strip() for item in _TRAIL.split(rest)]
    least = 2 if rest is not line else 3
    return len(items) >= least and items[0] in _HOMES and all(0 < len(i) <= 80 for i in items)


def find_menus(lines: list[str], every: list[KnownLine]) -> Iterator[tuple[int, str]]:
    """Yield the lines of menus with their kind; `lines` are those with text, `every` the known."""
    for group in _groups(every):
        if not _is_menu(group):
            continue
        yield from ((line.at, line.kind) for line in group)
        if len(group) >= _LONG_MENU:
            yield from _between(lines, group)


def _between(lines: list[str], group: list[KnownLine]) -> Iterator[tuple[int, str]]:
    """Yield a site's own menu words, each between two known lines."""
    for before, after in pairwise(group):
        at = before.at + 1
        if at < after.at and not before.sure and not after.sure and _short(lines[at]):
            yield at, "navigation"


def _groups(every: list[KnownLine]) -> Iterator[list[KnownLine]]:
    """Yield runs of known lines with at most one other line between two of them."""
    group: list[KnownLine] = []
    for line in every:
        if group and line.at - group[-1].at > 2:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _is_menu(group: list[KnownLine]) -> bool:
    phrases = {line.phrase for line in group}
    anchors = phrases & _ANCHORS | {line.phrase for line in group if line.sure}
    if any(line.bullet for line in group):
        return len(phrases) >= 4 and len(anchors) >= 2
    return len(phrases) >= 3 and bool(anchors | phrases & _NETWORKS)


def _short(line: str) -> bool:
    """Return whether a line could be on a menu: short, and neither a sentence nor code."""
    return len(line) <= _SHORT and not line.endswith((".", ",", ";", ":", "?", "!", ")", "}", "{"))
