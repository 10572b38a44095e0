"""What there is to tell of a dataset: its manifest, and the record of its build where there is one.

The terminal, the page and `--json` all show this one story.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.data.build.publish import ASIDE
from penstock.data.build.record import BuildRecord, SampleDocument, SourceRecord, read_build_record
from penstock.data.format.manifest import Json, Manifest
from penstock.data.read.dataset import Dataset
from penstock.secret import redact

KEPT = "kept"  # in the counts of a manifest


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
    record: BuildRecord | None
    aside: str = ""  # the file with what could not be read, where there is one

    @property
    def bytes(self) -> int:
        return stored_bytes(self.manifest)

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
    def documents(self) -> int:
        return documents_of(self.manifest)

    @property
    def pieces(self) -> int:
        """Of a packed dataset, which cuts long documents; else none."""
        return self.manifest.documents if self.manifest.packed else 0

    @property
    def with_copies(self) -> int:
        """Documents as often as they stand in the dataset, where that is more than once."""
        made = self.manifest
        return made.documents if not made.packed and made.documents != self.documents else 0

    @property
    def long(self) -> tuple[int, int] | None:
        """(tokens, documents that have as many or more): as near to the length that was packed for
        as the record's powers of two come."""
        if not self.manifest.packed or not self.record:
            return None
        power = (self.manifest.packed - 1).bit_length()
        return 1 << power, sum(self.record.tokens[power:])

    @property
    def chats(self) -> bool:
        """Whether a source holds conversations."""
        sources = _tables(self.manifest.recipe.get("source"))
        return any(one.get("messages") or one.get("prompt") for one in sources)

    @property
    def sources(self) -> list[SourceRecord]:
        return self.record.sources if self.record else []

    def to_json(self) -> dict[str, Any]:
        made = self.manifest
        return {
            "dataset": self.id,
            "where": self.where,
            "tokens": made.tokens,
            "documents": self.documents,
            "with_copies": self.with_copies or None,
            "pieces": self.pieces or None,
            "vocab": made.vocab,
            "bytes": self.bytes,
            "shards": len(made.shards),
            "packed": made.packed,
            "parents": list(made.parents),
            "stages": [asdict(stage) for stage in self.stages],
            "recipe": made.recipe,
            "lineage": made.lineage,
            "tokenizer": made.tokenizer,
            "aside": self.aside or None,
            "build": _record_json(self.record) if self.record else None,
        }


def story(dataset: Dataset) -> Story:
    record = read_build_record(dataset.folder)
    told = _recorded(record) if record else _counted(dataset.manifest)
    aside = dataset.folder / ASIDE
    there = str(aside) if aside.is_file() else ""
    return Story(dataset.id, redact(dataset.where), dataset.manifest, told, record, there)


def source_names(made: Manifest, folder: Path) -> dict[str, str]:
    """What documents say of their source → what reports call it."""
    record = read_build_record(folder)
    keys = [str(one.get("name", "")) for one in _tables(made.lineage.get("sources"))]
    labels = [one.name for one in record.sources] if record else []
    return dict(zip(keys, labels, strict=False))


def _tables(value: Json) -> list[dict[str, Json]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def stored_bytes(made: Manifest) -> int:
    """Of all files of all shards."""
    return sum(size for shard in made.shards for _, size in shard.files().values())


def documents_of(made: Manifest) -> int:
    """Each once: a manifest counts copies too, and the pieces of what was cut."""
    stages = _counted(made)
    return stages[-1].kept if stages else made.documents


def sample_json(one: SampleDocument) -> dict[str, Any]:
    """With the score as a screen tells it: from 0 to 1, none where none was given."""
    return asdict(one) | {"score": one.score / 1000 if one.score > 0 else None}


def _record_json(record: BuildRecord) -> dict[str, Any]:
    dropped = {why: [sample_json(one) for one in some] for why, some in record.dropped.items()}
    kept = [sample_json(one) for one in record.kept]
    return asdict(record) | {"kept": kept, "dropped": dropped}


def _recorded(record: BuildRecord) -> tuple[Stage, ...]:
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
