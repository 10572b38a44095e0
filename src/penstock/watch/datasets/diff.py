"""Comparison of two datasets: recipe, counts, sources, and the shards that they share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.data.format.manifest import Json
from penstock.watch.datasets.summary import DatasetSummary


@dataclass(frozen=True)
class Difference:
    """One value that differs between two datasets."""

    part: str  # size, recipe, stages, sources, tokenizer
    what: str
    before: Json
    after: Json


@dataclass(frozen=True)
class DatasetComparison:
    """All differences of two datasets, and what they share."""

    differences: tuple[Difference, ...]
    shared_shards: int
    shared_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {
            "differences": [vars(one) for one in self.differences],
            "shared_shards": self.shared_shards,
            "shared_tokens": self.shared_tokens,
        }


def compare(before: DatasetSummary, after: DatasetSummary) -> DatasetComparison:
    shared = {shard.blake3 for shard in before.manifest.shards}
    common = [shard for shard in after.manifest.shards if shard.blake3 in shared]
    return DatasetComparison(
        tuple(_differences(before, after)), len(common), sum(shard.tokens for shard in common)
    )


def _differences(before: DatasetSummary, after: DatasetSummary) -> Iterator[Difference]:
    old, new = before.manifest, after.manifest
    yield from _changed("size", _sizes(before), _sizes(after))
    if old.tokenizer != new.tokenizer:
        yield Difference("tokenizer", "BLAKE3", old.tokenizer[:12], new.tokenizer[:12])
    yield from _inside("recipe", old.recipe, new.recipe)
    yield from _changed("stages", _counts(before), _counts(after))
    yield from _changed("sources", _sources(before), _sources(after))
    yield from _inside("lineage", old.lineage, new.lineage)


def flat(value: Json, name: str = "") -> dict[str, Json]:
    """Flatten a table: `{"a": {"b": [1]}}` is `{"a.b": [1]}`; items of lists get their place."""
    if isinstance(value, dict):
        parts = ((f"{name}.{key}" if name else key, part) for key, part in value.items())
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = ((f"{name}[{place}]", part) for place, part in enumerate(value))
    else:
        return {name: value}
    return {key: leaf for inner, part in parts for key, leaf in flat(part, inner).items()}


def _sizes(summary: DatasetSummary) -> dict[str, Json]:
    """Return the sizes of a dataset without those that it does not have."""
    made = summary.manifest
    sizes: dict[str, Json] = {"tokens": made.tokens, "documents": summary.documents}
    more = {"with copies": summary.with_copies, "packed for": made.packed, "pieces": summary.pieces}
    return sizes | {name: size for name, size in more.items() if size} | {"vocab": made.vocab}


def _counts(summary: DatasetSummary) -> dict[str, Json]:
    counts: dict[str, Json] = {"came in": summary.documents_in}
    for stage in summary.funnel:
        counts[f"{stage.name}: kept"] = stage.kept
        counts |= {f"{stage.name}: {why}": count for why, count in stage.reasons.items()}
    return counts


def _sources(summary: DatasetSummary) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for one in summary.sources:
        found |= {f"{one.name}: {name}": getattr(one, name) for name in ("files", "documents")}
    return found


def _changed(part: str, old: dict[str, Json], new: dict[str, Json]) -> Iterator[Difference]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Difference(part, name, old.get(name), new.get(name))


def _inside(part: str, old: Json, new: Json, name: str = "") -> Iterator[Difference]:
    """Yield the smallest parts that differ; a part that is missing on one side is shown whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            inner = f"{name}.{key}" if name else key
            yield from _inside(part, old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and _tables(old + new):
        for place in range(max(len(old), len(new))):
            each = [side[place] if place < len(side) else None for side in (old, new)]
            yield from _inside(part, each[0], each[1], f"{name}[{place}]")
    elif old != new:
        yield Difference(part, name, old, new)


def _tables(parts: list[Json]) -> bool:
    return bool(parts) and all(isinstance(part, dict) for part in parts)
