"""Removes lines that are no part of a text: notices, menus, buttons, footers, page numbers.

Careful rather than thorough, since a line of prose or code that is lost is worse than a button that
stays. A line goes only as a whole, and only when it is

- a phrase that nothing but a page says (`clean_phrases.SURE`), or a row of links on one line,
- a word of menus and buttons (`clean_phrases.MAYBE`) among others of them (`clean_menus`),
- at the begin or the end of the document, where pages have them: a sentence that asks for consent
  or a subscription, a trail from the home page, a line of copyright (`clean_notices`), or
- a page number that grows through the document, with what repeats next to it (`clean_pages`).

Indented lines and those with `#` stay, page numbers apart: code and lists have them, pages of the
web do not. Patterns are asked of short lines only, so no text takes more than linear time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from penstock.data.clean.menus import is_trail, known, menus
from penstock.data.clean.notices import is_copyright, notice
from penstock.data.clean.pages import page_lines

# A change in what is removed needs a new number.
REVISION = 1

_NEVER = " \t#"  # a line that begins so is code or a list
_ENDS = ".!?:…\"'”’»)"
_SHORT = 40  # characters; no longer line is a button
_HEAD = 20  # lines with text where notices and trails stand
_TAIL = 20  # and where notices and footers do
_FOOTER = 60  # characters: after a line of copyright come short lines only
_BODY = 5  # lines with text before it, at least: the first ones are a title page


@dataclass(frozen=True)
class Boilerplate:
    """Which kinds are removed."""

    cookies: bool = True  # notices and buttons of consent
    navigation: bool = True  # menus, rows of links, "skip to content", "back to top"
    breadcrumbs: bool = True  # Home > News > Today
    share: bool = True  # share and print buttons, names of networks
    subscribe: bool = True  # newsletters
    more: bool = True  # "read more", "related articles"
    login: bool = True
    comments: bool = True  # the form for comments, not comments
    advertising: bool = True  # marks of advertisements, not their text
    copyright: bool = True  # footers
    browser: bool = True  # "please enable JavaScript"
    pages: bool = True  # page numbers with headers and footers


@dataclass(frozen=True)
class Stripped:
    texts: list[str]
    counts: list[dict[str, int]]  # per document, lines removed by kind; no entry where none


def strip(texts: Sequence[str], config: Boilerplate) -> Stripped:
    """Blank lines around what is removed go with it; a document may be left empty."""
    wanted = frozenset(field.name for field in fields(config) if getattr(config, field.name))
    out: list[str] = []
    counts: list[dict[str, int]] = []
    for text in texts:
        lines = text.split("\n")
        removed = {line: kind for line, kind in _found(lines).items() if kind in wanted}
        out.append(_without(lines, removed) if removed else text)
        counts.append(dict(Counter(removed.values())))
    return Stripped(out, counts)


def _found(lines: list[str]) -> dict[int, str]:
    """Line → kind, of all boilerplate."""
    places = [place for place, line in enumerate(lines) if line and not line.isspace()]
    said = [lines[place] for place in places]
    every = [
        it
        for at, line in enumerate(said)
        if line[0] not in _NEVER and not _goes_on(lines, places[at]) and (it := known(at, line))
    ]
    out = {it.at: it.kind for it in every if it.sure}
    out.update(menus(said, every))
    _edge(said, range(len(said)), _HEAD, out, head=True)
    _edge(said, range(len(said) - 1, -1, -1), _TAIL, out, head=False)
    _footer(said, out)
    found = {places[at]: kind for at, kind in out.items()}
    found.update(dict.fromkeys(page_lines(lines), "pages"))
    return found


def _goes_on(lines: list[str], place: int) -> bool:
    """Whether a line is the rest of a sentence that was wrapped."""
    before = lines[place - 1].rstrip() if place else ""
    return len(before) > _SHORT and lines[place][0].islower() and before[-1] not in _ENDS


def _edge(
    said: list[str], order: Iterable[int], most: int, out: dict[int, str], head: bool
) -> None:
    """Notices among the first `most` lines that stay, in this order."""
    for at in order:
        if at in out:
            continue
        line = said[at].rstrip().lower()
        if line[0] in _NEVER:
            kind = None
        elif head and is_trail(line):
            kind = "breadcrumbs"
        else:
            kind = notice(line)
        if kind:
            out[at] = kind
            continue
        most -= 1
        if not most:
            return


def _footer(said: list[str], out: dict[int, str]) -> None:
    """A line of copyright with only short lines after it: a licence goes on with long ones."""
    for at in range(len(said) - 1, max(_BODY, len(said) - _TAIL) - 1, -1):
        if at in out:
            continue
        if is_copyright(said[at].rstrip().lower()):
            out[at] = "copyright"
        elif len(said[at]) > _FOOTER:
            return


def _without(lines: list[str], removed: dict[int, str]) -> str:
    """What is left. Where a line went, blank lines that now meet others go too."""
    kept: list[str] = []
    gone = False
    for place, line in enumerate(lines):
        blank = not line or line.isspace()
        if place in removed:
            gone = True
        elif not blank:
            kept.append(line)
            gone = False
        elif not (gone and (not kept or not kept[-1].strip())):
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return "\n".join(kept)
