"""Personal data and secrets, replaced by tokens and counted: e-mail, IP, phone, keys.

Patterns are careful rather than greedy: what they miss stays, but a version number or a date is not
taken for a phone. Every pattern starts at a bounded place and has bounded parts, so that no text
takes more than linear time.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Check = Callable[[str], bool] | None


@dataclass(frozen=True)
class Personal:
    """The token for each kind; None leaves that kind alone."""

    key: str | None = "<KEY>"
    email: str | None = "<EMAIL>"
    ip: str | None = "<IP>"  # addresses of the public internet only
    phone: str | None = "<PHONE>"


@dataclass(frozen=True)
class Scrubbed:
    texts: list[str]
    counts: list[dict[str, int]]  # per document, replacements by kind; no entry where none


_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9_%+][A-Za-z0-9._%+-]{0,63}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)
_IP4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w]|\.[0-9])")
_IP6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?![\w:])")
# International with +, or ten digits as North America writes them: brackets, hyphens or dots,
# since blanks alone stand in tables of numbers too.
_PHONE = re.compile(
    r"(?<![\w+.-])(?:"
    r"\+[1-9][0-9]{0,2}(?:[ .-]?(?:\([0-9]{1,4}\)|[0-9]{1,4})){2,5}"
    r"|(?:1[ .-])?"
    r"(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-]|[2-9][0-9]{2}[.-][2-9][0-9]{2}[.-])[0-9]{4}"
    r")(?![\w-]|\.[0-9])"
)
_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]|-(?!----)){0,20000}"
    r"-----END [A-Z ]{0,30}PRIVATE KEY-----"
)
_KEY = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}|glpat-[A-Za-z0-9_-]{20,64}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,250}"  # Slack
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|sk-[A-Za-z0-9_-]{20,200}|hf_[A-Za-z0-9]{30,40}"  # model services
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{16,99}"  # Stripe
    r"|eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}"  # JWT
    r")(?![A-Za-z0-9_-])"
)
_KEY_HINT = re.compile(r"AKIA|ASIA|gh[pousr]_|_pat_|glpat-|xox|AIza|sk-|hf_|k_live_|k_test_|eyJ")
_DIGITS = re.compile(r"[0-9]{3}")
# Not of the public internet (IANA's special-purpose registries), fixed here so that the result
# does not depend on the Python that runs.
_OWN = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3"
)
_OWN_4 = [ipaddress.ip_network(block) for block in _OWN.split()]
_PUBLIC_6 = ipaddress.ip_network("2000::/3")
_EXAMPLES_6 = ipaddress.ip_network("2001:db8::/32")


def scrub(texts: Sequence[str], config: Personal) -> Scrubbed:
    done = [_scrub(text, config) for text in texts]
    return Scrubbed([text for text, _ in done], [counts for _, counts in done])


def _scrub(text: str, config: Personal) -> tuple[str, dict[str, int]]:
    counts: dict[str, int] = {}

    def replace(
        kind: str, token: str, pattern: re.Pattern[str], text: str, sure: Check = None
    ) -> str:
        def swap(match: re.Match[str]) -> str:
            if sure is not None and not sure(match[0]):
                return match[0]
            counts[kind] = counts.get(kind, 0) + 1
            return token

        return pattern.sub(swap, text)

    if config.key is not None:
        if "PRIVATE KEY" in text:
            text = replace("key", config.key, _BLOCK, text)
        if _KEY_HINT.search(text):
            text = replace("key", config.key, _KEY, text)
    if config.email is not None and "@" in text:
        text = replace("email", config.email, _EMAIL, text)
    if config.ip is not None:
        if "." in text:
            text = replace("ip", config.ip, _IP4, text, _public)
        if "::" in text or text.count(":") >= 7:
            text = replace("ip", config.ip, _IP6, text, _public)
    if config.phone is not None and _DIGITS.search(text):
        text = replace("phone", config.phone, _PHONE, text, _enough_digits)
    return text, counts


def _enough_digits(text: str) -> bool:
    """As many as a telephone number has (ITU-T E.164: at most 15)."""
    return 8 <= sum(map(str.isdigit, text)) <= 15


def _public(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.version == 4:
        if len(text) == 7:  # 1.6.0.5 is a version; public addresses of four digits are few
            return False
        return not any(address in block for block in _OWN_4)
    return address in _PUBLIC_6 and address not in _EXAMPLES_6
