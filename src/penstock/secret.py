"""Secrets: what is secret, and what may be shown of it. Below every room, like `errors`.

A value is secret by its field (`FIELDS`) or by its shape: the user and password of a URL, the
values of its query, the path of a webhook, a known kind of key, or the value of an environment
variable such as AWS_SECRET_ACCESS_KEY. Only `run.toml` in the run folder keeps such a value, since
a resume needs it. Everything that is printed, sent or stored elsewhere goes through this file.
"""

import io
import os
import re
from collections.abc import Mapping
from typing import Any, TextIO, TypeVar
from urllib.parse import urlsplit

FIELDS = frozenset({"log.webhook"})
HIDDEN = "…"
LEAST_CHARACTERS = 8  # of a variable's value: a shorter one would hit ordinary words

_Value = TypeVar("_Value")
# One slash is enough: a URL that went through `pathlib` has lost the other one.
_URL = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<rest>[^\s\"'`<>]+)")
# A password may hold "/", "?" or "#": then what follows the first colon is no port.
_BROKEN_PASSWORD = re.compile(r"[^/?#@:\[]+:(?!\d+(?:[/?#.,;:)\]}]|$))(?:.*@|[^/?#]*)")
_USER = re.compile(r"[^/?#]*@")
_USER_IS_A_BUCKET = ("abfs", "abfss", "wasb", "wasbs")  # abfss://container@account…
_HOOK = re.compile(r"hooks\.|[^?#]*/(?:web)?hooks?/|api\.telegram\.org/bot", re.IGNORECASE)
_KEY = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|hf_[A-Za-z0-9]{30,}|sk-[\w-]{20,}"
    r"|AIza[\w-]{35}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
_ASSIGNED = re.compile(
    r"(?i)\b(?P<name>AccountKey|SharedAccessKey|SharedAccessSignature|x-(?:amz|goog)-signature"
    r"|x-(?:amz|goog)-credential|x-amz-security-token|sas|sig)=(?P<value>[^\s&;\"'`<>]+)"
)
_HEADER = re.compile(r"(?i)(?P<name>\bauthorization[\"']?\s*[:=]\s*[\"']?)(?:\w+\s+)?[^\s\"',]+")
_VARIABLE = re.compile(
    r"(?:^|_)(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY"
    r"|PRIVATE_?KEY|SAS|CONNECTION_STRING|CREDENTIALS?|WEBHOOK|HOOK)(?:_|$)",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Hide every secret that `text` holds by shape. Redacting twice changes nothing."""
    for value in _values_of_variables():
        text = text.replace(value, HIDDEN)
    if ":/" in text:
        text = _URL.sub(_redact_url, text)
    if "=" in text:
        text = _ASSIGNED.sub(rf"\g<name>={HIDDEN}", text)
    return _HEADER.sub(rf"\g<name>{HIDDEN}", _KEY.sub(HIDDEN, text))


def redact_all(value: _Value) -> _Value:
    """Redact every text inside lists and tables; anything else stays as it is."""
    hidden: Any = value
    if isinstance(value, str):
        hidden = redact(value)
    elif isinstance(value, Mapping):
        hidden = {name: redact_all(inner) for name, inner in value.items()}
    elif isinstance(value, list | tuple):
        hidden = type(value)(map(redact_all, value))
    return hidden


def visible(field: str, value: _Value) -> _Value:
    """Return what may be shown of a field of the run file, by its name and by its shape.

    `$NAME` names a variable and gives nothing away.
    """
    if isinstance(value, dict):
        inner: Any = {name: visible(f"{field}.{name}", one) for name, one in value.items()}
        return inner
    if field in FIELDS and not str(value).startswith("$"):
        hidden: Any = masked(str(value))
        return hidden
    return redact_all(value)


def visible_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's table as it may leave the run folder."""
    return {name: visible(name, value) for name, value in table.items()}


def visible_override(text: str) -> str:
    """Return what may be shown of an override of the command line: `log.webhook=https://host/…`."""
    name, equals, value = text.partition("=")
    if not equals:
        named = next((field for field in FIELDS if field in text), None)
        return f"{named} {HIDDEN}" if named else redact(text)
    return f"{name}={visible(name.strip(), value.strip())}"


def visible_line(line: str) -> str:
    """Return what may be shown of a line of a run file that is no TOML: its key, if that is secret.

    The section above it is not known: `webhook = …` in any of them is taken for `log.webhook`.
    """
    key = line.partition("=")[0].strip().rpartition(".")[2]
    is_secret = any(field.rpartition(".")[2] in key for field in FIELDS)
    return f"{key.split()[0]} = {HIDDEN}" if is_secret else redact(line)


def is_visible(table: Mapping[str, Any]) -> bool:
    """Return whether a run file's table holds no secret."""
    return visible_table(table) == dict(table)


def masked(url: str) -> str:
    """Return scheme and host of an address: `https://hooks.slack.com/…`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    known = parts.scheme and parts.hostname
    return f"{parts.scheme}://{parts.hostname}/{HIDDEN}" if known else HIDDEN


class RedactedText(io.TextIOWrapper):
    """A text stream that redacts what is written to it, such as the log of a rank."""

    def __init__(self, descriptor: int) -> None:
        raw = io.FileIO(descriptor, "wb", closefd=False)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", write_through=True)

    def write(self, text: str) -> int:
        super().write(redact(text))
        return len(text)


class RedactedStream(io.TextIOBase):
    """A text stream that redacts what it passes on to another."""

    def __init__(self, target: TextIO) -> None:
        self._target = target

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._target.write(redact(text))
        return len(text)

    def flush(self) -> None:
        self._target.flush()


def _values_of_variables() -> list[str]:
    """Return the secret values of the environment, the longest first. A path is no secret."""
    found = {
        value
        for name, value in os.environ.items()
        if len(value) >= LEAST_CHARACTERS and value[0] != "/" and _VARIABLE.search(name)
    }
    return sorted(found, key=len, reverse=True)


def _redact_url(match: re.Match[str]) -> str:
    scheme, rest = match["scheme"], match["rest"]
    begin = f"{scheme}:{match['slashes']}"
    user = _USER.match(rest) or _BROKEN_PASSWORD.match(rest)
    if user and not (scheme.lower() in _USER_IS_A_BUCKET and ":" not in user[0]):
        at = "@" if user[0].endswith("@") else ""
        begin, rest = f"{begin}{HIDDEN}{at}", rest[user.end() :]
    if _HOOK.match(rest):
        return f"{begin}{re.split('[/?#]', rest)[0]}/{HIDDEN}"
    where, mark, query = rest.partition("?")
    if not mark:
        where, mark, query = rest.partition("#")
    # "?" is also a wildcard in the name of an object.
    is_query = "=" in query or (scheme.lower().startswith("http") and "*" not in where)
    return f"{begin}{where}{mark}{_redact_query(query) if is_query else query}"


def _redact_query(query: str) -> str:
    """Keep the names of the parameters and hide their values."""
    pairs = [part.partition("=") for part in re.split("[&;]", query)]
    return "&".join(f"{name}={HIDDEN}" if equals else name and HIDDEN for name, equals, _ in pairs)
