"""The summary of a dataset: its manifest, and the record of its build if there is one.

The terminal, the page and `--json` all show this one summary.
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
class StageCounts:
    """Counts of one stage; `kept` and the counts of `reasons` add up to `documents`."""

    name: str
    documents: int  # that came in
    kept: int
    reasons: dict[str, int]  # largest first
    seconds: float | None = None


@dataclass(frozen=True)
class DatasetSummary:
    """Facts about a dataset, for every view of it."""

    id: str
    where: str
    manifest: Manifest
    stages: tuple[StageCounts, ...]
    record: BuildRecord | None
    aside: str = ""  # the file with records that could not be read, if there is one

    @property
    def bytes(self) -> int:
        return stored_bytes(self.manifest)

    @property
    def documents_in(self) -> int:
        """Documents that came into the first stage."""
        return max((stage.documents for stage in self.stages), default=0)

    @property
    def funnel(self) -> tuple[StageCounts, ...]:
        """The stages that dropped anything, and the first one."""
        first = self.stages[:1]
        return (*first, *(stage for stage in self.stages[1:] if stage.reasons))

    @property
    def documents(self) -> int:
        return unique_documents(self.manifest)

    @property
    def pieces(self) -> int:
        """Pieces of a packed dataset, which cuts long documents; 0 for others."""
        return self.manifest.documents if self.manifest.packed else 0

    @property
    def with_copies(self) -> int:
        """Documents with their copies; 0 if there are no copies."""
        made = self.manifest
        return made.documents if not made.packed and made.documents != self.documents else 0

    @property
    def long(self) -> tuple[int, int] | None:
        """(tokens, documents with at least so many), near the packed length.

        `tokens` is the next power of two, because the record counts in powers of two.
        """
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


def summarize(dataset: Dataset) -> DatasetSummary:
    """Return the summary of an open dataset."""
    record = read_build_record(dataset.folder)
    stages = _recorded(record) if record else _counted(dataset.manifest)
    aside = dataset.folder / ASIDE
    there = str(aside) if aside.is_file() else ""
    return DatasetSummary(
        dataset.id, redact(dataset.where), dataset.manifest, stages, record, there
    )


def source_names(made: Manifest, folder: Path) -> dict[str, str]:
    """Return the key of each source in the dataset → its name in reports."""
    record = read_build_record(folder)
    keys = [str(one.get("name", "")) for one in _tables(made.lineage.get("sources"))]
    labels = [one.name for one in record.sources] if record else []
    return dict(zip(keys, labels, strict=False))


def _tables(value: Json) -> list[dict[str, Json]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def stored_bytes(made: Manifest) -> int:
    """Return the bytes of all files of all shards."""
    return sum(size for shard in made.shards for _, size in shard.files().values())


def unique_documents(made: Manifest) -> int:
    """Return the number of documents, each counted once: a manifest counts copies and pieces."""
    stages = _counted(made)
    return stages[-1].kept if stages else made.documents


def sample_json(one: SampleDocument) -> dict[str, Any]:
    """Return a sample with its score from 0 to 1; None if it has no score."""
    return asdict(one) | {"score": one.score / 1000 if one.score > 0 else None}


def _record_json(record: BuildRecord) -> dict[str, Any]:
    dropped = {why: [sample_json(one) for one in some] for why, some in record.dropped.items()}
    kept = [sample_json(one) for one in record.kept]
    return asdict(record) | {"kept": kept, "dropped": dropped}


def _recorded(record: BuildRecord) -> tuple[StageCounts, ...]:
    return tuple(
        StageCounts(one.name, one.documents, one.kept, _largest_first(one.reasons), one.seconds)
        for one in record.stages
    )


def _counted(manifest: Manifest) -> tuple[StageCounts, ...]:
    stages = []
    for name, counts in manifest.counts.items():
        reasons = {why: count for why, count in counts.items() if why != KEPT and count}
        kept = counts.get(KEPT, 0)
        total = kept + sum(reasons.values())
        stages.append(StageCounts(name, total, kept, _largest_first(reasons)))
    return tuple(stages)


def _largest_first(reasons: dict[str, int]) -> dict[str, int]:
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
