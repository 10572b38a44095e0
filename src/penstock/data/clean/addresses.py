"""E-mail addresses, and IP addresses of the public internet."""

import ipaddress
import re
from collections.abc import Iterator

_LATIN = "".join(map(chr, range(0xC0, 0x100)))
_LOCAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%+-" + _LATIN
_LOCAL_MOST = 64  # characters, RFC 5321
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9À-ÿ](?:[A-Za-z0-9À-ÿ-]{0,61}[A-Za-z0-9À-ÿ])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9(-])"
)

_LOGIN = re.compile(r"://[^\s/@]{0,64}:$")
_IP4 = re.compile(
    r"[0-9](?<![A-Za-z0-9_.].)[0-9]{0,2}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![0-9A-Za-z_]|\.[0-9a-z])"
)
# Public IPv6 is 2000::/3, so that its first group has four digits and begins with 2 or 3.
_IP6 = re.compile(
    r"[23](?:(?<![A-Za-z0-9_:.].)|(?<=[A-Za-z]{3}:.))[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{1,34}(?![A-Za-z0-9_:])"
)
# Not of the public internet (IANA's special-purpose registries). Fixed here, so that the result
# does not depend on the Python version.
_OWN = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3"
)
_OWN_4 = [ipaddress.IPv4Network(block) for block in _OWN.split()]
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_OWN_6 = [ipaddress.IPv6Network(block) for block in ("2001::/23", "2001:db8::/32", "3fff::/20")]

# Four numbers with dots are a version, a section or a clause after these.
_VERSION = re.compile(
    r"(?:(?<![a-z])(?:v|ver|vers|versions?|releases?|released|since|until|rev|revision|build|firmware"
    r"|driver|sections?|sec|chapter|clause|table|figure|fig|appendix|annex|rule|item|paragraph"
    r"|update[ds]?|upgraded? to|changes in|new in|oid|asn)"
    r"|§|[~<>^!]=|[<>^]|[a-z0-9_\]-]==)[^\n0-9a-z]{0,6}"
    r"(?:[0-9](?:[0-9. ,-]|and|or|to|through){0,30})?$"
)
_PRODUCT = re.compile(r"(?:(?<![\w/.:-])[A-Z][\w.+-]{1,30}/|[A-Za-z][-_])$")  # Firefox/, foo-
_HEADING = re.compile(r"[ \t]+[A-Z][a-z]+ ?[a-z]")


def find_emails(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of e-mail addresses; `git@host:path` and `a@b.method()` are not addresses."""
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        if domain is not None:
            before = text[max(0, at - _LOCAL_MOST - 1) : at]
            local = before[len(before.rstrip(_LOCAL)) :]
            start = at - len(local.lstrip(".-"))
            whole = len(local) <= _LOCAL_MOST and start < at
            if whole and not _is_remote(text, start, at, domain.end()):
                yield start, domain.end()
        at = text.find("@", at + 1)


def _is_remote(text: str, start: int, at: int, end: int) -> bool:
    """Return whether this is a login on a host: `git@host:path` or `https://user:word@host`."""
    if text[start:at] == "git":
        return text[end : end + 1] == ":"
    return text[start - 1 : start] == ":" and bool(_LOGIN.search(text[max(0, start - 80) : start]))


def find_ips(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of public IP addresses; versions and section numbers are not addresses."""
    if text.count(".") >= 3:
        for match in _IP4.finditer(text):
            if _public_4(match[0]) and not _is_version(text, match):
                yield match.span()
    if ":" in text:
        for match in _IP6.finditer(text):
            if _public_6(match[0]):
                yield match.span()


def _public_4(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not any(address in block for block in _OWN_4)


def _public_6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return address in _PUBLIC_6 and not any(address in block for block in _OWN_6)


def _is_version(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - 48) : match.start()]
    if _PRODUCT.search(before) or _VERSION.search(before.lower()):
        return True
    line_start = not before.rsplit("\n", 1)[-1].strip(" \t#*=")
    return line_start and _HEADING.match(text, match.end()) is not None
