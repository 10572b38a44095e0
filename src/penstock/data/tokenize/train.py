"""Training a tokenizer for any text: the sample it learns from, and how text is cut.

The sample is made of the documents with the smallest hashes, so it depends on what the documents
are and not on their order, and samples of parts, put together, give the sample of the whole. Memory
is bounded by its size.

Text is cut as GPT-4o's tokenizer cuts it: words with the blank or sign before them, combining marks
with their letters, digits in groups of at most three. It suits prose better than the pattern of
`tokenizer.train` and code as well, and fast engines have native code for it.
"""

import heapq
from collections.abc import Iterable

import xxhash

from penstock.data.format.types import Progress
from penstock.data.tokenize.special import END
from penstock.data.tokenize.tokenizer import train_bpe
from penstock.errors import PenstockError

REVISION = 1  # of what is sampled and how it is cut: another result needs another number
SAMPLE_BYTES = 64 << 20
ROLES = ("system", "user", "assistant", "tool")  # of the default chat template
SPECIAL = [END, *(f"<|{role}|>" for role in ROLES)]
MIN_VOCAB = 256 + len(SPECIAL)

_DOCUMENT_CHARACTERS = 1 << 18  # of a document: one of 60 MB should not be the whole sample
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"  # 's, 'll: with their word
SPLIT_PATTERN = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)


class TextSample:
    """The texts with the smallest hashes that together reach `most_bytes`."""

    def __init__(self, most_bytes: int = SAMPLE_BYTES) -> None:
        self._most_bytes = max(1, most_bytes)
        self._kept: list[tuple[int, str]] = []  # a heap: the largest hash, negated, on top
        self._bytes = 0

    def add(self, texts: Iterable[str]) -> None:
        for text in filter(None, texts):
            head = text[:_DOCUMENT_CHARACTERS]
            content = head.encode()
            heapq.heappush(self._kept, (-xxhash.xxh3_64_intdigest(content), head))
            self._bytes += len(content)
            while self._bytes - (size := len(self._kept[0][1].encode())) >= self._most_bytes:
                heapq.heappop(self._kept)
                self._bytes -= size

    def texts(self) -> list[str]:
        return [text for _, text in sorted(self._kept, reverse=True)]


def train_tokenizer(
    texts: Iterable[str],
    vocab: int,
    progress: Progress | None = None,
    sample_bytes: int = SAMPLE_BYTES,
) -> bytes:
    """A tokenizer.json with `vocab` tokens, or fewer where the texts give out."""
    if vocab < MIN_VOCAB:
        raise PenstockError(
            f"A vocabulary of {vocab} is too small: every byte and the special tokens need "
            f"{MIN_VOCAB}. Set tokens.vocab to {MIN_VOCAB} or more."
        )
    sample = TextSample(sample_bytes)
    sample.add(texts)
    learned_from = sample.texts()
    if not learned_from:
        raise PenstockError("There is no text to train a tokenizer on: no document was kept.")
    tell = progress or (lambda what, done, total: None)
    tell("train tokenizer", 0, len(learned_from))
    content = train_bpe(_told(learned_from, tell), vocab, SPLIT_PATTERN, SPECIAL)
    tell("train tokenizer", len(learned_from), len(learned_from))
    return content


def _told(texts: list[str], tell: Progress) -> Iterable[str]:
    for done, text in enumerate(texts):
        if done % 1024 == 0:
            tell("train tokenizer", done, len(texts))
        yield text
