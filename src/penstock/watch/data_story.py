"""What there is to tell of a dataset: its manifest, and the record of its build where there is one.

The terminal, the page and `--json` all show this one story.
"""

from dataclasses import asdict, dataclass
from typing import Any

from penstock.data.build_record import Record, SourceRecord, read_record
from penstock.data.manifest import Manifest
from penstock.data.shards import Dataset

KEPT = "kept"  # in the counts of a manifest
# Control characters, halves of surrogate pairs, and marks that turn the direction of writing.
_STEERING = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys((*_STEERING, *range(0xD800, 0xE000)), "\ufffd") | {10: "\n", 9: "\t"}


@dataclass(frozen=True)
class Stage:
    """`kept` and the counts of `reasons` add up to `documents`."""

    name: str
    documents: int  # that came in
    kept: int
    reasons: dict[str, int]  # largest first
    seconds: float | None = None


@dataclass(frozen=True)
class Story:
    id: str
    where: str
    manifest: Manifest
    stages: tuple[Stage, ...]
    record: Record | None

    @property
    def bytes(self) -> int:
        """Of all files of all shards."""
        shards = self.manifest.shards
        return sum(size for shard in shards for _, size in shard.files().values())

    @property
    def documents_in(self) -> int:
        """Documents that there were at first."""
        return max((stage.documents for stage in self.stages), default=0)

    @property
    def funnel(self) -> tuple[Stage, ...]:
        """The stages that dropped anything, and the first one."""
        first = self.stages[:1]
        return (*first, *(stage for stage in self.stages[1:] if stage.reasons))

    @property
    def copies(self) -> bool:
        """Whether documents stand in the dataset more often than once, or were sampled."""
        return bool(self.stages) and self.manifest.documents != self.stages[-1].kept

    @property
    def sources(self) -> list[SourceRecord]:
        return self.record.sources if self.record else []

    def to_json(self) -> dict[str, Any]:
        made = self.manifest
        return {
            "dataset": self.id,
            "where": self.where,
            "tokens": made.tokens,
            "documents": made.documents,
            "vocab": made.vocab,
            "bytes": self.bytes,
            "shards": len(made.shards),
            "packed": made.packed,
            "parents": list(made.parents),
            "stages": [asdict(stage) for stage in self.stages],
            "recipe": made.recipe,
            "lineage": made.lineage,
            "tokenizer": made.tokenizer,
            "build": asdict(self.record) if self.record else None,
        }


def story(dataset: Dataset) -> Story:
    record = read_record(dataset.folder)
    told = _recorded(record) if record else _counted(dataset.manifest)
    return Story(dataset.id, dataset.where, dataset.manifest, told, record)


def printable(text: str) -> str:
    """A document may hold anything: what would steer a terminal or break a page is shown as �."""
    return text.translate(_CONTROLS)


def _recorded(record: Record) -> tuple[Stage, ...]:
    return tuple(
        Stage(one.name, one.documents, one.kept, _largest_first(one.reasons), one.seconds)
        for one in record.stages
    )


def _counted(manifest: Manifest) -> tuple[Stage, ...]:
    stages = []
    for name, counts in manifest.counts.items():
        reasons = {why: count for why, count in counts.items() if why != KEPT and count}
        kept = counts.get(KEPT, 0)
        total = kept + sum(reasons.values())
        stages.append(Stage(name, total, kept, _largest_first(reasons)))
    return tuple(stages)


def _largest_first(reasons: dict[str, int]) -> dict[str, int]:
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
