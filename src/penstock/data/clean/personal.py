"""Personal data and secrets, replaced by a placeholder of their kind and counted.

The recognisers (`addresses`, `numbers`, `secrets`) are careful: the shape alone is enough only if
nothing else has it. Otherwise a check digit or a word before the number must agree, so that dates,
versions, prices and source code stay. Each recogniser searches for a cheap mark first (a digit, an
`@`, a keyword) and examines a bounded span around it, so the time is linear in the text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from penstock.data.clean.addresses import find_emails, find_ips
from penstock.data.clean.numbers import find_cards, find_ibans, find_phones, find_ssns
from penstock.data.clean.secrets import find_keys, find_secrets

REVISION = 2  # raise it when a recogniser gives another result for the same text
_PASSES = 4  # a placeholder can make the text beside it match; more passes are not needed


@dataclass(frozen=True)
class Personal:
    """The placeholder of each kind; None leaves that kind alone."""

    key: str | None = "<KEY>"
    secret: str | None = "<SECRET>"
    email: str | None = "<EMAIL>"
    ip: str | None = "<IP>"  # addresses of the public internet only
    iban: str | None = "<IBAN>"
    card: str | None = "<CARD>"
    ssn: str | None = "<SSN>"
    phone: str | None = "<PHONE>"


@dataclass(frozen=True)
class ScrubbedTexts:
    """Texts with placeholders, and how many of each kind every text got."""

    texts: list[str]
    counts: list[dict[str, int]]  # per document: kind → replacements, without zeros


@dataclass(frozen=True, order=True)
class PersonalSpan:
    """A span of text that is personal data."""

    start: int
    end: int
    kind: str


# If two kinds match the same characters, the first in this table wins.
_FINDERS: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {
    "key": find_keys,
    "secret": find_secrets,
    "email": find_emails,
    "iban": find_ibans,
    "card": find_cards,
    "ip": find_ips,
    "ssn": find_ssns,
    "phone": find_phones,
}
_RANKS = {kind: rank for rank, kind in enumerate(_FINDERS)}


def scrub_texts(texts: Sequence[str], config: Personal) -> ScrubbedTexts:
    """Replace personal data in each text by the placeholders of `config`."""
    tokens = {kind: token for kind, token in asdict(config).items() if token is not None}
    done = [_scrub(text, tokens) for text in texts]
    return ScrubbedTexts([text for text, _ in done], [counts for _, counts in done])


def find_personal(text: str, kinds: Sequence[str]) -> list[PersonalSpan]:
    """Return the personal data in a text, in order and without overlaps."""
    every = [
        PersonalSpan(start, end, kind)
        for kind, finder in _FINDERS.items()
        if kind in kinds
        for start, end in finder(text)
    ]
    kept: list[PersonalSpan] = []
    for one in sorted(every):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
        elif _RANKS[one.kind] < _RANKS[kept[-1].kind]:
            kept[-1] = one
    return kept


def _scrub(text: str, tokens: dict[str, str]) -> tuple[str, dict[str, int]]:
    counts: dict[str, int] = {}
    kinds = tuple(tokens)
    for _ in range(_PASSES):
        found = find_personal(text, kinds)
        if not found:
            break
        pieces, at = [], 0
        for one in found:
            pieces += [text[at : one.start], tokens[one.kind]]
            at = one.end
            counts[one.kind] = counts.get(one.kind, 0) + 1
        text = "".join([*pieces, text[at:]])
    return text, counts
