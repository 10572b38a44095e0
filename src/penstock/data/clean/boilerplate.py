"""Remove lines that are not part of a text: notices, menus, buttons, footers, page numbers.

The rules are careful rather than thorough: losing a line of prose or code is worse than keeping a
button. Only whole lines are removed, and only if a line is

- a phrase that only web pages have (`phrases.SURE`), or a row of links on one line,
- a word of menus and buttons (`phrases.MAYBE`) among others of them (`menus`),
- at the beginning or end of the document, where pages have them: a sentence that asks for consent
  or a subscription, a breadcrumb trail, a copyright line (`notices`), or
- a page number that grows through the document, with the lines that repeat next to it (`pages`).

Indented lines and lines that begin with `#` stay, except page numbers: code and lists have them,
web pages do not. Patterns are applied to short lines only, so the time is linear in the text.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from penstock.data.clean.menus import find_menus, is_trail, match_line
from penstock.data.clean.notices import is_copyright, notice_kind
from penstock.data.clean.pages import find_page_lines

REVISION = 1  # raise it when other lines are removed

_NEVER = " \t#"  # a line that begins with one of these is code or a list
_ENDS = ".!?:…\"'”’»)"
_SHORT = 40  # characters; a longer line is not a button
_HEAD = 20  # lines with text at the beginning that may be notices and trails
_TAIL = 20  # lines with text at the end that may be notices and footers
_FOOTER = 60  # characters; only shorter lines may follow a copyright line
_BODY = 5  # lines with text that must come before a footer; the first ones are a title page


@dataclass(frozen=True)
class Boilerplate:
    """Kinds of lines to remove."""

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
class StrippedTexts:
    """Texts without boilerplate."""

    texts: list[str]
    counts: list[dict[str, int]]  # per document: kind → removed lines, without zeros


def strip_boilerplate(texts: Sequence[str], config: Boilerplate) -> StrippedTexts:
    """Remove boilerplate lines and the blank lines around them; a document may become empty."""
    wanted = frozenset(field.name for field in fields(config) if getattr(config, field.name))
    out: list[str] = []
    counts: list[dict[str, int]] = []
    for text in texts:
        lines = text.split("\n")
        removed = {line: kind for line, kind in _find_boilerplate(lines).items() if kind in wanted}
        out.append(_remove_lines(lines, removed) if removed else text)
        counts.append(dict(Counter(removed.values())))
    return StrippedTexts(out, counts)


def _find_boilerplate(lines: list[str]) -> dict[int, str]:
    """Return the line number and kind of every boilerplate line."""
    numbers = [place for place, line in enumerate(lines) if line and not line.isspace()]
    filled = [lines[place] for place in numbers]
    known_lines = [
        it
        for at, line in enumerate(filled)
        if line[0] not in _NEVER
        and not _continues(lines, numbers[at])
        and (it := match_line(at, line))
    ]
    out = {it.at: it.kind for it in known_lines if it.sure}
    out.update(find_menus(filled, known_lines))
    _add_notices(filled, range(len(filled)), _HEAD, out, head=True)
    _add_notices(filled, range(len(filled) - 1, -1, -1), _TAIL, out, head=False)
    _add_footer(filled, out)
    found = {numbers[at]: kind for at, kind in out.items()}
    found.update(dict.fromkeys(find_page_lines(lines), "pages"))
    return found


def _continues(lines: list[str], place: int) -> bool:
    """Return whether a line continues a sentence of the line before."""
    before = lines[place - 1].rstrip() if place else ""
    return len(before) > _SHORT and lines[place][0].islower() and before[-1] not in _ENDS


def _add_notices(
    filled: list[str], order: Iterable[int], most: int, out: dict[int, str], head: bool
) -> None:
    """Add notices among the first `most` lines that stay, in the given order, to `out`."""
    for at in order:
        if at in out:
            continue
        line = filled[at].rstrip().lower()
        if line[0] in _NEVER:
            kind = None
        elif head and is_trail(line):
            kind = "breadcrumbs"
        else:
            kind = notice_kind(line)
        if kind:
            out[at] = kind
            continue
        most -= 1
        if not most:
            return


def _add_footer(filled: list[str], out: dict[int, str]) -> None:
    """Add a copyright line that only short lines follow; in a licence, long lines follow."""
    for at in range(len(filled) - 1, max(_BODY, len(filled) - _TAIL) - 1, -1):
        if at in out:
            continue
        if is_copyright(filled[at].rstrip().lower()):
            out[at] = "copyright"
        elif len(filled[at]) > _FOOTER:
            return


def _remove_lines(lines: list[str], removed: dict[int, str]) -> str:
    """Return the remaining text; where a line was removed, adjacent blank lines are merged."""
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
