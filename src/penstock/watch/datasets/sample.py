"""Sample documents of a dataset, decoded from its tokens."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.data.build.record import OWN_COLUMNS, SampleDocument, visible_columns
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError
from penstock.watch.datasets.summary import source_names

_INNER = ("labels", "columns")  # tables inside a row
_MOST_TOKENS = 4096  # of a document, read to show its beginning
_MOST_VALUES = 10  # of a column, named in an error


def sample_documents(
    dataset: Dataset, count: int, seed: int, where: dict[str, str]
) -> list[SampleDocument]:
    """Return random documents by `seed`; `where` maps columns to required values."""
    tokenizer = Tokenizer.from_json(dataset.tokenizer_json())
    names = source_names(dataset.manifest, dataset.folder)
    places = _matching(dataset, seed, where, names) if where else _any(dataset, seed)
    found = []
    for shard, number in places:
        found.append(_document(dataset, tokenizer, shard, number, names))
        if len(found) == count:
            break
    if where and not found:
        raise PenstockError(_no_such(dataset, where, names))
    return found


def row_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a document: Penstock's own, labels, the user's."""
    found = {name: value for name, value in row.items() if name not in _INNER}
    return found | visible_columns(row.get("columns") or {}, row.get("labels") or {})


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


def _matching(
    dataset: Dataset, seed: int, where: dict[str, str], names: dict[str, str]
) -> Iterator[tuple[int, int]]:
    """Yield (shard, document) of matching documents in a random order by `seed`."""
    order = random.Random(seed)
    shards = list(range(len(dataset.manifest.shards)))
    order.shuffle(shards)
    for shard in shards:
        rows = dataset.rows(shard)
        fitting = [number for number, row in enumerate(rows) if _fits(row, where, names)]
        order.shuffle(fitting)
        yield from ((shard, number) for number in fitting)


def _fits(row: dict[str, Any], where: dict[str, str], names: dict[str, str]) -> bool:
    columns = _named_columns(row, names)
    return all(name in columns and _value(columns[name]) == value for name, value in where.items())


def _named_columns(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return the columns of a row, with the source by its name in reports."""
    source = row.get("source", "")
    return row_columns(row) | {"source": names.get(source, source)}


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_such(dataset: Dataset, where: dict[str, str], names: dict[str, str]) -> str:
    """Return an error message with the values that exist in the first shard."""
    rows = (
        [_named_columns(row, names) for row in dataset.rows(0)] if dataset.manifest.shards else []
    )
    wanted = ", ".join(f"{name}={value}" for name, value in where.items())
    known = sorted({name for row in rows for name in row})
    lines = [f"No document of {dataset.id} has {wanted}."]
    for name in where:
        values = Counter(_value(row[name]) for row in rows if name in row)
        if name == "source":
            values.update(names.values())
        if f"columns.{name}" in known:
            lines.append(f"The column {name} of its files is columns.{name} here.")
        if not values:
            lines.append(f"Columns there are: {', '.join(known) or 'none'}.")
            continue
        some = [value for value, _ in values.most_common(_MOST_VALUES)]
        kind = "Values" if len(values) <= _MOST_VALUES else "Some values"
        lines.append(f"{kind} of {name}: {', '.join(some)}.")
    return " ".join(lines)


def _document(
    dataset: Dataset, tokenizer: Tokenizer, shard: int, number: int, names: dict[str, str]
) -> SampleDocument:
    start, stop = _extent(dataset, shard, number)
    tokens = dataset.read(start, min(stop, start + _MOST_TOKENS))
    # Conversations may end every turn with this token, so only the last ones and padding are cut.
    said = np.flatnonzero(tokens != tokenizer.end)
    text = tokenizer.decode(tokens[: said[-1] + 1] if len(said) else tokens[:0])
    rows = dataset.rows(shard)
    row: dict[str, Any] = rows[number] if number < len(rows) else {}
    columns = {name: value for name, value in row_columns(row).items() if name not in OWN_COLUMNS}
    return SampleDocument(
        id=str(row.get("id", f"shard {shard}, document {number}")),
        source=names.get(row.get("source", ""), ""),
        text=text,
        characters=len(text),
        score=int(row.get("score", -1)),
        language=str(row.get("language", "")),
        columns={"tokens": stop - start} | columns,
    )


def _extent(dataset: Dataset, shard: int, number: int) -> tuple[int, int]:
    """Return the token range of a document; the next one may start in a later shard."""
    starts = dataset.document_starts(shard)
    if number + 1 < len(starts):
        return int(starts[number]), int(starts[number + 1])
    for later in range(shard + 1, len(dataset.manifest.shards)):
        if dataset.manifest.shards[later].documents:
            return int(starts[number]), int(dataset.document_starts(later)[0])
    return int(starts[number]), dataset.tokens
