"""2,000 mangled inputs: none stops the reading, and every file is accounted for.

Seeded, so that a failure comes again. A crash of native code would end the whole test run.
"""

import gzip
import io
import random

import pytest
from blake3 import blake3

from penstock.data.sources.find import File
from penstock.data.sources.options import Options
from penstock.data.sources.pieces import Document, Rejected, Seen
from penstock.data.sources.read import read_file

pytest.importorskip("orjson")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")

INPUTS = 2000
OPTIONS = [
    Options(most_bytes=5000),
    Options(encodings=("utf-8", "cp1252"), columns=("n",)),
    Options(separator="\n\n", encodings=("shift_jis", "utf-16")),
    Options(separator="\n", most_bytes=100),
]


def base(random: random.Random) -> tuple[bytes, str]:
    """A sound file and its name."""
    words = ["word", "é", "日本語", "😀", '"', "\\", "\n\n", "\t", "\x00", "x" * 300]
    texts = ["".join(random.choices(words, k=random.randrange(30))) for _ in range(20)]
    shape = random.randrange(4)
    if shape == 0:
        import json

        rows = [
            json.dumps({"text": t, "n": k}, ensure_ascii=k % 2 == 0) for k, t in enumerate(texts)
        ]
        return "\n".join(rows).encode(), "a.jsonl"
    if shape == 1:
        return "\n".join(texts).encode(random.choice(["utf-8", "utf-16", "cp1252"]), "replace"), (
            "a.txt"
        )
    if shape == 2:
        sink = io.BytesIO()
        columns = {"text": texts, "n": list(range(20)), "deep": [[t] for t in texts]}
        pq.write_table(
            pa.table(columns),
            sink,
            row_group_size=random.choice([3, 20]),
            compression=random.choice(["none", "snappy", "zstd"]),
            use_dictionary=random.random() < 0.5,
            write_page_checksum=random.random() < 0.3,
        )
        return sink.getvalue(), "a.parquet"
    return random.randbytes(random.choice([0, 1, 3, 2000])), random.choice(
        ["a.jsonl", "a.txt", "a.parquet", "a.jsonl.gz", "a.txt.zst"]
    )


def mangle(random: random.Random, content: bytes) -> bytes:
    out = bytearray(content)
    for _ in range(random.randrange(4)):
        at = random.randrange(len(out) + 1)
        what = random.randrange(6)
        if what == 0:
            del out[at:]
        elif what == 1:
            del out[at : at + random.randrange(50)]
        elif what == 2:
            out[at:at] = random.randbytes(random.randrange(20))
        elif what == 3:
            out[at:at] = bytes(random.randrange(2000))
        elif what == 4 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif what == 5:
            out[at:at] = b"y" * random.randrange(20_000)
    return bytes(out)


def test_mangled_inputs_never_stop_the_reading() -> None:
    documents, reasons = 0, set()
    for seed in range(INPUTS):
        rng = random.Random(seed)
        content, name = base(rng)
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
        file = File(name, name, kind, packing)
        pieces = list(read_file(file, rng.choice(OPTIONS), lambda _: io.BytesIO(content)))  # noqa: B023
        *rest, seen = pieces
        assert isinstance(seen, Seen), seed
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
