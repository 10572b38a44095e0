"""Keys of services by their shape, and passwords and tokens by the name they are assigned to.

Source code mentions passwords more often than it contains them: `password=password`,
`token = next(it)`, `secret: str`. A value counts only if it is text, not an expression, and looks
random: letters with digits, or more. A password of letters alone is not found.
"""

import re
from collections.abc import Callable, Iterator

_BLOCK_MARK = "PRIVATE KEY"
_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"[^-]{0,40000}+(?:-(?!----)[^-]{0,2000}+){0,50}+"
    r"-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
)
_END = r"(?![A-Za-z0-9_-])"
# The first characters of a service's key, and the pattern of the whole key.
_SHAPES = [
    (mark, re.compile(rest + _END))
    for mark, rest in {
        "AKIA": r"AKIA[0-9A-Z]{16}",
        "ASIA": r"ASIA[0-9A-Z]{16}",
        "ghp_": r"ghp_[A-Za-z0-9]{36,255}",
        "gho_": r"gho_[A-Za-z0-9]{36,255}",
        "ghu_": r"ghu_[A-Za-z0-9]{36,255}",
        "ghs_": r"ghs_[A-Za-z0-9]{36,255}",
        "ghr_": r"ghr_[A-Za-z0-9]{36,255}",
        "github_pat_": r"github_pat_[A-Za-z0-9_]{22,255}",
        "glpat-": r"glpat-[A-Za-z0-9_-]{20,64}",
        "xox": r"xox[abeoprs]-[A-Za-z0-9-]{10,250}",
        "xapp-": r"xapp-[A-Za-z0-9-]{20,250}",
        "AIza": r"AIza[A-Za-z0-9_-]{35}",
        "sk-": r"sk-[A-Za-z0-9_-]{20,200}",
        "hf_": r"hf_[A-Za-z0-9]{30,40}",
        "k_live_": r"k_live_[A-Za-z0-9]{16,99}",
        "k_test_": r"k_test_[A-Za-z0-9]{16,99}",
        "npm_": r"npm_[A-Za-z0-9]{36}",
        "pypi-": r"pypi-[A-Za-z0-9_-]{50,400}",
        "eyJ": r"eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}",
    }.items()
]
_WORD = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_BEARER = re.compile(r"[ \t]{1,4}([A-Za-z0-9._~+/-]{16,2000}=*)")
_SCHEME = re.compile(
    r"[\"']?[ \t]{0,4}[:=,][ \t]{0,4}[\"']?(?:basic|token)[ \t]{1,4}([A-Za-z0-9._~+/-]{12,2000}=*)",
    re.IGNORECASE,
)

# Lower-case names, grouped by a common part that is searched for first. A password may be short; a
# token is long and looks random.
_PASSWORDS = {
    "pass": ("password", "passwd", "passwort", "passphrase", "mot de passe"),
    "pwd": ("pwd",),
    "kennwort": ("kennwort",),
    "contraseña": ("contraseña",),
    "senha": ("senha",),
    "パスワード": ("パスワード",),
    "密码": ("密码",),
}
_TOKENS = {
    "secret": ("secret",),
    "token": ("token",),
    "key": (
        "api_key", "apikey", "api-key", "api key", "access_key", "accesskey", "access key",
        "auth_key", "encryption_key", "signing_key",
    ),
}  # fmt: skip
_ASSIGNED = re.compile(
    r"(?:[_-]?(?:access[_-]?)?(?:key|token))?[0-9]?"
    r"(?:[\"'\]]{0,2}[ \t]{0,4}(?:=>|:=|=(?!=)|:(?!:)|：)[ \t]{0,4}"
    r"|>|[ \t]{1,2}(?:is|was|ist|lautet|est|es|è)[ \t]{0,2}:?[ \t]{1,2})"
    r"(?:[rbuRBU]{0,2}(?P<quote>[\"'`])(?P<text>[^\"'`\s]{4,200})(?P=quote)"
    r"|(?P<plain>[^\s\"'`,;&<>(){}\[\]$]{1,200}+"
    r"(?:&(?![\w.-]{1,30}=)[^\s\"'`,;&<>(){}\[\]$]{0,200}+){0,8}+)(?![(\[{$]))",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"[ \t]{1,2}(?P<plain>[^\s\"'`,;&<>(){}\[\]$-][^\s\"'`<>(){}\[\]$]{3,200}+)(?![(\[])"
)
_USERINFO = re.compile(r"[^\s:/@\"'`<>?#]{0,64}:([^\s/@\"'`<>{}$*]{3,100})@[A-Za-z0-9\[]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_VARIABLE = re.compile(
    r"pass(?:word|wd|phrase|[_0-9]|\Z)|pwd|pw[0-9_]|secret|token|key|auth|user|arg|val|param|str|name|field|none|null|true|false"
    r"|your|example|change|test[0-9]?\Z|text|data|self|type|hash|x{4}",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(r"[<>{}$]|%[(sdr]|\*{3}|\.{3}|x{4}|your|example|placeholder", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9+/=_.~:-]+\Z")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_TURN = re.compile(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])")


def find_keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of private key blocks, keys of known services, and tokens in headers."""
    if _BLOCK_MARK in text:
        for match in _BLOCK.finditer(text):
            yield match.span()
    for mark, shape in _SHAPES:
        at = text.find(mark) if mark[-1] in text else -1
        while at >= 0:
            start = at - 1 if mark.startswith("k_") else at  # sk_live_ or rk_live_
            found = shape.match(text, at)
            free = start == 0 or (start > 0 and text[start - 1] not in _WORD)
            if found and free and (start == at or text[start] in "rsp") and _mixed(mark, found[0]):
                yield start, found.end()
                at = found.end() - 1
            at = text.find(mark, at + 1)
    if "earer" in text or "EARER" in text:
        for at in _places(_lower(text), "bearer"):
            found = _BEARER.match(text, at)
            if found and _has_both(found[1]):
                yield found.span(1)
    if "uthorization" in text or "UTHORIZATION" in text:
        for at in _places(_lower(text), "authorization"):
            found = _SCHEME.match(text, at)
            if found and found[1][1:] != found[1][1:].lower():
                yield found.span(1)


def find_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Yield the values of passwords, secrets, tokens and keys, and passwords in URLs."""
    lower = _lower(text)
    for stems, is_secret in ((_PASSWORDS, _is_password), (_TOKENS, _is_token)):
        for stem, names in stems.items():
            for name in names if stem in lower else ():
                for end in _places(lower, name):
                    if "public" in lower[max(0, end - len(name) - 12) : end]:
                        continue  # publicKeyToken
                    found = _ASSIGNED.match(text, end)
                    if found is None and _is_option(text, end - len(name)):
                        found = _OPTION.match(text, end)
                    if found is not None:
                        yield from _judged(text, found, is_secret)
    at = text.find("://")
    while at >= 0:
        found = _USERINFO.match(text, at + 3)
        if found and not re.fullmatch(r"%\w|pass\w*|pw|user\w*|secret|x+|\.+", found[1].lower()):
            yield found.span(1)
        at = text.find("://", at + 3)


def _judged(
    text: str, found: re.Match[str], is_secret: Callable[[str, bool], bool]
) -> Iterator[tuple[int, int]]:
    groups = found.groupdict()
    if groups.get("text"):
        if is_secret(groups["text"], True):
            yield found.span("text")
        return
    start, end = found.span("plain")
    while end > start and text[end - 1] in ".,:;\\":
        end -= 1
    if is_secret(text[start:end], False):
        yield start, end


def _is_password(value: str, quoted: bool) -> bool:
    if len(value) < 4 or _TEMPLATE.search(value):
        return False
    if not quoted and _IDENTIFIER.match(value) and (_VARIABLE.search(value) or "." in value):
        return False
    if value.isdigit():
        return len(value) >= 6
    letters = any(c.isalpha() for c in value)
    if letters and any(c.isdigit() for c in value):
        return len(value) >= 6
    # Letters with signs: `P@ssword!`, but not `Password:` or `it's`.
    return (
        letters
        and len(value) >= 8
        and any(c in "@#%^&*!?" for c in value[:-1])
        and value.lower() != value
        and value.isascii()
    )


def _is_token(value: str, quoted: bool) -> bool:
    if len(value) < 12 or _TEMPLATE.search(value) or not _TOKEN.match(value):
        return False
    if not quoted and "." in value and _IDENTIFIER.match(value):
        return False
    turns = len(_TURN.findall(value))
    cases = value.lower() != value and value.upper() != value
    digits = sum(c.isdigit() for c in value)
    return turns >= 3 or (turns >= 1 and cases and len(value) >= 16 and digits >= 2)


def _has_both(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _mixed(mark: str, key: str) -> bool:
    """Check that a key with a common prefix has digits, unlike `sk-` and hyphenated words."""
    return mark not in ("sk-", "pypi-", "xox") or any(map(str.isdigit, key))


def _is_option(text: str, at: int) -> bool:
    """Return whether the name at a position is a command-line option: `--db-password`."""
    return text[max(0, at - 12) : at].rpartition(" ")[2].startswith("--")


def _places(lower: str, name: str) -> Iterator[int]:
    """Yield the end of each occurrence of a name."""
    at = lower.find(name)
    while at >= 0:
        yield at + len(name)
        at = lower.find(name, at + len(name))


def _lower(text: str) -> str:
    """Lower-case a text without moving its characters: some capitals have two lower-case ones."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)
