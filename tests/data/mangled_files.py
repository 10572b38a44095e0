"""Seeded source files, sound and mangled, for the fuzz tests of reading and build_module."""

import io
import json
import random

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def sound_file(random: random.Random) -> tuple[bytes, str]:
    """Return the content and the name of a sound file."""
    words = ["word", "é", "日本語", "😀", '"', "\\", "\n\n", "\t", "\x00", "x" * 300]
    texts = ["".join(random.choices(words, k=random.randrange(30))) for _ in range(20)]
    shape = random.randrange(4)
    if shape == 0:
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
    """Return the content with up to three cuts, insertions or flipped bits."""
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
