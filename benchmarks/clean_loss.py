"""Does cleaning train better models? Raw and cleaned data at equal tokens, loss on clean texts.

    python benchmarks/corpus.py FOLDER --megabytes 100
    python benchmarks/clean_loss.py --prepare FOLDER     # builds the sets, says what was dropped
    python benchmarks/clean_loss.py [--seeds 3] [--processes 6] [--rate 1e-3]
    python benchmarks/clean_loss.py --small --seeds 2 --processes 1      # minutes on a CPU
    python benchmarks/clean_loss.py --prepare FOLDER --pages    # other texts to judge by, see below

Each cleaned set is read once. Beside it the raw set, and the raw set without its copies, are read
in a random order for as many tokens. All sets use the tokenizer that was trained on the raw one,
and the runs of a seed have the same first weights. Losses are in bits per byte of text, for each
source that the crawl leaves out.

`web` is the recipes' default. It judges by bounds that were tuned on the web at large, and drops
most technical pages: there, marks are a fifth of the words and brackets are common. `documentation`
is the same but for these two bounds.

With `--pages` the texts to judge by are a fortieth of the crawl's own pages of prose rather than
sources that it leaves out: taken by their hash, and no set keeps a document that shares 13 words in
a row with one. `documentation` then takes 0.1 for FineWeb's share of repeated characters as well,
which is the paper's bound; 0.01 is that of the pipeline's code.
"""

import argparse
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from trial import FULL, SMALL, Scale, document_starts, in_processes, mean_loss, spread, train

from penstock.data.build.open import datasets_home, open_dataset
from penstock.data.format.writer import DatasetWriter
from penstock.data.read.dataset import Dataset
from penstock.data.read.order import ShuffleOrder
from penstock.model.decoder import Decoder

VOCAB = 16384
PAGES_VOCAB = 4096  # for runs on a CPU
HELD_OUT_PAGES = 40  # one of so many
Sections = dict[str, dict[str, Any]]  # of a recipe
AS_IT_IS: Sections = {"clean": {"preset": "none"}, "dedup": {"documents": False, "near": False}}
# Gopher's 0.8 is of words between blanks. With marks counted apart that is some 0.65.
DOCUMENTATION = {
    "preset": "web",
    "gopher_quality": {"min_alphabetic_words": 0.65},
    "c4": {"curly_bracket": False},
}
RECIPES: dict[str, Sections] = {
    "deduplicated": {"clean": {"preset": "none"}},
    "documentation": {"clean": DOCUMENTATION},
    "web": {"clean": {"preset": "web"}},
}
# (set, the set whose one pass says how many tokens are read)
PAIRS = [
    ("raw", "documentation"),
    ("deduplicated", "documentation"),
    ("documentation", "documentation"),
    ("raw", "web"),
    ("web", "web"),
]
BY_BYTES, BY_SOURCE = "mean over bytes", "mean over sources"
LOOKS = 4
SIZES = "clean_loss.json"  # in the home: bytes of each held-out source

Bits = dict[str, list[float]]  # by held-out source, along a run


@dataclass(frozen=True)
class Run:
    set: str
    length: str  # one pass over this set
    seed: int
    scale: Scale


def split_pages(folder: Path) -> Path:
    """A folder like the given one whose held-out source is pages of prose of the crawl itself."""
    out = folder / "pages"
    (out / "held_out").mkdir(parents=True, exist_ok=True)
    with (
        (folder / "raw.jsonl").open() as rows,
        (out / "raw.jsonl").open("w") as raw,
        (out / "held_out" / "prose-pages.jsonl").open("w") as held_out,
    ):
        for row in rows:
            page = json.loads(row)
            taken = page["kind"] == "prose" and int(
                blake3(page["text"].encode()).hexdigest(length=4), 16
            )
            (held_out if taken and taken % HELD_OUT_PAGES == 0 else raw).write(row)
    return out


def prepare(folder: Path, pages: bool) -> None:
    more: Sections = {}
    if pages:
        folder = split_pages(folder)
        DOCUMENTATION["fineweb"] = {"max_duplicate_characters": 0.1}
        against = str((folder / "held_out" / "prose-pages.jsonl").resolve())
        more = {"decontaminate": {"against": [against], "text": ["text"]}}
    path = folder / "raw.jsonl"
    vocab = PAGES_VOCAB if pages else VOCAB
    raw = built("crawl-whole-raw", path, AS_IT_IS | more | {"tokens": {"vocab": vocab}})
    same: Sections = {"tokens": {"tokenizer": raw.id}}
    sizes: dict[str, int] = {}
    for held_out in sorted((folder / "held_out").iterdir()):
        built(f"crawl-held-out-{held_out.stem}", held_out, AS_IT_IS | same)
        sizes[held_out.stem] = sum(len(json.loads(row)["text"].encode()) for row in held_out.open())
    (datasets_home().parent / SIZES).write_text(json.dumps(sizes))
    whole = {"raw": raw}
    for name, how in RECIPES.items():
        whole[name] = built(f"crawl-whole-{name}", path, same | more | how)
    tell_kept(whole)
    longest = max(whole[length].tokens for _, length in PAIRS)
    for name, dataset in whole.items():
        print(beginning(dataset, f"crawl-{name}", longest).name)


def beginning(dataset: Dataset, name: str, tokens: int) -> Path:
    """As many documents as the longest run reads: the build has shuffled them, and what is left
    travels to the machine that trains."""
    ends = np.append(document_starts(dataset), dataset.tokens)
    with DatasetWriter(datasets_home(), name, dataset.vocab, dataset.tokenizer_json()) as writer:
        for start, end in zip(ends[ends <= tokens], ends[1:], strict=False):
            writer.add(dataset.read(int(start), int(end)))
        return writer.finish({"kind": "beginning"}, {"from": dataset.id}, {})


def built(name: str, path: Path, how: Sections) -> Dataset:
    # The machine that trains needs none of what building needs.
    from penstock.data.build.build import build
    from penstock.data.recipe.recipe import Recipe

    started = time.monotonic()
    source = [{"path": str(path.resolve())}]
    dataset = build(Recipe.model_validate({"name": name, "source": source} | how), workers=1)
    said = f"{dataset.documents} documents, {dataset.tokens} tokens"
    print(f"{dataset.id}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    return dataset


def tell_kept(whole: dict[str, Dataset]) -> None:
    """What is left of each kind of page and of each package, and why the others went."""
    for name, dataset in whole.items():
        print(name, json.dumps(dataset.manifest.counts, indent=1))
    for of in (kind_of, package_of):
        found = {name: tokens_by(dataset, of) for name, dataset in whole.items()}
        print(f"\n{'M tokens':<28}", *(f"{name:>14}" for name in found))
        for group, before in sorted(found["raw"].items(), key=lambda item: -item[1]):
            shares = (f"{own[group] / before:>14.0%}" for own in list(found.values())[1:])
            print(f"{group:<28} {before / 1e6:>14.2f}", *shares)
        print(f"{'all':<28}", *(f"{sum(own.values()) / 1e6:>14.2f}" for own in found.values()))


def kind_of(columns: dict[str, str]) -> str:
    return columns["kind"]


def package_of(columns: dict[str, str]) -> str:
    return columns["url"].removeprefix("@stdlib/").partition("/")[0]


def tokens_by(dataset: Dataset, of: Callable[[dict[str, str]], str]) -> Counter[str]:
    rows = chain(*(dataset.rows(shard) for shard in range(len(dataset.manifest.shards))))
    sizes = np.diff(np.append(document_starts(dataset), dataset.tokens))
    found: Counter[str] = Counter()
    for row, tokens in zip(rows, sizes.tolist(), strict=True):
        found[of(row["columns"])] += tokens
    return found


def losses(run: Run) -> tuple[Run, Bits]:
    """Bits per byte of each held-out source, along the run."""
    dataset, scale = open_dataset(f"crawl-{run.set}"), run.scale
    steps = (open_dataset(f"crawl-{run.length}").tokens - 1) // (scale.batch * scale.sequence)
    steps = min(steps, scale.most_steps or steps)
    samples = (dataset.tokens - 1) // scale.sequence
    order = ShuffleOrder(samples, run.seed).index(np.arange(steps * scale.batch))
    found: Bits = defaultdict(list)

    def look(model: Decoder, device: torch.device) -> float:
        for source, size in sizes().items():
            found[source].append(bits_per_byte(model, source, size, scale, device))
        return found[source][-1]

    train(dataset, scale, run.seed, order * scale.sequence, LOOKS, look)
    return run, dict(found)


def sizes() -> dict[str, int]:
    content: dict[str, int] = json.loads((datasets_home().parent / SIZES).read_text())
    return content


def bits_per_byte(
    model: Decoder, source: str, size: int, scale: Scale, device: torch.device
) -> float:
    """What is left after the last whole sample is left out, and its share of the bytes with it."""
    dataset = open_dataset(f"crawl-held-out-{source}")
    starts = np.arange(0, dataset.tokens - scale.sequence - 1, scale.sequence)
    if scale.most_steps:
        starts = starts[:: max(1, len(starts) // 256)]
    nats = mean_loss(model, dataset, starts, scale.sequence, device)
    return nats / math.log(2) * dataset.tokens / size


def tell(found: dict[tuple[str, str], dict[int, Bits]]) -> None:
    names = [*sizes(), BY_BYTES, BY_SOURCE]
    for (name, length), runs in found.items():
        tokens = open_dataset(f"crawl-{length}").tokens
        raw = found["raw", length]
        print(f"\n{name}, one pass of {length} ({tokens} tokens): bits per byte; minus raw")
        for source in names:
            own = [last(bits, source) for bits in runs.values()]
            paired = [last(runs[seed], source) - last(raw[seed], source) for seed in runs]
            print(f"{source:<22} {spread(own):<18} {spread(paired)}")


def last(bits: Bits, name: str) -> float:
    if name in bits:
        return bits[name][-1]
    weights = sizes() if name == BY_BYTES else dict.fromkeys(bits, 1)
    return sum(bits[one][-1] * weight for one, weight in weights.items()) / sum(weights.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prepare", type=Path, metavar="FOLDER")
    parser.add_argument("--pages", action="store_true", help="with --prepare")
    parser.add_argument("--steps", type=int, help="at most")
    parser.add_argument("--lengths", nargs="+", default=["documentation", "web"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rate", type=float, help="peak learning rate")
    parser.add_argument("--json", type=Path, help="where all readings go")
    asked = parser.parse_args()
    if asked.prepare:
        prepare(asked.prepare, asked.pages)
        return
    scale = replace(SMALL if asked.small else FULL, rate=asked.rate)
    if asked.steps:
        scale = replace(scale, most_steps=asked.steps)
    pairs = [pair for pair in PAIRS if pair[1] in asked.lengths]
    runs = [Run(*pair, seed, scale) for seed, pair in product(range(asked.seeds), pairs)]
    found: dict[tuple[str, str], dict[int, Bits]] = defaultdict(dict)
    for run, bits in in_processes(losses, runs, asked.processes):
        said = "  ".join(f"{name} {values[-1]:.4f}" for name, values in bits.items())
        print(f"{run.set}, {run.length}, {run.seed}: {said}", flush=True)
        found[run.set, run.length][run.seed] = bits
    if asked.json:
        asked.json.write_text(json.dumps([[*key, runs] for key, runs in found.items()]))
    tell(found)


if __name__ == "__main__":
    main()
