"""Bars and histograms as inline SVG, with colours from the style sheet of the page."""

from collections.abc import Sequence

from penstock.watch.style.markup import Markup, join, tag

_HEIGHT, _BASE, _TOP = 120, 98, 12
_LAST_TICK = 0.75  # of the width


def bar(part: float, whole: float, kind: str, before: float = 0) -> Markup:
    """Return a bar for the share of `part` in `whole`, which starts after `before`."""
    width, start = (100 * x / whole if whole else 0 for x in (part, before))
    shown = max(width, 0.4) if part else 0
    rect = tag("rect", x=f"{start:.3f}%", width=f"{shown:.3f}%", height="100%", class_=kind, rx=2)
    return tag("svg", rect, class_="bar", role="presentation")


def histogram(counts: Sequence[int], labels: Sequence[str], about: str) -> Markup:
    """Return a histogram; each column shows its count under the pointer.

    `labels` are the borders of the bins: one more than the counts.
    """
    wide = 1000 / max(len(counts), 1)
    top = max(counts, default=0) or 1
    columns, words = [], []
    every = max(1, -(-len(counts) // 6))
    for place, count in enumerate(counts):
        tall = (_BASE - _TOP) * count / top
        title = tag("title", f"{labels[place]} to {labels[place + 1]}: {count:,}")
        columns.append(
            tag(
                "g",
                title,
                tag(
                    "rect",
                    x=f"{place * wide + wide * 0.06:.1f}",
                    y=f"{_BASE - max(tall, 0.8 if count else 0):.1f}",
                    width=f"{wide * 0.88:.1f}",
                    height=f"{max(tall, 0.8 if count else 0):.1f}",
                    class_="kept",
                ),
            )
        )
        # No label near the end, where the last one is.
        if place % every == 0 and place <= _LAST_TICK * len(counts):
            words.append(tag("span", labels[place], style=f"left:{place / len(counts):.2%}"))
    axis = tag("line", x1=0, y1=_BASE, x2=1000, y2=_BASE, class_="axis")
    box = {"viewBox": f"0 {_TOP - 4} 1000 {_HEIGHT - 18}", "preserveAspectRatio": "none"}
    drawing = tag(
        "svg", join(*columns, axis), class_="columns", role="img", aria_label=about, **box
    )
    words.append(tag("span", labels[-1], class_="last"))
    return tag("figure", drawing, tag("div", *words, class_="ticks"), tag("figcaption", about))
