"""Documents to look at: some of a dataset, read back from its tokens, or some that were dropped."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.data.build_record import Record, Sample
from penstock.data.shards import Dataset
from penstock.data.tokenizer import Tokenizer
from penstock.errors import PenstockError, nearest

_INNER = ("labels", "columns")  # tables inside a row
_MOST_TOKENS = 4096  # of a document, read to show its beginning


def kept(dataset: Dataset, count: int, seed: int, where: dict[str, str]) -> list[Sample]:
    """Documents of the dataset, drawn by `seed`; `where` says what their columns must be."""
    tokenizer = Tokenizer.from_json(dataset.tokenizer_json())
    places = _matching(dataset, seed, where) if where else _any(dataset, seed)
    found = []
    for shard, number in places:
        found.append(_document(dataset, tokenizer, shard, number))
        if len(found) == count:
            break
    if where and not found:
        wanted = ", ".join(f"{name}={value}" for name, value in where.items())
        raise PenstockError(
            f"No document of {dataset.id} has {wanted}. Columns there are: {_columns(dataset)}."
        )
    return found


def dropped(record: Record | None, dataset: str, reason: str, count: int) -> list[Sample]:
    """Those that the build kept to show; a part of the reason's name is enough."""
    if record is None:
        raise PenstockError(f"{dataset} has no build.json, so what was dropped is not known.")
    fitting = [why for why in record.dropped if reason in (why, why.partition(": ")[2])]
    fitting = fitting or [why for why in record.dropped if reason in why]
    if not fitting:
        known = sorted(record.dropped)
        told = nearest(reason, known) or f"There are: {', '.join(known) or 'none'}."
        raise PenstockError(f"No document of {dataset} was dropped for {reason!r}. {told}")
    return [sample for why in fitting for sample in record.dropped[why]][:count]


def columns_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says of a document beside its id: what was carried along, and its labels."""
    found = {name: value for name, value in row.items() if name not in ("id", *_INNER)}
    for name in _INNER:
        found |= row.get(name) or {}
    return found


def _any(dataset: Dataset, seed: int) -> Iterator[tuple[int, int]]:
    ends = np.cumsum([shard.documents for shard in dataset.manifest.shards])
    order = random.Random(seed)
    seen: set[int] = set()
    while len(seen) < dataset.documents:
        place = order.randrange(dataset.documents)
        if place in seen:
            continue
        seen.add(place)
        shard = int(np.searchsorted(ends, place, side="right"))
        yield shard, place - int(ends[shard - 1] if shard else 0)


def _matching(dataset: Dataset, seed: int, where: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Shards, and the documents in them, in an order drawn by `seed`."""
    order = random.Random(seed)
    shards = list(range(len(dataset.manifest.shards)))
    order.shuffle(shards)
    for shard in shards:
        rows = dataset.rows(shard)
        fitting = [number for number, row in enumerate(rows) if _fits(row, where)]
        order.shuffle(fitting)
        yield from ((shard, number) for number in fitting)


def _fits(row: dict[str, Any], where: dict[str, str]) -> bool:
    columns = {"id": row.get("id")} | columns_of(row)
    return all(name in columns and str(columns[name]) == value for name, value in where.items())


def _columns(dataset: Dataset) -> str:
    rows = dataset.rows(0) if dataset.manifest.shards else []
    return ", ".join(sorted({name for row in rows[:1000] for name in ("id", *columns_of(row))}))


def _document(dataset: Dataset, tokenizer: Tokenizer, shard: int, number: int) -> Sample:
    start, stop = _extent(dataset, shard, number)
    tokens = dataset.read(start, min(stop, start + _MOST_TOKENS))
    # Conversations may close every turn with it, so only the last ones, and padding, are cut off.
    said = np.flatnonzero(tokens != tokenizer.end)
    text = tokenizer.decode(tokens[: said[-1] + 1] if len(said) else tokens[:0])
    rows = dataset.rows(shard)
    row: dict[str, Any] = rows[number] if number < len(rows) else {}
    named = {"id", "source", "score", "language"}
    columns = {name: value for name, value in columns_of(row).items() if name not in named}
    return Sample(
        id=str(row.get("id", f"shard {shard}, document {number}")),
        source=str(row.get("source", "")),
        text=text,
        characters=len(text),
        score=int(row.get("score", -1)),
        language=str(row.get("language", "")),
        columns={"tokens": stop - start} | columns,
    )


def _extent(dataset: Dataset, shard: int, number: int) -> tuple[int, int]:
    """Tokens of a document: up to where the next one starts, which may be in a later shard."""
    starts = dataset.document_starts(shard)
    if number + 1 < len(starts):
        return int(starts[number]), int(starts[number + 1])
    for later in range(shard + 1, len(dataset.manifest.shards)):
        if dataset.manifest.shards[later].documents:
            return int(starts[number]), int(dataset.document_starts(later)[0])
    return int(starts[number]), dataset.tokens
