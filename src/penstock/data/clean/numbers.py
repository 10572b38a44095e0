"""Personal numbers: IBANs, payment cards, US social security numbers and telephone numbers.

Check digits and assigned ranges recognise the first three. An international telephone number is
recognised by its country code and length. A national one is recognised by the grouping of its
digits: a trunk zero and a usual grouping, or those of North America, Brazil and Spain. Digits in
any other grouping are a telephone number only after a word such as "phone" or "Tel.".
"""

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from itertools import pairwise

# At least seven digits with at most three separators between two of them, not inside a word.
_CLUSTER = re.compile(r"[0-9](?<![A-Za-z0-9_].)(?:[ ()./\u00a0\u2011\u2013\u202f-]{0,3}[0-9]){6,}+")
_WINDOW = 40  # characters before a number that are searched for a word that names it
_OF_WORD = 10  # characters between a word and the # that belongs to it
_GAP = 24  # characters between that word and the number


class Clue(Enum):
    """The meaning of a number by the nearest word before it."""

    PHONE = "phone"
    SSN = "ssn"
    NUMBER = "number"  # of an order, a book, a part: not personal


_WORDS = re.compile(
    r"(?P<phone>(?<![a-zà-ÿ])(?:tel|tél|tele(?:ph|f)\w*|télé(?:ph|f)\w*|phones?|fon|mobil\w*|cell"
    r"|cell ?phone|cellulare|celular|fax|telefax|whatsapp|sms|hotline|helpline|handy\w*"
    r"|rufnummer|anruf\w*|ruf\w*|durchwahl|call(?:ing)?|dial|appel\w*|joignable|portable"
    r"|ll[aá]m\w*|móvil|movil|chiam\w*|ligue|ligar|contact numbers?|contact no)(?![a-zà-ÿ])"
    r"|電話|携帯|电话|手机|फोन|тел)"
    r"|(?P<ssn>(?<![a-z])(?:ssn|ss#|social security)(?![a-z]))"
    r"|(?P<number>(?<![a-zà-ÿ])(?:orders?|order id|invoice|isbn|issn|ean|upc|sku|serial|ticket|case"
    r"|part|ref|reference|id|uuid|doi|pmid|lccn|patent|item|tracking|shipment|batch|lot|model|code|po"
    r"|rma|claim|policy|flight|account|customer|version|zip|cep|plz|imei|vin|offset|page|pages|pp"
    r"|time|timestamp|epoch|ts|block|trace|port|bestell\w*|rechnung\w*|auftrag\w*|artikel\w*"
    r"|kunden\w*|commande|facture|pedido|factura|ordine|fattura|aktenzeichen|az)(?![a-zà-ÿ])|#|№|[$€£¥])"
)


def clue_before(text: str, start: int) -> Clue | None:
    """Return the clue of the nearest known word before a number, on its line, no digit between."""
    before = text[max(0, start - _WINDOW) : start].lower()
    words = list(_WORDS.finditer(before))
    if not words:
        return None
    last = words[-1]
    gap = before[last.end() :]
    if last[0] in "#№" and len(words) > 1 and last.start() - words[-2].end() <= _OF_WORD:
        last = words[-2]  # "Phone #" and "Social Security #": the word decides
    if len(gap) > _GAP or "\n" in gap or any(map(str.isdigit, gap)):
        return None
    return Clue(last.lastgroup)


def clusters(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Return the spans of digits with separators that have at least `least` characters."""
    return ((start, end) for start, end in _clusters(text) if end - start >= least)


@lru_cache(maxsize=1)
def _clusters(text: str) -> list[tuple[int, int]]:
    """Find the clusters of a text once for all recognisers, which get the same text in turn."""
    return [match.span() for match in _CLUSTER.finditer(text)]


# Characters of an IBAN by country (SWIFT's registry of ISO 13616).
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
    "BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27,
    "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27,
    "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32,
    "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19,
    "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24,
    "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31,
    "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23,
    "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
# Matches from the check digits on: two capitals come before them, and no word before these.
_IBAN = re.compile(
    r"[0-9](?<=[A-Z]{2}.)(?<![A-Za-z0-9_]...)[0-9](?:[ \u00a0\u202f-]?[A-Z0-9]){11,30}+"
)
_CARD = re.compile(
    r"(?<![0-9])(?<![0-9]\.)(?<![0-9]{4}[ -])(?:[0-9]{13,19}"
    r"|[0-9]{4}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{3})?"
    r"|[0-9]{4}([ -])[0-9]{6}\2[0-9]{4,5})(?![0-9]|\.[0-9])"
)
_SSN = re.compile(
    r"(?<![0-9.-])([0-9]{3})(?:-|(?<![0-9] ...)( ))([0-9]{2})(?(2) |-)([0-9]{4})"
    r"(?![0-9-]|\.[0-9]|(?(2) [0-9]|-))"
)
_BARE_SSN = re.compile(r"(?<![0-9.-])([0-9]{3})()([0-9]{2})([0-9]{4})(?![0-9-]|\.[0-9])")
_IDENTIFIER = re.compile(r"[A-Za-z_]")


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of IBANs of a known country's length with a right remainder by 97."""
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        length = _IBAN_LENGTHS.get(text[start : start + 2])
        if length is None:
            continue
        end, plain = start, list[str]()
        while end < match.end() and len(plain) < length:
            if text[end].isalnum():
                plain.append(text[end])
            end += 1
        whole = len(plain) == length and not _IDENTIFIER.match(text, end)
        if whole and not text[end : end + 1].isdigit() and iban_is_valid("".join(plain)):
            yield start, end


def iban_is_valid(plain: str) -> bool:
    """Check the remainder by 97 of an IBAN without separators."""
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of card numbers of a known network with a right check digit."""
    for start, end in clusters(text, 13):
        for match in _CARD.finditer(text, start, end):
            plain = match[0].replace(" ", "").replace("-", "")
            if _issued(plain) and luhn_is_valid(plain) and not _IDENTIFIER.match(text, match.end()):
                separated = len(plain) < len(match[0])
                if separated or clue_before(text, match.start()) is not Clue.NUMBER:
                    yield match.span()


def luhn_is_valid(plain: str) -> bool:
    """Check the last digit by the Luhn rule."""
    odd, even = plain[-1::-2], plain[-2::-2]
    return (sum(map(int, odd)) + sum(sum(divmod(2 * int(d), 10)) for d in even)) % 10 == 0


def _issued(plain: str) -> bool:
    """Return whether prefix and length are those of a card network."""
    size, two, three, four = len(plain), int(plain[:2]), int(plain[:3]), int(plain[:4])
    if plain[0] == "4":  # Visa
        return size in (13, 16, 19)
    if 51 <= two <= 55 or 2221 <= four <= 2720:  # Mastercard
        return size == 16
    if two in (34, 37):  # American Express
        return size == 15
    if 300 <= three <= 305 or two in (36, 38, 39):  # Diners
        return size == 14
    if 3528 <= four <= 3589:  # JCB
        return size == 16
    # Discover and UnionPay
    return (four == 6011 or two in (62, 65) or 644 <= three <= 649) and 16 <= size <= 19


def find_ssns(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of SSNs: with separators, or plain after a word that names them."""
    for start, end in clusters(text, 9):
        for match in _SSN.finditer(text, start, end):
            if _assigned(match) and clue_before(text, match.start()) is not Clue.NUMBER:
                yield match.span()
        for match in _BARE_SSN.finditer(text, start, end):
            if _assigned(match) and clue_before(text, match.start()) is Clue.SSN:
                yield match.span()


def _assigned(match: re.Match[str]) -> bool:
    area, _, group, serial = match.groups()
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


_S = r"[ \u00a0\u202f]"  # spaces
_H = r"[-\u2011\u2013]"  # hyphens
# Rejects words, signs, and the comma, colon or slash of another number before a number.
_OPEN = r"(?<![A-Za-z0-9_+.$-])(?<![0-9][,:/])"
# Least and most digits after the country code; 7 to 12 for other countries.
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
# Group sizes in use after a trunk zero; for two groups see `_is_grouped`.
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
    """Yield the spans of telephone numbers, international and national."""
    for first, last in clusters(text, 8):
        start = first
        while start and text[start - 1] in "+(":
            start -= 1
        yield from _in_cluster(text, start, last)


def _in_cluster(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers in a cluster; the first pattern that matches any wins."""
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
    """Return the span without an opening bracket that the number does not close."""
    opened = match[0].startswith("(") and ")" not in match[0]
    return match.start() + opened, match.end()


def _ends(text: str, end: int) -> bool:
    """Return whether a number can end here: a pattern does not see beyond its cluster."""
    return not _GOES_ON.match(text, end)


def _country_end(match: re.Match[str]) -> int | None:
    """Return the end of the longest part with a country code and a valid number of digits."""
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
    """Check the grouping after a trunk zero; bytes and lists of numbers do not count."""
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
    """Return whether other numbers are beside this one, as in a table."""
    before, after = (
        text[max(0, match.start() - 2) : match.start()],
        text[match.end() : match.end() + 2],
    )
    return bool(_BESIDE.fullmatch(before) or _BESIDE.fullmatch(after[::-1]))
