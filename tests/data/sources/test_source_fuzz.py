"""2,000 mangled inputs: none stops the reading, and every file is accounted for.

The inputs are seeded, so a failure can be repeated. A crash of native code would end the test run.
"""

import gzip
import io
import random

import pytest
from blake3 import blake3
from mangled_files import mangle, sound_file

from penstock.data.sources.documents import Document, FileSummary, Rejected
from penstock.data.sources.find import RawFile
from penstock.data.sources.options import ReadOptions
from penstock.data.sources.read import read_file

pytest.importorskip("orjson")
zstandard = pytest.importorskip("zstandard")

INPUTS = 2000
OPTIONS = [
    ReadOptions(most_bytes=5000),
    ReadOptions(encodings=("utf-8", "cp1252"), columns=("n",)),
    ReadOptions(separator="\n\n", encodings=("shift_jis", "utf-16")),
    ReadOptions(separator="\n", most_bytes=100),
]


def test_mangled_inputs_never_stop_the_reading() -> None:
    documents, reasons = 0, set()
    for seed in range(INPUTS):
        rng = random.Random(seed)
        content, name = sound_file(rng)
        packing = ""
        if not name.endswith((".gz", ".zst", ".parquet")) and rng.random() < 0.5:
            content = mangle(rng, content) if rng.random() < 0.5 else content
            packing = rng.choice(["gzip", "zstd"])
            content = (
                gzip.compress(content, mtime=0)
                if packing == "gzip"
                else zstandard.compress(content)
            )
        content = mangle(rng, content)
        kind = {"jsonl": "jsonl", "txt": "text", "parquet": "parquet"}[name.split(".")[1]]
        file = RawFile(name, name, kind, packing)
        pieces = list(read_file(file, rng.choice(OPTIONS), lambda _: io.BytesIO(content)))  # noqa: B023
        *rest, seen = pieces
        assert isinstance(seen, FileSummary), seed
        assert seen.blake3 == blake3(content).hexdigest(), seed
        assert seen.documents == sum(isinstance(p, Document) for p in rest), seed
        assert sum(seen.rejected.values()) == sum(isinstance(p, Rejected) for p in rest), seed
        ids = [p.id for p in rest if isinstance(p, Document)]
        assert len(set(ids)) == len(ids), seed
        for piece in rest:
            if isinstance(piece, Document):
                assert piece.text.encode(), seed  # valid Unicode, not empty
            else:
                assert piece.reason, seed
                assert len(piece.head) <= 64, seed
        if content and not rest:
            # Only blanks, or a Parquet file without rows, may give nothing at all.
            assert kind == "jsonl" or kind == "parquet", seed
        documents += seen.documents
        reasons |= set(seen.rejected)
    assert documents > INPUTS  # the mangling left something to read
    assert {
        "broken JSON",
        "NUL bytes",
        "not UTF-8",
        "too long",
        "damaged gzip",
        "truncated gzip",
        "damaged zstd",
        "truncated zstd",
        "damaged Parquet",
        "cut off by damage",
        "empty file",
    } <= reasons
