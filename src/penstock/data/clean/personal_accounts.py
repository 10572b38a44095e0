"""IBANs, numbers of payment cards and US social security numbers, by their check rules."""

import re
from collections.abc import Iterator

from penstock.data.clean.personal_context import Clue, clue_before, clusters

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
# The check digits, reached from their first digit: two capitals stand before them, no word before.
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
    """Finds IBANs of a known country's length whose remainder by 97 is right."""
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
    """Checks the remainder by 97 of an IBAN without separators."""
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Finds numbers that an issuer could have given out and whose check digit is right."""
    for start, end in clusters(text, 13):
        for match in _CARD.finditer(text, start, end):
            plain = match[0].replace(" ", "").replace("-", "")
            if _issued(plain) and luhn_is_valid(plain) and not _IDENTIFIER.match(text, match.end()):
                separated = len(plain) < len(match[0])
                if separated or clue_before(text, match.start()) is not Clue.NUMBER:
                    yield match.span()


def luhn_is_valid(plain: str) -> bool:
    """Checks the last digit by the Luhn rule."""
    odd, even = plain[-1::-2], plain[-2::-2]
    return (sum(map(int, odd)) + sum(sum(divmod(2 * int(d), 10)) for d in even)) % 10 == 0


def _issued(plain: str) -> bool:
    """Says whether prefix and length are those of a network of cards."""
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
    """Finds social security numbers: with separators, or plain after a word that says so."""
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
