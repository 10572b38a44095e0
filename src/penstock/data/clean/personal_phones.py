"""Telephone numbers, international and as countries write them.

An international number is known by its country code and length. A national one is known by how
its digits are grouped: a trunk zero and a usual grouping, or North America's, Brazil's and Spain's.
Digits in any other grouping are a telephone number only after a word such as "phone" or "Tel.".
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from penstock.data.clean.personal_context import Clue, clue_before, clusters

_S = r"[ \u00a0\u202f]"  # blanks
_H = r"[-\u2011\u2013]"  # hyphens
# What may not stand before a number: words, signs, and the comma, colon or slash of another number.
_OPEN = r"(?<![A-Za-z0-9_+.$-])(?<![0-9][,:/])"
# Digits after the country code, least and most; the rest of the world: 7 to 12.
_NATIONAL = {
    "1": (10, 10), "7": (10, 10), "20": (8, 10), "27": (9, 9), "30": (10, 10), "31": (9, 9),
    "32": (8, 9), "33": (9, 9), "34": (9, 9), "36": (8, 9), "39": (8, 11), "40": (9, 9),
    "41": (9, 9), "43": (7, 12), "44": (9, 10), "45": (8, 8), "46": (7, 10), "47": (8, 8),
    "48": (9, 9), "49": (7, 12), "51": (8, 9), "52": (10, 11), "53": (8, 8), "54": (10, 11),
    "55": (10, 11), "56": (9, 9), "57": (8, 10), "58": (10, 10), "60": (8, 10), "61": (9, 9),
    "62": (8, 12), "63": (8, 10), "64": (8, 10), "65": (8, 8), "66": (8, 9), "81": (9, 10),
    "82": (8, 11), "84": (9, 10), "86": (9, 11), "90": (10, 10), "91": (10, 10), "92": (9, 10),
    "93": (9, 9), "94": (9, 9), "95": (7, 10), "98": (10, 10),
}  # fmt: skip
# The three-digit codes all begin with these.
_LONG_CODES = ("21", "22", "23", "24", "25", "26", "29", "35", "37", "38", "42", "50", "59", "67",
               "68", "69", "80", "85", "87", "88", "96", "97", "99")  # fmt: skip
_INTERNATIONAL = re.compile(
    rf"(?:\+(?<![A-Za-z0-9_+.*^/-].)|{_OPEN}00(?=[1-9][0-9]{{0,2}}(?:{_S}|{_H}|[./(])))[1-9]"
    rf"(?:(?:{_S}|{_H}|[()./]){{0,3}}[0-9]){{7,15}}(?![0-9A-Za-z_]|[.,-][0-9])"
)
_NANP = re.compile(
    rf"{_OPEN}(?<![-/][(])(?:1(?:{_S}|{_H}|\.)?)?"
    rf"(?:\([2-9][0-9]{{2}}\){_S}?[1-9][0-9]{{2}}(?:{_S}|{_H}|\.)"
    rf"|[2-9][0-9]{{2}}(?:({_H})[1-9][0-9]{{2}}\1|\.[2-9][0-9]{{2}}\.))[0-9]{{4}}"
    rf"(?![0-9A-Za-z_]|[.,/-][0-9])"
)
_BRAZIL = re.compile(
    rf"{_OPEN}(?:\([1-9][0-9]\){_S}?(?:9[0-9]{{4}}|[2-5][0-9]{{3}})(?:{_H}|{_S})"
    rf"|[1-9][0-9]{_S}9[0-9]{{4}}{_H})[0-9]{{4}}(?![0-9A-Za-z_]|[.,/-][0-9])"
)
_SPAIN = re.compile(
    rf"{_OPEN}(?<![0-9]{_S})(?:[6-9][0-9]{{2}}({_S}|-)[0-9]{{2}}\1[0-9]{{2}}\1[0-9]{{2}}"
    rf"|9[0-9]({_S}|-)[0-9]{{3}}\2[0-9]{{2}}\2[0-9]{{2}})(?![0-9A-Za-z_]|[.,/-][0-9]|{_S}[0-9])"
)
_TRUNK = re.compile(
    rf"{_OPEN}\(?0{_S}?[0-9]{{1,4}}"
    rf"(?:\){_S}?|{_S}?/{_S}?|{_S}?{_H}{_S}?|{_S}|\.|\()[0-9]{{2,8}}"
    rf"(?:(?:{_S}|{_H}|\.|\))[0-9]{{2,8}}){{0,3}}"
    rf"(?![0-9A-Za-z_(]|[.,/:-][0-9])"
)
# Sizes of groups after a trunk zero, as in use; with two groups see `_is_grouped`.
_TRUNK_SHAPES = {
    (3, 4, 4), (4, 3, 4), (5, 3, 3), (4, 3, 3), (2, 4, 4), (3, 3, 4), (4, 2, 4), (3, 4, 3),
    (2, 2, 2, 2, 2), (4, 2, 2, 2), (3, 3, 2, 2), (2, 3, 2, 2), (3, 2, 2, 4), (3, 2, 2, 2),
    (3, 3, 2, 3), (3, 5, 3), (4, 4, 3), (3, 3, 3), (2, 3, 3, 2), (3, 2, 3, 3), (4, 3, 2, 2),
    (4, 5, 2), (3, 4, 2, 2), (3, 2, 2, 3), (2, 3, 4),
}  # fmt: skip
_BLANK = re.compile(_S)
_NAMED = re.compile(
    rf"{_OPEN}\(?[0-9](?:(?:{_S}|{_H}|[)./]){{0,2}}[0-9]){{6,13}}"
    rf"(?![0-9A-Za-z_]|[.,/:-][0-9]|{_S}[0-9])"
)
_DATE = re.compile(r"(?:19|20)[0-9]{2}([-./ ])[0-9]{1,2}\1[0-9]{1,2}(?![0-9])"
                   r"|[0-9]{1,2}([-./ ])[0-9]{1,2}\2(?:19|20)[0-9]{2}(?![0-9])")  # fmt: skip
_HEX_AFTER = re.compile(r"[ .:-](?:[a-f][0-9]|[0-9][a-f]|[0-9a-f]{2}[ .:-][0-9a-f]{2})(?![0-9a-z])",
                        re.IGNORECASE)  # fmt: skip
_HEX_BEFORE = re.compile(r"(?<![0-9a-z])(?:[a-f][0-9]|[0-9][a-f]|[0-9a-f]{2}[ .:-][0-9a-f]{2})"
                         r"[ .:-]$", re.IGNORECASE)  # fmt: skip
_BESIDE = re.compile(rf"[0-9]{_S}")
_GOES_ON = re.compile(r"[0-9A-Za-z_+%°]|[.,:][0-9]")
_GROUP = re.compile(r"[0-9]+")


def find_phones(text: str) -> Iterator[tuple[int, int]]:
    """Finds telephone numbers, international and national."""
    for first, last in clusters(text, 8):
        start = first
        while start and text[start - 1] in "+(":
            start -= 1
        yield from _in_cluster(text, start, last)


def _in_cluster(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Finds the numbers in a run of digits and separators; the first tier that has some wins."""
    found = [
        (match.start(), last)
        for match in _INTERNATIONAL.finditer(text, start, end)
        if (last := _country_end(match)) and _ends(text, last)
    ]
    for pattern in (_NANP, _BRAZIL, _SPAIN, _TRUNK):
        found = found or [
            _bracketed(match)
            for match in pattern.finditer(text, start, end)
            if _ends(text, match.end())
            and (pattern is not _TRUNK or _is_grouped(text, match))
            and clue_before(text, match.start()) is not Clue.NUMBER
        ]
    yield from found or [
        _bracketed(match)
        for match in _NAMED.finditer(text, start, end)
        if clue_before(text, match.start()) is Clue.PHONE
        and _ends(text, match.end())
        and not _DATE.match(match[0])
    ]


def _bracketed(match: re.Match[str]) -> tuple[int, int]:
    """Gives the span without a bracket that the number does not close."""
    opened = match[0].startswith("(") and ")" not in match[0]
    return match.start() + opened, match.end()


def _ends(text: str, end: int) -> bool:
    """Says whether a number can end here: a pattern does not see beyond its cluster."""
    return not _GOES_ON.match(text, end)


def _country_end(match: re.Match[str]) -> int | None:
    """Finds the end of the longest part with a country's code and as many digits as it has."""
    text = match[0].replace("(0)", "(.)")
    for group in reversed(list(_GROUP.finditer(text))):
        if _has_country(text[: group.end()]):
            return match.start() + group.end()
    return None


def _has_country(text: str) -> bool:
    plain = "".join(_GROUP.findall(text))
    plain = plain[2:] if text.startswith("00") else plain
    code = plain[0] if plain[0] in "17" else plain[: 3 if plain[:2] in _LONG_CODES else 2]
    least, most = _NATIONAL.get(code, (7, 12))
    national = plain[len(code) :]
    if not least <= len(national) <= most or (code == "1" and national[0] in "01"):
        return False
    # 0033 0044 0055 are numbers padded with zeros.
    return not text.startswith("00") or code == "39" or national[0] != "0"


def _is_grouped(text: str, match: re.Match[str]) -> bool:
    """Checks the sizes of the groups after a trunk zero; bytes and lists of numbers are none."""
    found = match[0]
    groups = _GROUP.findall(found)
    if found.startswith(("0 ", "(0 ")):
        groups = [groups[0] + groups[1], *groups[2:]]
    sizes = tuple(map(len, groups))
    if _BLANK.search(found) and _in_row(text, match):
        return False
    if groups[0].startswith("00") or set("".join(groups[1:])) == {"0"} or _DATE.match(found):
        return False
    if len(sizes) == 2:
        # 0704.00012 is a paper, 01001–99998 a range and 07-3456789 a number of a company.
        if "." in found or "–" in found or (sizes[0] == 2 and sizes[1] != 8):
            return False
        return 2 <= sizes[0] <= 5 and 5 <= sizes[1] <= 8 and 9 <= sum(sizes) <= 12
    if sizes not in _TRUNK_SHAPES and not ("(" in found or "/" in found):
        return False
    if not 9 <= sum(sizes) <= 12:
        return False
    if sizes == (2, 2, 2, 2, 2):
        numbers = [int(group) for group in groups]
        steps = {b - a for a, b in pairwise(numbers)}
        before = text[max(0, match.start() - 6) : match.start()]
        counted = len(steps) == 1 and abs(steps.pop()) <= 10
        return (
            not counted
            and not _HEX_AFTER.match(text, match.end())
            and not _HEX_BEFORE.search(before)
        )
    return True


def _in_row(text: str, match: re.Match[str]) -> bool:
    """Says whether other numbers stand beside this one, as in a table."""
    before, after = (
        text[max(0, match.start() - 2) : match.start()],
        text[match.end() : match.end() + 2],
    )
    return bool(_BESIDE.fullmatch(before) or _BESIDE.fullmatch(after[::-1]))
