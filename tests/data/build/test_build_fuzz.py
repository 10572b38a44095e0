"""2,000 mangled files in a few builds: none stops one, and every file is accounted for."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from build_corpus import recipe
from mangled_files import mangle, sound_file

from penstock.data.build.build import build
from penstock.data.build.record import read_build_record

zstandard = pytest.importorskip("zstandard")

INPUTS = 2000
BUILDS = [
    {"clean": {"preset": "none"}, "dedup": {"near": False}},
    {"clean": {"preset": "code"}, "dedup": {"lines": True}},
    {"clean": {"preset": "web", "language": {"keep": ["en", "ja", "zh"], "least": 0}}},
    {"tokens": {"vocab": 300, "pack": 64}},
]


def mangled(seed: int) -> tuple[str, bytes]:
    rng = random.Random(seed)
    content, name = sound_file(rng)
    if not name.endswith((".gz", ".zst", ".parquet")) and rng.random() < 0.5:
        packing = rng.choice(["gz", "zst"])
        content = (
            gzip.compress(content, mtime=0) if packing == "gz" else zstandard.compress(content)
        )
        name = f"{name}.{packing}"
    return f"{seed}-{name}", mangle(rng, content)


@pytest.mark.parametrize("place", range(len(BUILDS)))
def test_mangled_files_never_stop_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    # One whole document that every filter lets pass: there is always something left.
    prose = (Path(__file__).parent / "build_prose.txt").read_text()
    (corpus / "whole.jsonl").write_text(json.dumps({"text": prose}))
    share = INPUTS // len(BUILDS)
    for seed in range(place * share, (place + 1) * share):
        name, content = mangled(seed)
        (corpus / name).write_bytes(content)
    dataset = build(recipe(corpus, **BUILDS[place]), workers=1)
    assert dataset.verify() == []
    record = read_build_record(dataset.folder)
    assert record is not None
    assert record.sources[0].files == share + 1
    read = Counter(dataset.manifest.counts["read"])
    assert read["kept"] == record.sources[0].documents
    assert sum(read.values()) - read["kept"] == sum(record.sources[0].rejected.values())
    for stage in record.stages:
        assert stage.documents == stage.kept + sum(stage.reasons.values())
    assert dataset.documents >= 1
    assert len(dataset.rows(0)) == dataset.manifest.shards[0].documents
