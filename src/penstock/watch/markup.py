"""HTML that cannot be broken by what it shows: text is escaped unless it was made here."""

import re
from html import escape

from penstock.watch.data_story import printable

_EMPTY = {"meta", "br", "wbr", "rect", "line"}


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
