"""The summary of a dataset that was never built, with everything that a report can show."""

from penstock.data.build.record import (
    BuildMachine,
    BuildRecord,
    SampleDocument,
    SourceRecord,
    StageRecord,
)
from penstock.data.format.manifest import Manifest, Shard
from penstock.watch.datasets.summary import DatasetSummary, StageCounts

NASTY = "<script>alert('x')</script> & \"quotes\" \x1b[31m\x00 \u202e end"


def sample(id: str = "crawl/1", text: str = NASTY, **others) -> SampleDocument:
    fields = {"source": "crawl", "characters": len(text), "score": 812, "language": "en"}
    fields |= {"columns": {"url": "https://a.example/?a=1&b=<2>"}} | others
    return SampleDocument(id=id, text=text, **fields)


def record(**others) -> BuildRecord:
    fields = {
        "dataset": "web@0123456789ab",
        "ended": "2025-01-02T03:04:05Z",
        "seconds": 73.0,
        "machine": BuildMachine("host-a", "Linux", "3.11.9", 8, 4, 900 << 20),
        "sources": [
            SourceRecord(
                "crawl", "pages/*.jsonl", 4, 5 << 20, 1000, {"not JSON": 3}, {}, ["a: cut"]
            )
        ],
        "stages": [
            StageRecord("read", 2.0, 4, 0, 5 << 20, 1003, 1000, {"not JSON": 3}),
            StageRecord(
                "clean",
                9.0,
                4,
                1,
                5 << 20,
                1000,
                800,
                {"c4.few_sentences": 40, "language.other": 160},
            ),
            StageRecord("deduplicate", 1.0, 4, 0, 4 << 20, 800, 700, {"near": 60, "exact": 40}),
        ],
        "changes": {"personal.email": 12},
        "characters": [0, 0, 0, 0, 3, 9, 40, 400, 240, 8],
        "tokens": [0, 0, 3, 9, 440, 240, 8],
        "scores": [0] * 10 + [10, 20, 80, 200, 200, 150, 100, 30, 10, 0],
        "languages": {"en": 700, "de": 100},
        "kept": [sample(), sample("crawl/2", "A plain page.", columns={})],
        "dropped": {
            "clean: language.other": [sample("crawl/3", "Die Donau.", detail="de, 99 % sure")]
        },
        "recipe": {"name": "web", "source": [{"path": "pages/*.jsonl"}], "dedup": {"near": True}},
        "notes": ["one file was cut off"],
    }
    return BuildRecord(**fields | others)


def manifest(**others) -> Manifest:
    shard = Shard("a" * 64, 5000, 10000, "b" * 64, "c" * 64, 700)
    fields = {
        "name": "web",
        "format": 1,
        "dtype": "<u2",
        "vocab": 4096,
        "tokens": 5000,
        "documents": 700,
        "tokenizer": "d" * 64,
        "recipe": {"clean": {"c4": {"min_sentences": 5}}, "tokens": {"vocab": 4096}},
        "lineage": {"files": [{"name": "part-0.jsonl", "blake3": "e" * 64}]},
        "counts": {"clean": {"kept": 700, "short": 300}},
        "shards": (shard,),
    }
    return Manifest(**fields | others)


def summarize(made: Manifest | None = None, built: BuildRecord | None = None) -> DatasetSummary:
    made, built = made or manifest(), built or record()
    stages = tuple(
        StageCounts(one.name, one.documents, one.kept, one.reasons, one.seconds)
        for one in built.stages
    )
    return DatasetSummary(f"{made.name}@{made.version}", f"/sets/{made.name}", made, stages, built)
