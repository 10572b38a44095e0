"""HTML from Python calls. Text is always escaped; only `tag` and this package make markup."""

import re
from collections.abc import Mapping
from html import escape

from penstock.watch.style.text import printable

_EMPTY = {"meta", "br", "wbr", "rect", "line"}


# Even if a page held a script or a link to a file, the browser would not load it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Markup(str):
    """HTML that goes into a page unescaped."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element: `tag("p", "a < b", class_="x")`. Other children than `Markup` are text."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(str(value)))}"'
        for key, value in attributes.items()
    )
    if name in _EMPTY:
        return Markup(
            f"<{name}{written}>" if name in ("meta", "br", "wbr") else f"<{name}{written}/>"
        )
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Return children one after the other; those that are not `Markup` are text."""
    return Markup("".join(c if isinstance(c, Markup) else text(str(c)) for c in children))


def text(raw: str) -> Markup:
    """Return text without control characters, escaped."""
    return Markup(escape(printable(raw)))


def breakable(name: str) -> Markup:
    """Return a long name that may wrap after a dot, an underscore, a slash, a colon or a hyphen."""
    parts = re.split(r"(?<=[._/:\\-])(?=\w)", name)
    return join(*(piece for part in parts for piece in (part, tag("wbr"))))


def document(title: str, style: str, *parts: object) -> str:
    """Return a whole page in one file."""
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
    """Return a section with its title."""
    return tag("section", tag("h2", title), *parts)


def cards(facts: Mapping[str, str]) -> Markup:
    """Return names and values as a row of cards."""
    items = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag("dl", *items, class_="cards")
