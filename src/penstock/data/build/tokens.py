"""Stage 7, tokenize: from parts of text to parts of tokens.

A document's place in the dataset is the hash of its id and of its copy number: a fixed shuffle over
the whole set. Each part is stored in that order, so that a shard is one short range of each part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from penstock.data.build.dedup import RemainingTexts, part_path
from penstock.data.build.parts import (
    DocumentPart,
    Extras,
    lenient_json,
    pack_rows,
    read_part,
    result_columns,
)
from penstock.data.build.record import SampleDocument
from penstock.data.build.tally import KEPT, TEXT_CHARACTERS, DocumentTally
from penstock.data.build.tokenizer import PartTokenizer, load_chat, load_part_tokenizer
from penstock.data.chat.encode import EncodedConversation, Loss
from penstock.data.chat.pairs import EncodedPair, encode_pairs
from penstock.data.format.columns import Columns, with_index
from penstock.data.format.manifest import ANSWERS_CUT, PAIRS_STAGE
from penstock.data.format.types import Tokens
from penstock.data.label.scores import CopySteps, count_copies
from penstock.data.sources.messages import Conversation, InvalidConversation
from penstock.data.tokenize.pack import Mask
from penstock.data.workers.text_batches import batch_ranges

NOT_SELECTED = "label.copies"  # reason of documents left out because `copies` keeps only a share
_BATCH_CHARACTERS = 1 << 20
_BATCH_CHATS = 256
_SEED = 0x6F72646572


@dataclass(frozen=True)
class EncodeSettings:
    """Settings of all tokenizing tasks. Picklable; the tokenizer stays in its file."""

    kept: RemainingTexts
    tokenizer: Path
    copies: CopySteps
    loss: Loss | None  # of conversations; None if there are none
    plain: bool  # use the reference engine, which needs no trial; ids are the same
    pair_sequence: int = 0  # tokens of each sequence of a pair; 0: documents are no pairs


def tokenize_part(part: int, names: tuple[str, str], settings: EncodeSettings) -> Columns:
    """Return the tokens of a part in the order of the dataset, with rows and masks.

    `names` are the label and the key of its source.
    """
    source, key = names
    documents = read_part(part_path(settings.kept.clean, part))
    left, why = settings.kept.apply(part, documents.texts)
    tally = DocumentTally(documents=len(left), bytes=sum(map(len, documents.texts)))
    times = count_copies(documents.ids, documents.scores, settings.copies)
    for place in np.flatnonzero(times == 0).tolist():
        why.setdefault(place, (NOT_SELECTED, ""))
    for place, (reason, detail) in why.items():
        tally.count("reasons", reason)
        sample = partial(_sample, documents, place, documents.texts[place], source, detail)
        tally.sample(reason, documents.ids[place], sample)
    places = [place for place in range(len(left)) if place not in why]
    encoded = _encoded(documents, left, places, settings, tally, source)
    places, ids = encoded.places, [documents.ids[place] for place in encoded.places]
    tally.kept = len(places)
    for place, tokens in zip(places, encoded.tokens, strict=True):
        tally.length("characters", len(left[place]))
        tally.length("tokens", len(tokens))
        sample = partial(_sample, documents, place, left[place], source, "")
        tally.sample(KEPT, documents.ids[place], sample)
    rows = [_row(documents, place, key) for place in places]
    columns = _in_order(ids, times[places], encoded, rows)
    tally.count("stored", "bytes", columns["tokens"].nbytes)
    tally.count("stored", "documents", len(columns["keys"]))
    return {**columns, **result_columns(tally.to_json())}


@dataclass(frozen=True)
class _Encoded:
    """The documents of a part as tokens; `masks` is None if no document has one."""

    places: list[int]  # in the part
    tokens: list[Tokens]
    masks: list[Mask] | None
    dtype: "np.dtype[np.unsignedinteger]"


def _encoded(
    part: DocumentPart,
    left: list[str],
    places: list[int],
    settings: EncodeSettings,
    tally: DocumentTally,
    source: str,
) -> _Encoded:
    tokenizer = load_part_tokenizer(settings.tokenizer, settings.plain)
    if not settings.loss:
        tokens = encode_texts([left[place] for place in places], tokenizer)
        return _Encoded(places, tokens, None, tokenizer.fast.dtype)
    tokens_of: dict[int, tuple[Tokens, Mask]] = {}
    chats: dict[int, Conversation] = {}
    for place in places:
        if chat := Extras.from_json(part.extras[place]).conversation:
            chats[place] = chat
    plain = [place for place in places if place not in chats]
    texts = encode_texts([left[place] for place in plain], tokenizer)
    for place, ids in zip(plain, texts, strict=True):
        tokens_of[place] = ids, np.ones(len(ids), np.bool_)
    for place, encoded_chat in zip(
        chats, _encode_chats(list(chats.values()), settings), strict=True
    ):
        if isinstance(encoded_chat, InvalidConversation):
            reason = f"chat.{encoded_chat.reason}"
            tally.count("reasons", reason)
            sample = partial(_sample, part, place, left[place], source, encoded_chat.detail)
            tally.sample(reason, part.ids[place], sample)
        else:
            tokens_of[place] = encoded_chat.ids, encoded_chat.mask
            if isinstance(encoded_chat, EncodedPair) and encoded_chat.cut:
                tally.count(PAIRS_STAGE, ANSWERS_CUT)
    there = sorted(tokens_of)
    return _Encoded(
        there,
        [tokens_of[place][0] for place in there],
        [tokens_of[place][1] for place in there],
        tokenizer.fast.dtype,
    )


def encode_texts(texts: list[str], tokenizer: PartTokenizer) -> list[Tokens]:
    """Return the ids of each text, each followed by the end token."""
    out: list[Tokens] = []
    for first, last in batch_ranges(texts, _BATCH_CHARACTERS):
        some = texts[first:last]
        flat = tokenizer.fast.encode_batch(some)
        ended = np.insert(flat.ids, flat.starts[1:], tokenizer.end).astype(tokenizer.fast.dtype)
        out += np.split(ended, (flat.starts[1:-1] + np.arange(1, len(some))))
    return out


def _encode_chats(
    chats: list[Conversation], settings: EncodeSettings
) -> Iterator[EncodedConversation | EncodedPair | InvalidConversation]:
    """Yield encoded conversations or pairs, a few at a time to bound the memory."""
    assert settings.loss
    for first in range(0, len(chats), _BATCH_CHATS):
        some = chats[first : first + _BATCH_CHATS]
        encoder = load_chat(settings.tokenizer, settings.loss, settings.plain)
        if settings.pair_sequence:
            yield from encode_pairs(encoder, some, settings.pair_sequence)
        else:
            yield from encoder.encode(some)


def _in_order(
    ids: list[str],
    times: npt.NDArray[np.int64],
    encoded: _Encoded,
    rows: list[bytes],
) -> Columns:
    """Return the columns with each document as often as it appears, sorted by key."""
    owners = np.repeat(np.arange(len(ids)), times)
    copy = np.arange(len(owners)) - np.repeat(np.cumsum(times) - times, times)
    digests = b"".join(
        xxhash.xxh3_128_digest(f"{number}\0{ids[owner]}".encode(), _SEED)
        for owner, number in zip(owners.tolist(), copy.tolist(), strict=True)
    )
    keys = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    chosen = owners[order].tolist()
    columns = {
        "keys": keys[order, 0],
        "lows": keys[order, 1],
        "tokens": np.concatenate(
            [np.empty(0, encoded.dtype), *(encoded.tokens[owner] for owner in chosen)]
        ),
        "ends": np.cumsum([len(encoded.tokens[owner]) for owner in chosen], dtype=np.int64),
        **pack_rows("rows", [rows[owner] for owner in chosen]),
    }
    if encoded.masks is not None:
        masks = [encoded.masks[owner] for owner in chosen]
        columns["mask"] = np.concatenate([np.empty(0, np.bool_), *masks])
    return with_index(columns, "keys")


def _row(part: DocumentPart, place: int, key: str) -> bytes:
    extras = Extras.from_json(part.extras[place])
    row: dict[str, object] = {"id": part.ids[place], "source": key}
    row |= {"score": int(part.scores[place]), "language": extras.language}
    return lenient_json(row | {"labels": extras.labels or {}, "columns": extras.columns})


def _sample(part: DocumentPart, place: int, text: str, source: str, detail: str) -> SampleDocument:
    extras = Extras.from_json(part.extras[place])
    return SampleDocument(
        id=part.ids[place],
        source=source,
        text=text[:TEXT_CHARACTERS],
        characters=len(text),
        score=int(part.scores[place]),
        language=extras.language,
        columns=extras.preview(),
        detail=detail,
    )
