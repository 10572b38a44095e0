"""HTML that cannot be broken by what it shows: text is escaped unless it was made here."""

import re
from collections.abc import Mapping
from html import escape

from penstock.watch.style.text import printable

_EMPTY = {"meta", "br", "wbr", "rect", "line"}


# No script, and nothing loaded from elsewhere, whatever stands in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Markup(str):
    """Made by `tag`, or written in this room: goes into a page as it is."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """`tag("p", "a < b", class_="x")`. A child that is not `Markup` is text."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
    )
    if name in _EMPTY:
        return Markup(f"<{name}{told}>" if name in ("meta", "br", "wbr") else f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    return Markup("".join(c if isinstance(c, Markup) else text(str(c)) for c in children))


def text(raw: str) -> Markup:
    return Markup(escape(printable(raw)))


def breakable(name: str) -> Markup:
    """A long name that may go on in the next line after a dot, a stroke or a blank of its own."""
    parts = re.split(r"(?<=[._/:\\-])(?=\w)", name)
    return join(*(piece for part in parts for piece in (part, tag("wbr"))))


def document(title: str, style: str, *parts: object) -> str:
    """A whole page in one file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("html", head, tag("body", tag("main", *parts)), lang="en")
    return f"<!doctype html>\n{body}\n"


def section(title: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", title), *parts)


def cards(facts: Mapping[str, str]) -> Markup:
    made = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag("dl", *made, class_="cards")
