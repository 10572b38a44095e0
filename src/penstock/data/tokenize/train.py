"""Training of a tokenizer for any text: the sample it learns from, and how text is split.

The sample consists of the documents with the smallest hashes. So it depends on the documents and
not on their order, and the samples of parts, combined, give the sample of the whole. Its size
bounds the memory.

Text is split as by GPT-4o's tokenizer: words with the space or sign before them, combining marks
with their letters, digits in groups of at most three. For prose this is better than the pattern of
`train_code_tokenizer`, for code as good, and fast engines have native code for it.
"""

import heapq
from collections.abc import Iterable

import xxhash

from penstock.data.format.types import Progress
from penstock.data.tokenize.special import END
from penstock.data.tokenize.tokenizer import train_bpe
from penstock.errors import PenstockError

REVISION = 1  # raise it when the sample or the split changes
SAMPLE_BYTES = 64 << 20
MOST_HASH = (1 << 64) - 1
ROLES = ("system", "user", "assistant", "tool")  # of the default chat template
SPECIAL = [END, *(f"<|{role}|>" for role in ROLES)]
MIN_VOCAB = 256 + len(SPECIAL)

_DOCUMENT_CHARACTERS = 1 << 18  # most of one document, so that 60 MB do not fill the sample
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
    """A sample of the texts with the smallest hashes that together reach `most_bytes`.

    Texts with hashes above `most_hash` are not taken; they are not missed if the sample is full.
    """

    def __init__(self, most_bytes: int = SAMPLE_BYTES, most_hash: int = MOST_HASH) -> None:
        self._most_bytes = max(1, most_bytes)
        self._most_hash = most_hash
        self._kept: list[tuple[int, str]] = []  # a heap: the largest hash, negated, on top
        self._bytes = 0

    def add(self, texts: Iterable[str]) -> None:
        for text in filter(None, texts):
            head = text[:_DOCUMENT_CHARACTERS]
            content = head.encode()
            if (digest := xxhash.xxh3_64_intdigest(content)) > self._most_hash:
                continue
            heapq.heappush(self._kept, (-digest, head))
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
    """Train a tokenizer.json with `vocab` tokens, or fewer if the texts are too small."""
    if vocab < MIN_VOCAB:
        raise PenstockError(
            f"A vocabulary of {vocab} is too small: every byte and the special tokens need "
            f"{MIN_VOCAB}. Set tokens.vocab to {MIN_VOCAB} or more."
        )
    sample = TextSample(sample_bytes)
    sample.add(texts)
    sampled = sample.texts()
    if not sampled:
        raise PenstockError("There is no text to train a tokenizer on: no document was kept.")
    report = progress or (lambda what, done, total: None)
    report("train tokenizer", 0, len(sampled))
    content = train_bpe(_report_each(sampled, report), vocab, SPLIT_PATTERN, SPECIAL)
    report("train tokenizer", len(sampled), len(sampled))
    return content


def _report_each(texts: list[str], report: Progress) -> Iterable[str]:
    for done, text in enumerate(texts):
        if done % 1024 == 0:
            report("train tokenizer", done, len(texts))
        yield text
