"""Deduplication: documents per CPU-second, recall and precision of near pairs, memory as it grows.

    python benchmarks/dedup.py [--documents 6000] [--peers PYTHON]    speed, recall, peers
    python benchmarks/dedup.py --growth 500000,1000000,2000000         memory, synthetic signatures

The corpus is made here: pieces of 3 kB of the standard library, half of them with copies in which
up to a tenth of the words was changed. The truth is brute force: the Jaccard similarity of every
pair of documents that shares a run of 5 words, in words as a regular expression finds them. Peers
run one after the other on the same files in the interpreter that `--peers` names (it needs
datasketch and datatrove); every figure counts the CPU time of all threads.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path

WORDS, BANDS, ROWS, NEAR = 5, 16, 8, 0.8
Pairs = set[tuple[int, int]]


def corpus(documents: int) -> list[str]:
    rng = random.Random(7)
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in library.rglob("*.py") if "site-packages" not in p.parts)
    rng.shuffle(files)
    texts: list[str] = []
    for file in files:
        text = file.read_text(errors="replace")
        for start in range(0, len(text) - 3000, 3000):
            piece = text[start : start + 3000]
            texts.append(piece)
            if rng.random() < 0.5:
                texts += [changed(piece, rng) for _ in range(rng.choice([1, 1, 2]))]
        if len(texts) >= documents:
            break
    return texts[:documents]  # copies side by side, so that a part has all of its pairs


def changed(text: str, rng: random.Random) -> str:
    """Up to a tenth of the words are others."""
    share = rng.uniform(0, 0.1)
    pieces = re.split(r"(\W+)", text)
    return "".join(
        f"w{rng.randrange(9999)}" if piece.isalnum() and rng.random() < share else piece
        for piece in pieces
    )


def runs(text: str) -> list[str]:
    split = re.findall(r"[^\W_]+", text.lower())
    return [" ".join(split[k : k + WORDS]) for k in range(max(1, len(split) - WORDS + 1))]


def similarity(texts: list[str]) -> dict[tuple[int, int], float]:
    """The Jaccard similarity of every pair that has anything in common."""
    holders: dict[str, list[int]] = {}
    sizes = []
    for number, text in enumerate(texts):
        mine = set(runs(text))
        sizes.append(len(mine))
        for run in mine:
            holders.setdefault(run, []).append(number)
    shared: dict[tuple[int, int], int] = {}
    for numbers in holders.values():
        for pair in combinations(numbers, 2):
            shared[pair] = shared.get(pair, 0) + 1
    return {(a, b): n / (sizes[a] + sizes[b] - n) for (a, b), n in shared.items()}


def pairs_of(keys: Iterable[Iterable[object]]) -> Pairs:
    """Pairs that share a key in any band; `keys` is band → document → key."""
    found: Pairs = set()
    for band in keys:
        holders: dict[object, list[int]] = {}
        for number, key in enumerate(band):
            holders.setdefault(key, []).append(number)
        for numbers in holders.values():
            found |= set(combinations(numbers, 2))
    return found


def ours(engine: str) -> Callable[[list[str]], tuple[float, Pairs]]:
    def run(texts: list[str]) -> tuple[float, Pairs]:
        from penstock.data.dedup.near import find_near_copies
        from penstock.data.dedup.signatures import MinHash, band_keys, compute_signatures

        config = MinHash(words=WORDS, bands=BANDS, rows=ROWS, engine=engine)  # type: ignore[arg-type]
        compute_signatures(texts[:50], config)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            find_near_copies(
                Path(folder), "bench", 1, lambda part: (texts, [0.0] * len(texts)), config
            )
            spent = time.process_time() - start
        rows = compute_signatures(texts, config)
        found = pairs_of(band_keys(rows, config).tolist())
        return spent, {(a, b) for a, b in found if (rows[a] == rows[b]).mean() >= config.agree}

    return run


def datasketch(texts: list[str]) -> tuple[float, Pairs]:
    from datasketch import MinHash, MinHashLSH

    start = time.process_time()
    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    found: Pairs = set()
    for number, text in enumerate(texts):
        sketch = MinHash(num_perm=BANDS * ROWS)
        sketch.update_batch([run.encode() for run in set(runs(text))])
        found |= {(other, number) for other in index.query(sketch)}
        index.insert(number, sketch)
    return time.process_time() - start, found


def datatrove(texts: list[str]) -> tuple[float, Pairs]:
    """Its signatures alone; its later stages (sorting, clustering) are not counted."""
    from datatrove.pipeline.dedup import MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    config = MinhashConfig(n_grams=WORDS, num_buckets=BANDS, hashes_per_bucket=ROWS)
    stage = MinhashDedupSignature("/nowhere", config=config)
    stage.get_signature(stage.get_shingles(texts[0]))
    start = time.process_time()
    rows = [stage.get_signature(stage.get_shingles(text)) for text in texts]
    spent = time.process_time() - start
    return spent, pairs_of([[tuple(row[band]) for row in rows] for band in range(BANDS)])


CONTESTANTS = {
    "penstock, numpy": ours("numpy"),
    "penstock, rensa": ours("rensa"),
    "datasketch": datasketch,
    "datatrove": datatrove,
}


def compete(texts: list[str], peers: str | None) -> None:
    truth = similarity(texts)
    true_pairs = {pair for pair, value in truth.items() if value >= NEAR}
    size = sum(map(len, texts)) / len(texts)
    print(f"{len(texts)} documents of {size:,.0f} characters, {len(true_pairs)} pairs ≥ {NEAR}")
    print(f"{'':16} documents/CPU-s  recall  of 0.80–0.85  precision  ≥ 0.7  documents  pairs")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.json"
        for name in CONTESTANTS:
            mine = name.startswith("penstock")
            # The slow ones get a part of the same corpus.
            part = texts if mine else texts[: len(texts) // (3 if name == "datasketch" else 12)]
            path.write_text(json.dumps(part))
            python = sys.executable if mine else peers
            if python is None:
                continue
            command = [python, __file__, "--one", name, str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{name:16} not run: {done.stderr.strip().splitlines()[-1]}")
                continue
            answer = json.loads(done.stdout.splitlines()[-1])
            found = {(a, b) for a, b in answer["pairs"]}
            there = {pair for pair in true_pairs if pair[1] < len(part)}
            edge = {pair for pair in there if truth[pair] < 0.85}
            close = sum(truth.get(pair, 0) >= 0.7 for pair in found)
            # Documents in a found pair that are in a true one, too: what removal gets right.
            taken = {number for pair in found for number in pair}
            right = taken & {number for pair in there for number in pair}
            print(
                f"{name:16} {len(part) / answer['seconds']:15,.0f}"
                f"  {len(found & there) / len(there):6.3f}  {len(found & edge) / len(edge):12.3f}"
                f"  {len(found & there) / len(found):9.3f}"
                f"  {close / len(found):5.3f}  {len(right) / len(taken):9.3f}  {len(found)}"
            )


def clusters(texts: list[str]) -> None:
    """What comes out in the end: who is with whom, and what removal of all but one does."""
    from penstock.data.dedup.near import find_near_copies
    from penstock.data.dedup.signatures import MinHash
    from penstock.data.dedup.stages import Removed

    truth = {pair for pair, value in similarity(texts).items() if value >= NEAR}
    near_ones = {number for pair in truth for number in pair}
    config = MinHash(words=WORDS, bands=BANDS, rows=ROWS)
    with tempfile.TemporaryDirectory() as folder:
        (path,) = find_near_copies(
            Path(folder), "bench", 1, lambda part: (texts, [0.0] * len(texts)), config
        )
        gone = Removed.read(path)
    kept = dict(zip(gone.documents.tolist(), gone.kept_documents.tolist(), strict=True))
    together = sum(kept.get(a, a) == kept.get(b, b) for a, b in truth)
    wrong = sum(number not in near_ones for number in kept)
    print(
        f"clusters: {together / len(truth):.3f} of the true pairs are in one; {len(kept)} "
        f"documents removed, {wrong} of them without any other ≥ {NEAR}"
    )


def other_stages(texts: list[str]) -> None:
    from penstock.data.dedup.contamination import Overlap, find_contaminated, index_evaluations
    from penstock.data.dedup.exact import ExactDocuments, ExactLines, find_exact_copies

    for config in (ExactDocuments(), ExactLines()):
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            find_exact_copies(
                Path(folder), "bench", 1, lambda part: (texts, [0.0] * len(texts)), config
            )
            told(str(config.identity()["kind"]), len(texts), start)
    against = index_evaluations({"every tenth": [text[:1000] for text in texts[::10]]}, Overlap())
    start = time.process_time()
    hits = sum(len(find_contaminated(texts[k : k + 64], against)) for k in range(0, len(texts), 64))
    told(f"decontaminate ({hits} hits)", len(texts), start)


def told(what: str, documents: int, start: float) -> None:
    print(f"{what:30} {documents / (time.process_time() - start):10,.0f} documents/CPU-s")


def growth(documents: int) -> None:
    """One size in this process: a fifth of the documents are copies of earlier ones."""
    import numpy as np

    from penstock.data.dedup.groups import SpilledParts
    from penstock.data.dedup.near import join_copies, spill_bands
    from penstock.data.dedup.signatures import MinHash
    from penstock.data.dedup.stages import Removed
    from penstock.data.dedup.words import mix64
    from penstock.data.format.columns import write_columns

    config = MinHash(words=WORDS, bands=BANDS, rows=ROWS)
    step, made = 25_000, 0.0  # small parts, so that making them does not hide the rest

    def sources(first: int) -> np.ndarray:
        """Which text each document of a part is: a fifth are those of earlier numbers."""
        rng = np.random.default_rng(first)
        numbers = np.arange(first, min(first + step, documents))
        copies = rng.random(len(numbers)) < 0.2
        numbers[copies] = rng.integers(0, numbers[copies] + 1)
        return numbers

    places = np.arange(config.places, dtype=np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for first in range(0, documents, step):
            start = time.process_time()
            numbers = sources(first)
            wide = numbers.astype(np.uint64)[:, None] * np.uint64(1000) + places
            rows = mix64(wide).astype(np.uint32)
            del wide
            made += time.process_time() - start
            paths.append(Path(folder) / "bands" / f"{first:012d}")
            write_columns(paths[-1], spill_bands(rows, numbers % 7, config))
            del rows
        files = join_copies(Path(folder), SpilledParts.open(paths), config)
        removed = sum(len(Removed.read(file).documents) for file in files)
        disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    texts = len(np.unique(np.concatenate([sources(k) for k in range(0, documents, step)])))
    assert removed == documents - texts, f"{removed} removed of {documents - texts} copies"
    print(
        f"{documents:11,} documents  {peak:6.2f} GiB peak  {disk / (1 << 30):6.2f} GiB of disk  "
        f"{time.process_time() - made:7.1f} CPU-s  {removed:,} removed"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--peers")
    parser.add_argument("--growth")
    parser.add_argument("--one", nargs=2)
    asked = parser.parse_args()
    if asked.one:
        spent, found = CONTESTANTS[asked.one[0]](json.loads(Path(asked.one[1]).read_text()))
        print(json.dumps({"seconds": spent, "pairs": sorted(found)}))
    elif asked.growth:
        sizes = [int(size) for size in asked.growth.split(",")]
        if len(sizes) == 1:
            growth(sizes[0])
        for size in sizes if len(sizes) > 1 else []:
            subprocess.run([sys.executable, __file__, "--growth", str(size)], check=True)
    else:
        texts = corpus(asked.documents)
        compete(texts, asked.peers)
        clusters(texts)
        other_stages(texts)


if __name__ == "__main__":
    main()
