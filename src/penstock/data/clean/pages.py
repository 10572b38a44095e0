"""Page numbers inside a text, with the headers and footers around them.

A number counts as a page number only if it grows by one at least three times in lines that are
otherwise equal: a reference to page 7 stays.
"""

import re

_LONGEST = 200  # characters of a header or footer
_LEAST = 3  # pages
_NEAR = 3  # lines with text before and after a page number that may come with it

_NUMBER = re.compile(
    r"(?:^|[\s\[(|])(?:page|p\.|seite|página|pagina|страница|стр\.)\s?([0-9]{1,5})"
    r"(?:\s?(?:of|/|von|de|di|sur|из)\s?[0-9]{1,5})?[\])]?$"
    r"|^[-–—]\s?([0-9]{1,5})\s?[-–—]$",
    re.IGNORECASE,
)
_DIGITS = re.compile("[0-9]+")
_LETTERS = re.compile(r"[^\W\d_]{3}")


def find_page_lines(lines: list[str]) -> set[int]:
    """Return the lines that are page numbers, or repeat next to them."""
    numbered = _numbered(lines)
    if not numbered:
        return set()
    filled = [place for place, line in enumerate(lines) if line and not line.isspace()]
    index = {place: i for i, place in enumerate(filled)}
    out: set[int] = set()
    for run in numbered:
        out.update(run)
        at = [index[place] for place in run]
        for offset in (*range(-_NEAR, 0), *range(1, _NEAR + 1)):
            out.update(_companions(lines, filled, [i + offset for i in at]))
    return out


def _numbered(lines: list[str]) -> list[list[int]]:
    """Return runs of lines that are equal except for a page number that grows by one."""
    open_runs: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    runs: list[list[int]] = []
    for place, line in enumerate(lines):
        # Most lines end in neither a digit nor a bracket.
        if len(line) > _LONGEST or not line or line[-1] not in "0123456789])-–—":
            continue
        found = _NUMBER.search(line.strip())
        if not found:
            continue
        form, number = _form(line), int(found[1] or found[2])
        if last.get(form) != number - 1:
            open_runs[form] = []
            runs.append(open_runs[form])
        open_runs[form].append(place)
        last[form] = number
    return [run for run in runs if len(run) >= _LEAST]


def _companions(lines: list[str], filled: list[int], at: list[int]) -> list[int]:
    """Return the lines at these indices of `filled` that are equal on most pages."""
    forms: dict[str, list[int]] = {}
    for i in at:
        if 0 <= i < len(filled):
            line = lines[filled[i]]
            if len(line) <= _LONGEST and _LETTERS.search(line):
                forms.setdefault(_form(line), []).append(filled[i])
    most = max(forms.values(), key=len, default=[])
    return most if len(most) >= _LEAST and len(most) * 2 > len(at) else []


def _form(line: str) -> str:
    return _DIGITS.sub("0", " ".join(line.split()))
