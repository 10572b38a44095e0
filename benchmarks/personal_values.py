"""Values for the personal-data test set: numbers, addresses and keys that belong to no person.

Telephone numbers come from ranges that regulators reserve for fiction (555-01xx, Ofcom, BNetzA,
ARCEP, ACMA) or from blocks that are not allocated. Cards are the test numbers that payment services
publish. IBANs, social security numbers and keys are random, with valid check digits.

This file knows how people write such values. It imports nothing from Penstock, so that it does not
repeat the recognisers' own idea of them.
"""

import base64
import json
import random
import string
from collections.abc import Callable

Rng = random.Random
Maker = Callable[[Rng], str]

_ALNUM = string.ascii_letters + string.digits
_GIVEN = ["jane", "li", "mateo", "amelie", "kenji", "priya", "lars", "chiara", "joao", "fatima"]
_FAMILY = ["doe", "wang", "garcia", "dupont", "sato", "sharma", "schmidt", "rossi", "silva", "khan"]
_HOSTS = ["example.com", "mail.example.org", "example.co.uk", "web.example.de", "ex-ample.net",
          "example.museum", "lists.example.edu", "a.b.example.fr"]  # fmt: skip


def digits(rng: Rng, count: int) -> str:
    return "".join(rng.choices(string.digits, k=count))


def _any(rng: Rng, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def email(rng: Rng) -> str:
    given, family = rng.choice(_GIVEN), rng.choice(_FAMILY)
    name = rng.choice(
        [f"{given}.{family}", f"{given[0]}{family}", f"{given}_{family}{rng.randint(1, 99)}",
         f"{given}+news", f"{family}-{given}", given.title() + "." + family.title(),
         f"{given}{rng.randint(1950, 2010)}", f"info.{given}", f"{given.upper()}"]
    )  # fmt: skip
    return f"{name}@{rng.choice(_HOSTS)}"


def ip4(rng: Rng) -> str:
    if rng.random() < 0.3:
        return rng.choice(["8.8.8.8", "1.1.1.1", "9.9.9.9", "1.2.3.4", "4.2.2.2", "8.8.4.4"])
    first = rng.choice([5, 23, 34, 45, 62, 81, 91, 104, 142, 151, 178, 185, 195, 212, 217])
    return f"{first}.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}"


def ip6(rng: Rng) -> str:
    first = rng.choice(["2001:4860", "2a00:1450", "2606:4700", "2620:fe", "2a01:4f8", "240e:3b7"])
    tail = [f"{rng.getrandbits(16):x}" for _ in range(6)]
    text = rng.choice(
        [f"{first}::{tail[0]}", f"{first}:{tail[1]}::{tail[0]}", ":".join([first, *tail]),
         f"{first}:{tail[1]}:{tail[2]}::1", f"{first}::"]
    )  # fmt: skip
    return text.upper() if rng.random() < 0.2 else text


def _us(rng: Rng) -> tuple[str, str, str]:
    area = rng.choice(["212", "415", "206", "312", "617", "416", "604", "514", "713", "907"])
    return area, "555", f"01{digits(rng, 2)}"


def us_phone(rng: Rng) -> str:
    a, b, c = _us(rng)
    return rng.choice(
        [f"({a}) {b}-{c}", f"({a}){b}-{c}", f"{a}-{b}-{c}", f"{a}.{b}.{c}", f"1-{a}-{b}-{c}",
         f"1 ({a}) {b}-{c}", f"+1 {a} {b} {c}", f"+1-{a}-{b}-{c}", f"+1{a}{b}{c}",
         f"+1 ({a}) {b}-{c}", f"({a}) {b} {c}", f"({a}) {b}.{c}"]
    )  # fmt: skip


def uk_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"020 7946 0{x}", f"(020) 7946 0{x}", f"020-7946-0{x}", f"0161 496 0{x}",
         f"01632 960{x}", f"01632 960 {x}", f"07700 900{x}", f"07700 900 {x}", f"(01632) 960{x}",
         f"+44 20 7946 0{x}", f"+44 (0)20 7946 0{x}", f"+447700900{x}", f"0044 20 7946 0{x}",
         f"+44 7700 900{x}", f"0113 496 0{x}", f"(0161) 496 0{x}"]
    )  # fmt: skip


def de_phone(rng: Rng) -> str:
    x, y = digits(rng, 3), digits(rng, 2)
    return rng.choice(
        [f"030 23125{x}", f"030/23125{x}", f"(030) 23125{x}", f"030-23125{x}", f"069 90009{x}",
         f"040 66969 {x}", f"0221 / 4710{x}", f"089 99998{x}", f"0171 39200{y}", f"0171/39200{y}",
         f"+49 30 23125{x}", f"+49 (0)30 23125-{x}", f"+49 171 39200{y}", f"0049 89 99998{x}",
         f"030 231 25 {x}", f"+49(0)221/4710{x}", f"(0 30) 23 12 5{x}", "030 123456"]
    )  # fmt: skip


def fr_phone(rng: Rng) -> str:
    head = rng.choice([("01", "99", "00"), ("02", "61", "91"), ("06", "39", "98")])
    pairs = [*head, digits(rng, 2), digits(rng, 2)]
    plain = "".join(pairs)
    return rng.choice(
        [" ".join(pairs), ".".join(pairs), "-".join(pairs),
         f"+33 {plain[1]} " + " ".join(pairs[1:]),
         f"+33{plain[1:]}", f"+33 (0){plain[1]} " + " ".join(pairs[1:]),
         f"0033 {plain[1]} " + " ".join(pairs[1:])]
    )  # fmt: skip


def es_phone(rng: Rng) -> str:
    x = digits(rng, 2)
    return rng.choice(
        [f"+34 910 000 0{x}", f"+34 600 00 00 {x}", f"+34600000{x}0", f"91 000 00 {x}",
         f"600 00 00 {x}", f"0034 910 000 0{x}", f"(+34) 600 000 0{x}", f"910 00 00 {x}"]
    )  # fmt: skip


def it_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"06 0000 0{x}", f"02 00000{x}", f"+39 06 0000 0{x}", f"+39 347 000 0{x}",
         f"+39 3470000{x}", f"0039 02 00000{x}", f"06-00000{x}", f"(+39) 347 0000{x}",
         f"06/00000{x}", f"055 000 0{x}"]
    )  # fmt: skip


def au_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"(02) 5550 0{x}", f"02 5550 0{x}", f"(03) 7010 0{x}", f"0491 570 {x}", f"0491-570-{x}",
         f"+61 2 5550 0{x}", f"+61 491 570 {x}", f"+61 (0)3 7010 0{x}", f"+61491570{x}"]
    )  # fmt: skip


def in_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"+91 90000 00{x}", f"+91-9000000{x}", f"+919000000{x}", f"022-20000{x}",
         f"022 2000 0{x}", f"+91 22 2000 0{x}", f"011-20000{x}", f"(022) 2000 0{x}",
         f"0091 90000 00{x}", f"080-2000 0{x}"]
    )  # fmt: skip


def br_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"(11) 90000-0{x}", f"(11) 5550-0{x}", f"(21) 5550 0{x}", f"11 90000-0{x}",
         f"+55 11 90000-0{x}", f"+55 (11) 5550-0{x}", f"+5511900000{x}", f"(11)90000-0{x}"]
    )  # fmt: skip


def jp_phone(rng: Rng) -> str:
    x = digits(rng, 3)
    return rng.choice(
        [f"03-0000-0{x}", f"090-0000-0{x}", f"080-0000-0{x}", f"0120-000-{x}", f"045-000-0{x}",
         f"+81 3-0000-0{x}", f"+81-90-0000-0{x}", f"03(0000)0{x}", f"(03) 0000-0{x}"]
    )  # fmt: skip


PHONES: dict[str, Maker] = {
    "us": us_phone, "uk": uk_phone, "de": de_phone, "fr": fr_phone, "es": es_phone,
    "it": it_phone, "au": au_phone, "in": in_phone, "br": br_phone, "jp": jp_phone,
}  # fmt: skip


def bare_phone(rng: Rng) -> str:
    """Without separators, or in groups that a number of any kind has: only words tell."""
    a, b, c = _us(rng)
    x = digits(rng, 3)
    return rng.choice(
        [f"{a}{b}{c}", f"{a} {b} {c}", f"{b}-{c}", f"02079460{x}", f"07700900{x}", f"0199000{x}",
         f"9000000{x}", f"90000 00{x}", f"600000{x}", f"600 000 {x}", f"0491570{x}",
         f"11900000{x}", f"0900000{x}0", f"347 000 0{x}", f"910 000 {x}"]
    )  # fmt: skip


# ISO 13616: the shape of what follows a country's letters and check digits (n digits, a letters)
_IBANS = {
    "DE": "n18", "GB": "a4n14", "FR": "n20a1n2", "ES": "n20", "IT": "a1n22", "NL": "a4n10",
    "CH": "n17", "AT": "n16", "BE": "n12", "PL": "n24", "SE": "n20", "NO": "n11", "PT": "n21",
    "IE": "a4n14", "SA": "n20", "BR": "n23a1n1", "TR": "n22", "MT": "a4n23",
}  # fmt: skip


def iban_plain(rng: Rng) -> str:
    country = rng.choice(sorted(_IBANS))
    shape, account = _IBANS[country], ""
    while shape:
        kind, rest = shape[0], shape[1:]
        count = rest[: len(rest) - len(rest.lstrip(string.digits))]
        shape = rest[len(count) :]
        account += _any(rng, string.digits if kind == "n" else string.ascii_uppercase, int(count))
    number = int("".join(str(int(c, 36)) for c in f"{account}{country}00"))
    return f"{country}{98 - number % 97:02}{account}"


def grouped(text: str, size: int, separator: str) -> str:
    return separator.join(text[i : i + size] for i in range(0, len(text), size))


def iban(rng: Rng) -> str:
    plain = iban_plain(rng)
    return rng.choice(
        [plain, grouped(plain, 4, " "), grouped(plain, 4, " "), grouped(plain, 4, "-")]
    )


_CARDS = [
    "4111111111111111", "4242424242424242", "4012888888881881", "4000056655665556",
    "5555555555554444", "5105105105105100", "5200828282828210", "2223003122003222",
    "378282246310005", "371449635398431", "6011111111111117", "6011000990139424",
    "3530111333300000", "3566002020360505", "30569309025904", "38520000023237",
    "6200000000000005", "4222222222222",
]  # fmt: skip


def card(rng: Rng) -> str:
    plain = rng.choice(_CARDS)
    mark = rng.choice(["", " ", " ", "-"])
    if len(plain) == 16:
        return grouped(plain, 4, mark) if mark else plain
    if len(plain) in (14, 15):
        return mark.join([plain[:4], plain[4:10], plain[10:]])
    return plain


def ssn(rng: Rng) -> str:
    """An area that was never given out by state."""
    area, group, serial = rng.randint(773, 899), rng.randint(1, 99), rng.randint(1, 9999)
    mark = rng.choice(["-", "-", "-", " "])
    return f"{area:03}{mark}{group:02}{mark}{serial:04}"


def bare_ssn(rng: Rng) -> str:
    return f"{rng.randint(773, 899)}{rng.randint(1, 99):02}{rng.randint(1, 9999):04}"


def _jwt(rng: Rng) -> str:
    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    head = part({"alg": rng.choice(["HS256", "RS256"]), "typ": "JWT"})
    body = part({"sub": digits(rng, 10), "iat": rng.randint(1_500_000_000, 1_700_000_000)})
    return f"{head}.{body}.{_any(rng, _ALNUM + '-_', 43)}"


def _block(rng: Rng) -> str:
    kind = rng.choice(["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY",
                       "ENCRYPTED PRIVATE KEY"])  # fmt: skip
    lines = [_any(rng, _ALNUM + "+/", 64) for _ in range(rng.randint(2, 14))]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])


def key(rng: Rng) -> str:
    upper = string.ascii_uppercase + string.digits
    return rng.choice(
        [lambda: rng.choice(["AKIA", "ASIA"]) + _any(rng, string.ascii_uppercase + "234567", 16),
         lambda: rng.choice(["ghp_", "gho_", "ghs_"]) + _any(rng, _ALNUM, 36),
         lambda: "github_pat_" + _any(rng, _ALNUM, 22) + "_" + _any(rng, _ALNUM, 59),
         lambda: f"xoxb-{digits(rng, 12)}-{digits(rng, 13)}-{_any(rng, _ALNUM, 24)}",
         lambda: (
             f"xapp-1-{_any(rng, upper, 11)}-{digits(rng, 13)}-{_any(rng, 'abcdef0123456789', 64)}"
         ),
         lambda: "AIza" + _any(rng, _ALNUM + "-_", 35),
         lambda: "sk-" + _any(rng, _ALNUM, 48),
         lambda: "sk-proj-" + _any(rng, _ALNUM + "-_", 74),
         lambda: "sk-ant-api03-" + _any(rng, _ALNUM + "-_", 93) + "AA",
         lambda: "hf_" + _any(rng, string.ascii_letters, 34),
         lambda: "glpat-" + _any(rng, _ALNUM, 20),
         lambda: "sk_live_" + _any(rng, _ALNUM, 24),
         lambda: "npm_" + _any(rng, _ALNUM, 36),
         lambda: "pypi-AgEIcHlwaS5vcmc" + _any(rng, _ALNUM + "-_", 120),
         lambda: _jwt(rng), lambda: _jwt(rng), lambda: _block(rng), lambda: _block(rng)]
    )()  # fmt: skip


def bearer(rng: Rng) -> str:
    return _any(rng, _ALNUM, rng.choice([24, 32, 40])) + rng.choice(["", "", "="])


def password(rng: Rng) -> str:
    word = rng.choice(["hunter", "Sommer", "dragon", "Passw0rd", "tr0ub4dor", "qwerty", "S3cret"])
    return rng.choice(
        [f"{word}{rng.randint(2, 99)}", f"{word}{rng.choice('!#%&*')}{rng.randint(1, 9999)}",
         _any(rng, _ALNUM, 12) + digits(rng, 1), f"{word}_{rng.randint(1990, 2024)}!",
         _any(rng, _ALNUM + "!#%*+-", 14) + digits(rng, 2)]
    )  # fmt: skip


def api_secret(rng: Rng) -> str:
    return rng.choice(
        [_any(rng, "abcdef0123456789", 32), _any(rng, _ALNUM, 40), _any(rng, _ALNUM, 24),
         _any(rng, _ALNUM + "+/", 40), _any(rng, string.ascii_lowercase + string.digits, 20)]
    )  # fmt: skip
